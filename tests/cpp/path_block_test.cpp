// E[LP] of one block: against an enumeration by hand, and its two ways of computing against each other.
#include "path_block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "support/drawn.hpp"
#include "support/naive.hpp"

namespace topas::testing {
namespace {

using detail::Outcomes;
using detail::PathBlock;
using detail::PathScratch;
using Positions = std::vector<std::uint32_t>;

/// A whole DAG as one block, exact or drawn.
class Case {
 public:
  Case(Adjacency after, Totals totals)
      : after_(std::move(after)), graph_(graph_of(after_)), stages_(std::move(totals)) {}

  [[nodiscard]] const Adjacency& after() const { return after_; }
  [[nodiscard]] const Stages& stages() const { return stages_; }
  [[nodiscard]] Positions order() const { return {graph_.order().begin(), graph_.order().end()}; }

  [[nodiscard]] Outcomes exact() const { return detail::enumerate_outcomes(supports(), 1U << 20U); }
  [[nodiscard]] Outcomes drawn(std::size_t count) const {
    std::vector<std::uint64_t> streams;
    for (const auto stage : order()) {
      streams.push_back(detail::draw_stream(5, 6, stage));
    }
    return draw_outcomes(supports(), streams, count);
  }
  [[nodiscard]] PathBlock block(Outcomes outcomes, Positions reducible) const {
    return {graph_, order(), std::move(outcomes), std::move(reducible)};
  }
  /// Positions in order() of the stages without a predecessor, and of the others.
  [[nodiscard]] Positions sources(bool wanted) const {
    Positions out;
    for (std::uint32_t at = 0; at < after_.size(); ++at) {
      if (after_[order()[at]].empty() == wanted) {
        out.push_back(at);
      }
    }
    return out;
  }

 private:
  [[nodiscard]] Totals supports() const {
    Totals out;
    for (const auto stage : graph_.order()) {
      residual_support(stages_[stage], out.emplace_back());
    }
    return out;
  }

  Adjacency after_;
  StageGraph graph_;
  Stages stages_;
};

Case random_case(Random& random, std::uint32_t most) {
  const auto size = static_cast<std::uint32_t>(random.between(1, most));
  auto after = random_dag(random, size, random.pick(std::vector{0.15, 0.4, 0.8}));
  return {std::move(after), random_totals(random, size, 3)};
}

double path_of(const PathBlock& block, const std::vector<double>& reduction) {
  PathScratch scratch;
  return block.expected_path(reduction, scratch);
}

TEST(PathBlock, OneStageIsItsMean) {
  const Case one({{}}, {{1.0, 2.0, 6.0}});
  EXPECT_DOUBLE_EQ(path_of(one.block(one.exact(), {}), {}), 3.0);
}

TEST(PathBlock, ReductionsStopAtZero) {
  const Case one({{}}, {{1.0, 2.0, 6.0}});
  const PathBlock block = one.block(one.exact(), {0});
  EXPECT_DOUBLE_EQ(path_of(block, {0.0}), 3.0);
  EXPECT_DOUBLE_EQ(path_of(block, {1.5}), (0.0 + 0.5 + 4.5) / 3.0);
  EXPECT_EQ(path_of(block, {100.0}), 0.0);
}

TEST(PathBlock, ParallelStagesAreAsLongAsTheLongest) {
  const Case two({{}, {}}, {{1.0, 3.0}, {2.0}});
  EXPECT_DOUBLE_EQ(path_of(two.block(two.exact(), {}), {}), 2.5);
}

TEST(PathBlock, AgreesWithTheEnumerationOnRandomDags) {
  Random random(21);
  for (int round = 0; round < 400; ++round) {
    const Case now = random_case(random, 5);
    Positions reducible;
    std::vector<double> reduction;
    std::vector<double> of_stage(now.after().size(), 0.0);
    for (std::uint32_t at = 0; at < now.after().size(); ++at) {
      if (random.chance(0.5)) {
        reducible.push_back(at);
        reduction.push_back(random.quarters(6));
        of_stage[now.order()[at]] = reduction.back();
      }
    }
    const double expected = naive_expected_path(now.after(), now.stages(), of_stage);
    ASSERT_NEAR(path_of(now.block(now.exact(), reducible), reduction), expected, 1e-9) << "round " << round;
  }
}

/// The fast way serves reducible stages that are sources; one more reducible stage forces the general way.
void expect_same_bits(const Case& now, const Outcomes& outcomes, Random& random) {
  const Positions sources = now.sources(true);
  const Positions others = now.sources(false);
  if (others.empty()) {
    return;
  }
  Positions all = sources;
  all.push_back(others.front());
  const PathBlock fast = now.block(outcomes, sources);
  const PathBlock general = now.block(outcomes, all);
  for (int set = 0; set < 8; ++set) {
    std::vector<double> reduction(sources.size());
    std::generate(reduction.begin(), reduction.end(),
                  [&random] { return random.chance(0.3) ? 0.0 : random.unit() * 6; });
    std::vector<double> with_none = reduction;
    with_none.push_back(0.0);
    ASSERT_EQ(path_of(fast, reduction), path_of(general, with_none));
  }
}

TEST(PathBlock, TheFastWayGivesTheSameBitsExactly) {
  Random random(22);
  for (int round = 0; round < 200; ++round) {
    const Case now = random_case(random, 6);
    expect_same_bits(now, now.exact(), random);
  }
}

TEST(PathBlock, TheFastWayGivesTheSameBitsOnDraws) {
  Random random(23);
  for (int round = 0; round < 200; ++round) {
    const Case now = random_case(random, 12);
    expect_same_bits(now, now.drawn(37), random);
  }
}

TEST(PathBlock, SomeSourcesReducibleAndOthersNot) {
  Random random(24);
  for (int round = 0; round < 200; ++round) {
    const Case now = random_case(random, 9);
    const Positions sources = now.sources(true);
    const Outcomes outcomes = now.drawn(16);
    const PathBlock every = now.block(outcomes, sources);
    const PathBlock first = now.block(outcomes, {sources.front()});
    std::vector<double> reduction(sources.size(), 0.0);
    reduction.front() = random.quarters(5);
    ASSERT_EQ(path_of(every, reduction), path_of(first, {reduction.front()}));
  }
}

TEST(PathBlock, AlternativesToldTogetherHaveTheSameBits) {
  Random random(25);
  for (int round = 0; round < 200; ++round) {
    const Case now = random_case(random, 9);
    const Positions sources = now.sources(true);
    const PathBlock block = now.block(now.drawn(37), sources);
    std::vector<double> reduction(sources.size());
    std::generate(reduction.begin(), reduction.end(), [&random] { return random.unit() * 3; });
    std::vector<PathBlock::Alternative> alternatives;
    for (std::uint32_t index = 0; index < sources.size(); ++index) {
      for (auto left = random.below(3); left > 0; --left) {
        alternatives.push_back({index, random.unit() * 6});
      }
    }
    std::vector<double> paths(alternatives.size());
    PathScratch scratch;
    ASSERT_EQ(block.expected_paths(reduction, alternatives, paths, scratch), path_of(block, reduction));
    for (std::size_t at = 0; at < alternatives.size(); ++at) {
      auto with = reduction;
      with[alternatives[at].index] = alternatives[at].reduction;
      ASSERT_EQ(paths[at], path_of(block, with)) << "round " << round;
    }
  }
}

TEST(PathBlock, GainsOfSubsetsAreWhatThePathFallsBy) {
  Random random(26);
  std::size_t largest = 0;
  for (int round = 0; round < 200; ++round) {
    const Case now = random_case(random, 9);
    const Positions sources = now.sources(true);
    const PathBlock block = now.block(random.chance(0.5) ? now.exact() : now.drawn(37), sources);
    std::vector<double> reduction(sources.size());
    std::generate(reduction.begin(), reduction.end(),
                  [&random] { return random.chance(0.2) ? 0.0 : random.unit() * 6; });
    std::vector<double> gains;
    PathScratch scratch;
    block.gains_of_subsets(reduction, gains, scratch);
    ASSERT_EQ(gains.size(), std::size_t{1} << sources.size());
    const double before = path_of(block, std::vector<double>(sources.size(), 0.0));
    for (std::size_t set = 0; set < gains.size(); ++set) {
      std::vector<double> some(sources.size(), 0.0);
      for (std::size_t at = 0; at < some.size(); ++at) {
        some[at] = ((set >> at) & 1U) != 0 ? reduction[at] : 0.0;
      }
      ASSERT_NEAR(gains[set], before - path_of(block, some), 1e-12) << "round " << round << ", set " << set;
    }
    largest = std::max(largest, sources.size());
  }
  EXPECT_GT(largest, 4U);
}

TEST(PathBlock, AMeanOverDrawsIsTheMeanOfTheirLongestPaths) {
  Random random(25);
  for (const std::size_t count : {1U, 7U, 8U, 9U, 128U}) {
    const Case now = random_case(random, 10);
    const Outcomes outcomes = now.drawn(count);
    double sum = 0.0;
    for (std::size_t k = 0; k < count; ++k) {
      std::vector<double> weights(now.after().size());
      for (std::size_t at = 0; at < weights.size(); ++at) {
        weights[now.order()[at]] = outcomes.residual[at][k];
      }
      sum += naive_longest_path(now.after(), weights);
    }
    EXPECT_NEAR(path_of(now.block(outcomes, {}), {}), sum / static_cast<double>(count), 1e-9);
  }
}

/// The mean as it is specified: eight lanes, added in pairs.
double mean_in_lanes(const std::vector<double>& values) {
  std::array<double, 8> lanes{};
  for (std::size_t k = 0; k < values.size(); ++k) {
    lanes.at(k % 8) += values[k];
  }
  const double even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
  const double odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  return (even + odd) / static_cast<double>(values.size());
}

TEST(PathBlock, AddsInEightLanes) {
  Random random(27);
  for (int round = 0; round < 50; ++round) {
    const auto count = static_cast<std::size_t>(random.between(1, 60));
    std::vector<double> values(count);
    std::generate(values.begin(), values.end(), [&random] { return random.unit() * 10.0; });
    Outcomes outcomes{detail::Rows(1, count), std::vector<double>((count + 7) / 8 * 8, 0.0),
                      static_cast<double>(count)};
    std::copy(values.begin(), values.end(), outcomes.residual[0]);
    std::fill_n(outcomes.weights.begin(), count, 1.0);
    const std::vector<std::uint32_t> stages{0};
    ASSERT_EQ(path_of(PathBlock(graph_of({{}}), stages, outcomes, {}), {}), mean_in_lanes(values));
  }
}

TEST(PathBlock, TheScratchHoldsNothing) {
  const Case small({{}}, {{1.0, 2.0}});
  Random random(26);
  const Case large = random_case(random, 6);
  const PathBlock one = small.block(small.exact(), {0});
  const PathBlock other = large.block(large.drawn(50), large.sources(true));
  PathScratch scratch;
  const double fresh = one.expected_path(std::vector{0.5}, scratch);
  static_cast<void>(other.expected_path(std::vector<double>(other.reducible().size(), 0.25), scratch));
  EXPECT_EQ(one.expected_path(std::vector{0.5}, scratch), fresh);
}

}  // namespace
}  // namespace topas::testing
