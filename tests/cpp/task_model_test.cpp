// One task's expected path as a function of its hypothetical completions.
#include "task_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "support/naive.hpp"
#include "support/world.hpp"

namespace topas::testing {
namespace {

using detail::PathScratch;
using detail::RequestOutlook;
using detail::TaskModel;
using Scope = TaskModel::Scope;
using Requests = std::vector<RequestOutlook>;

Config exact_config() { return plain_config(1000); }

Config drawn_config(std::int64_t samples = 64) {
  Config config = plain_config(1000);
  config.exact_limit = 1;
  config.samples = samples;
  return config;
}

/// One task with histories, by chance partly finished and partly served.
class RandomTask {
 public:
  RandomTask(Random& random, std::uint32_t size, std::size_t requests)
      : after_(random_dag(random, size, 0.4)), stages_(random_totals(random, size, 3)) {
    std::vector<bool> done(size, false);
    const StageGraph graph = graph_of(after_);
    for (const auto stage : graph.order()) {
      const bool ready =
          std::all_of(after_[stage].begin(), after_[stage].end(), [&](auto other) { return done[other]; });
      done[stage] = ready && random.chance(0.25);
      if (done[stage]) {
        stages_.finish(stage);
      } else if (random.chance(0.3)) {
        stages_.serve(stage, random.quarters(5));
      }
    }
    for (std::size_t at = 0; at < requests; ++at) {
      requests_.push_back({static_cast<std::uint32_t>(random.below(size)), random.quarters(3)});
    }
  }

  [[nodiscard]] TaskModel model(const Config& config, Scope scope) const {
    return {config, Id("task"), graph_of(after_), stages_.outlooks(), requests_, scope};
  }
  [[nodiscard]] double naive(std::uint64_t completed) const {
    std::vector<double> reduction(after_.size(), 0.0);
    for (std::size_t at = 0; at < requests_.size(); ++at) {
      reduction[requests_[at].stage] += ((completed >> at) & 1U) != 0 ? requests_[at].expected_service_s : 0.0;
    }
    return naive_expected_path(after_, stages_, reduction);
  }

 private:
  Adjacency after_;
  Stages stages_;
  Requests requests_;
};

double path_of(const TaskModel& model, std::uint64_t completed) {
  PathScratch scratch;
  const std::vector<std::uint64_t> words{completed};
  return model.expected_path(std::span(words).first(model.words()), scratch);
}

TEST(TaskModel, TheWholePathAgreesWithTheEnumeration) {
  Random random(31);
  for (int round = 0; round < 150; ++round) {
    const RandomTask task(random, static_cast<std::uint32_t>(random.between(1, 5)), 6);
    const TaskModel model = task.model(exact_config(), Scope::whole_path);
    for (const std::uint64_t completed : {0U, 1U, 42U, 63U}) {
      ASSERT_NEAR(path_of(model, completed), task.naive(completed), 1e-9) << "round " << round;
    }
  }
}

TEST(TaskModel, ManyOutcomesInSmallBlocksAreExact) {
  // 5^8 joint outcomes, but each separator alone has five: no draws, whatever the whole chain would need.
  Adjacency chain(8);
  for (std::uint32_t stage = 1; stage < 8; ++stage) {
    chain[stage] = {stage - 1};
  }
  const Stages stages(Totals(8, {1.0, 2.0, 3.0, 4.0, 5.0}));
  Config config = drawn_config(1);
  config.exact_limit = 5;
  const TaskModel model(config, Id(1), graph_of(chain), stages.outlooks(), {}, Scope::whole_path);
  EXPECT_DOUBLE_EQ(path_of(model, 0), 24.0);
}

TEST(TaskModel, ReducingPartsGivesTheSameMarginalsAsTheWholePath) {
  Random random(32);
  for (int round = 0; round < 150; ++round) {
    const RandomTask task(random, static_cast<std::uint32_t>(random.between(1, 9)), 5);
    const Config config = round % 2 == 0 ? exact_config() : drawn_config();
    const TaskModel whole = task.model(config, Scope::whole_path);
    const TaskModel parts = task.model(config, Scope::blocks_of_requests);
    for (std::uint64_t completed = 0; completed < 31; ++completed) {
      const double expected = path_of(whole, completed) - path_of(whole, 31);
      ASSERT_NEAR(path_of(parts, completed) - path_of(parts, 31), expected, 1e-9) << "round " << round;
    }
  }
}

TEST(TaskModel, MarginalsAddUpToTheJointReductionInEveryOrder) {
  Random random(33);
  for (int round = 0; round < 100; ++round) {
    const RandomTask task(random, 10, 8);
    const TaskModel model = task.model(drawn_config(), Scope::blocks_of_requests);
    std::vector<std::uint32_t> order(8);
    std::iota(order.begin(), order.end(), 0U);
    for (std::size_t last = order.size(); last > 1; --last) {
      std::swap(order[last - 1], order[random.below(last)]);
    }
    std::uint64_t completed = 0;
    double sum = 0.0;
    for (const auto request : order) {
      const double before = path_of(model, completed);
      completed |= std::uint64_t{1} << request;
      const double marginal = before - path_of(model, completed);
      ASSERT_GE(marginal, 0.0) << "a completion cannot lengthen the path";
      sum += marginal;
    }
    ASSERT_NEAR(sum, path_of(model, 0) - path_of(model, 255), 1e-9);
  }
}

TEST(TaskModel, RequestsOfOneStageAddUp) {
  const Stages stages(Totals{{10.0}});
  const Requests requests{{0, 3.0}, {0, 4.0}, {0, 5.0}};
  const TaskModel model(exact_config(), Id(1), graph_of({{}}), stages.outlooks(), requests, Scope::whole_path);
  EXPECT_DOUBLE_EQ(path_of(model, 0b001), 7.0);
  EXPECT_DOUBLE_EQ(path_of(model, 0b011), 3.0);
  EXPECT_DOUBLE_EQ(path_of(model, 0b111), 0.0);
}

TEST(TaskModel, WhatIsRememberedHasTheSameBits) {
  Random random(34);
  for (int round = 0; round < 40; ++round) {
    const RandomTask task(random, 10, 6);
    const TaskModel up = task.model(drawn_config(), Scope::blocks_of_requests);
    const TaskModel down = task.model(drawn_config(), Scope::blocks_of_requests);
    std::vector<double> first(64);
    for (std::uint64_t completed = 0; completed < 64; ++completed) {
      first[completed] = path_of(up, completed);
    }
    for (std::uint64_t completed = 64; completed-- > 0;) {
      ASSERT_EQ(path_of(down, completed), first[completed]) << "in the opposite order";
      ASSERT_EQ(path_of(up, completed), first[completed]) << "a second time";
    }
  }
}

TEST(TaskModel, WhatIsToldTogetherHasTheSameBits) {
  Random random(37);
  for (int round = 0; round < 200; ++round) {
    const RandomTask task(random, 6, 5);
    const Config config = random.chance(0.5) ? exact_config() : drawn_config();
    const TaskModel together = task.model(config, Scope::blocks_of_requests);
    const TaskModel alone = task.model(config, Scope::blocks_of_requests);
    PathScratch scratch;
    for (const std::uint64_t set : {0U, 4U, 5U, 13U, 31U}) {
      ASSERT_EQ(together.expected_path_before_each({&set, 1}, scratch), path_of(alone, set));
      for (std::uint64_t with = set; with < 32; ++with) {
        ASSERT_EQ(path_of(together, with), path_of(alone, with)) << "round " << round << ", set " << with;
      }
    }
  }
}

TEST(TaskModel, GainsOfSetsAreWhatThePathFallsBy) {
  Random random(38);
  std::size_t told = 0;
  for (int round = 0; round < 3000; ++round) {
    const RandomTask task(random, 7, 3);
    const TaskModel model = task.model(random.chance(0.5) ? exact_config() : drawn_config(), Scope::whole_path);
    PathScratch scratch;
    const auto gains = model.gains_of_sets(scratch);
    ASSERT_EQ(gains.size(), model.tells_sets() ? 8U : 0U);
    told += model.tells_sets() ? 1U : 0U;
    for (std::size_t set = 0; set < gains.size(); ++set) {
      ASSERT_NEAR(gains[set], path_of(model, 0) - path_of(model, set), 1e-12) << "round " << round;
    }
  }
  EXPECT_GT(told, 20U);
}

TEST(TaskModel, WithABudgetGainsOfSetsHaveTheBitsOfTheOutcomes) {
  Random random(40);
  std::size_t rounded = 0;
  for (int round = 0; round < 50; ++round) {
    Totals totals(4);
    for (auto& of_stage : totals) {
      of_stage = {random.unit() * 9, random.unit() * 9, random.unit() * 9};
      std::sort(of_stage.begin(), of_stage.end());
    }
    const Stages stages(totals);
    const Requests requests{{0, 1.1}, {1, 2.3}, {2, 0.7}, {3, 1.9}};
    const StageGraph graph = graph_of(Adjacency(4));
    Config budget = exact_config();
    budget.max_evaluations = 3;
    const TaskModel with(budget, Id(1), graph, stages.outlooks(), requests, Scope::whole_path);
    const TaskModel without(exact_config(), Id(1), graph, stages.outlooks(), requests, Scope::whole_path);
    const std::vector<std::uint32_t> all{0, 1, 2, 3};
    const detail::PathBlock block(graph, all, detail::enumerate_outcomes(totals, 100), all);
    std::vector<double> expected;
    PathScratch scratch;
    block.gains_of_subsets(std::vector{1.1, 2.3, 0.7, 1.9}, expected, scratch);
    const auto gains = with.gains_of_sets(scratch);
    ASSERT_TRUE(std::equal(gains.begin(), gains.end(), expected.begin(), expected.end())) << "round " << round;
    const auto others = without.gains_of_sets(scratch);
    rounded += std::equal(others.begin(), others.end(), expected.begin(), expected.end()) ? 0U : 1U;
  }
  EXPECT_GT(rounded, 0U) << "or the budget would need no exception";
}

/// Histories that grow, behind the outlooks of one task.
class GrowingTask {
 public:
  GrowingTask(Random& random, std::uint32_t size) : random_(random), after_(random_dag(random, size, 0.3)) {
    for (std::uint32_t stage = 0; stage < size; ++stage) {
      totals_.push_back({random.quarters(8)});
      requests_.push_back({stage, random.quarters(3)});
    }
    versions_.assign(size, 0);
  }

  void grow() {
    const auto stage = static_cast<std::size_t>(random_.below(totals_.size()));
    if (random_.chance(0.7)) {
      totals_[stage].push_back(random_.quarters(8));
      std::sort(totals_[stage].begin(), totals_[stage].end());
      ++versions_[stage];
    }
    if (random_.chance(0.7)) {
      requests_[stage].expected_service_s = random_.quarters(3);
    }
  }
  [[nodiscard]] std::vector<detail::StageOutlook> outlooks() const {
    std::vector<detail::StageOutlook> out;
    for (std::size_t stage = 0; stage < totals_.size(); ++stage) {
      const double request_s = requests_[stage].expected_service_s;
      out.push_back({stage == 0, totals_[stage], stage == 1 ? 1.5 : 0.0, request_s, versions_[stage]});
    }
    return out;
  }
  [[nodiscard]] const Requests& requests() const { return requests_; }
  [[nodiscard]] TaskModel model(const Config& config) const {
    return {config, Id("task"), graph_of(after_), outlooks(), requests_, Scope::blocks_of_requests};
  }
  /// The same with what another model gives.
  [[nodiscard]] TaskModel model_after(const Config& config, TaskModel& previous) const {
    const StageGraph graph = graph_of(after_);
    const auto stages = outlooks();
    return {
        config,   Id("task"), graph, detail::path_blocks(graph, stages), stages, requests_, Scope::blocks_of_requests,
        &previous};
  }

 private:
  Random& random_;
  Adjacency after_;
  Totals totals_;
  std::vector<std::uint64_t> versions_;
  Requests requests_;
};

TEST(TaskModel, FollowingTheProfilesGivesTheBitsOfANewModel) {
  Random random(39);
  std::size_t followed = 0;
  std::size_t refused = 0;
  for (int round = 0; round < 100; ++round) {
    Config config = drawn_config(32);
    config.exact_limit = random.pick(std::vector<std::int64_t>{1, 6, 40});
    GrowingTask task(random, 5);
    TaskModel model = task.model(config);
    for (int step = 0; step < 12; ++step) {
      task.grow();
      const bool fresh = model.refresh(config, task.outlooks(), task.requests());
      (fresh ? followed : refused) += 1;
      if (!fresh || random.chance(0.2)) {
        config.samples = random.chance(0.1) ? 16 : 32;
        model = task.model_after(config, model);
      }
      const TaskModel built = task.model(config);
      for (std::uint64_t set = 0; set < 32; ++set) {
        ASSERT_EQ(path_of(model, set), path_of(built, set)) << "round " << round << ", step " << step;
      }
    }
  }
  EXPECT_GT(followed, 300U);
  EXPECT_GT(refused, 50U);
}

TEST(TaskModel, DrawsStayTheSameForEverySetOfCompletions) {
  // A joint reduction on the very same draws: the path of each draw less the request's service.
  const Stages stages(Totals{{2.0, 3.0, 8.0, 9.0}});
  const Requests requests{{0, 1.0}};
  const TaskModel model(drawn_config(), Id(1), graph_of({{}}), stages.outlooks(), requests, Scope::whole_path);
  EXPECT_NEAR(path_of(model, 0) - path_of(model, 1), 1.0, 1e-12);
}

TEST(TaskModel, DrawsDependOnSeedAndTask) {
  const Stages stages(Totals{{1.0, 2.0, 9.0}, {1.0, 5.0, 6.0}});
  const StageGraph graph = graph_of({{}, {}});
  const auto path = [&](std::uint64_t seed, const Id& task) {
    Config config = drawn_config(5);
    config.seed = seed;
    return path_of(TaskModel(config, task, graph, stages.outlooks(), {}, Scope::whole_path), 0);
  };
  EXPECT_EQ(path(1, Id(1)), path(1, Id(1)));
  std::vector<double> values;
  for (std::int64_t other = 0; other < 8; ++other) {
    values.push_back(path(static_cast<std::uint64_t>(other), Id(1)));
    values.push_back(path(1, Id(other)));
  }
  std::sort(values.begin(), values.end());
  EXPECT_LT(values.front(), values.back());
}

TEST(TaskModel, FinishedStagesHaveNoResidual) {
  Stages stages(Totals{{5.0}, {7.0}, {1.0}});
  stages.finish(1);
  const TaskModel model(exact_config(), Id(1), graph_of({{}, {0}, {1}}), stages.outlooks(), {}, Scope::whole_path);
  EXPECT_DOUBLE_EQ(path_of(model, 0), 6.0);
}

TEST(TaskModel, ARequestOfAFinishedStageChangesNothing) {
  Stages stages(Totals{{5.0}, {7.0}});
  stages.finish(0);
  const Requests requests{{0, 2.0}};
  const TaskModel model(exact_config(), Id(1), graph_of({{}, {0}}), stages.outlooks(), requests, Scope::whole_path);
  EXPECT_EQ(path_of(model, 0), path_of(model, 1));
}

TEST(TaskModel, ATaskWithoutRequestsHasNothingToModel) {
  const Stages stages(Totals{{5.0}});
  const TaskModel model(exact_config(), Id(1), graph_of({{}}), stages.outlooks(), {}, Scope::blocks_of_requests);
  EXPECT_EQ(model.words(), 0U);
  EXPECT_EQ(path_of(model, 0), 0.0);
}

TEST(TaskModel, AFinishedStageAloneInItsBlockHasNoResidualInAnyScope) {
  Stages stages(Totals{{5.0}, {7.0}, {1.0}});
  stages.finish(1);
  const Requests requests{{0, 2.0}, {1, 2.0}, {2, 0.5}};
  for (const auto scope : {Scope::whole_path, Scope::blocks_of_requests}) {
    const TaskModel model(exact_config(), Id(1), graph_of({{}, {0}, {1}}), stages.outlooks(), requests, scope);
    EXPECT_DOUBLE_EQ(path_of(model, 0b000), 6.0);
    EXPECT_DOUBLE_EQ(path_of(model, 0b010), 6.0);
    EXPECT_DOUBLE_EQ(path_of(model, 0b111), 3.5);
  }
}

TEST(TaskModel, OneStageWithTooManyOutcomesIsDrawn) {
  // Four draws, one of each quarter: exact all the same, where the draws are stratified by quarters.
  const Stages stages(Totals{{1.0, 2.0, 3.0, 4.0}});
  const StageGraph graph = graph_of({{}});
  const TaskModel drawn(drawn_config(4), Id(1), graph, stages.outlooks(), {}, Scope::whole_path);
  EXPECT_DOUBLE_EQ(path_of(drawn, 0), 2.5);
  const TaskModel one(drawn_config(1), Id(1), graph, stages.outlooks(), {}, Scope::whole_path);
  const double path = path_of(one, 0);
  EXPECT_EQ(path, std::floor(path)) << "a single draw, not a mean";
}

TEST(SetMemo, RemembersEverySet) {
  detail::SetMemo memo;
  EXPECT_EQ(memo.find(0), nullptr);
  for (std::uint64_t number = 0; number < 3000; ++number) {
    const std::uint64_t set = number * number * 0x9E3779B97F4A7C15ULL;
    ASSERT_EQ(memo.find(set), nullptr) << number;
    memo.insert(set, static_cast<double>(number));
    ASSERT_NE(memo.find(set), nullptr) << number;
  }
  for (std::uint64_t number = 0; number < 3000; ++number) {
    ASSERT_EQ(*memo.find(number * number * 0x9E3779B97F4A7C15ULL), static_cast<double>(number));
  }
  EXPECT_EQ(memo.find(1), nullptr);
}

/// Seventy parallel stages with one request each; the path is the longest stage that is not completed.
class ManyRequests : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kCount = 70;

  [[nodiscard]] static Totals totals() {
    Totals out;
    for (std::uint32_t stage = 0; stage < kCount; ++stage) {
      out.push_back({1.0 + stage});
    }
    return out;
  }
  [[nodiscard]] static Requests requests() {
    Requests out;
    for (std::uint32_t stage = 0; stage < kCount; ++stage) {
      out.push_back({stage, 1000.0});
    }
    return out;
  }

  Stages stages_{totals()};
  TaskModel model_{exact_config(),     Id(1),      graph_of(Adjacency(kCount)),
                   stages_.outlooks(), requests(), Scope::blocks_of_requests};
};

TEST_F(ManyRequests, NeedTwoWords) { EXPECT_EQ(model_.words(), 2U); }

TEST_F(ManyRequests, AreToldApartBeyondTheFirstWord) {
  std::vector<std::uint64_t> completed(2, 0);
  PathScratch scratch;
  EXPECT_DOUBLE_EQ(model_.expected_path(completed, scratch), 70.0);
  completed[1] = std::uint64_t{1} << 5U;  // request 69, the longest
  EXPECT_DOUBLE_EQ(model_.expected_path(completed, scratch), 69.0);
  completed[1] = 0b111111;  // 64 to 69
  EXPECT_DOUBLE_EQ(model_.expected_path(completed, scratch), 64.0);
  completed[0] = ~std::uint64_t{0};
  EXPECT_DOUBLE_EQ(model_.expected_path(completed, scratch), 0.0);
}

TEST(TaskModel, ExactlySixtyFourRequestsFitOneWord) {
  const Stages stages(Totals{{100.0}});
  const Requests requests(64, {0, 1.0});
  const TaskModel model(exact_config(), Id(1), graph_of({{}}), stages.outlooks(), requests, Scope::whole_path);
  EXPECT_EQ(model.words(), 1U);
  EXPECT_DOUBLE_EQ(path_of(model, 0), 100.0);
  EXPECT_DOUBLE_EQ(path_of(model, std::uint64_t{1} << 63U), 99.0);
  EXPECT_DOUBLE_EQ(path_of(model, std::uint64_t{3} << 31U), 98.0);
  EXPECT_DOUBLE_EQ(path_of(model, ~std::uint64_t{0}), 36.0);
}

}  // namespace
}  // namespace topas::testing
