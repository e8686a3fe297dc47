// Ranks that see the same events make the same decisions, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "support/event_log.hpp"

namespace topas::testing {
namespace {

/// A log with a decision after every event, most of them committed.
class Recording {
 public:
  Recording(std::uint64_t seed, bool string_ids) : random_(seed), config_(random_config(random_)) {
    config_.exact_limit = 2;  // draws too
    Traffic traffic(random_, {.string_ids = string_ids});
    traffic.set_up();
    forward_ = traffic.registrations();
    backward_ = traffic.registrations(true);
    Scheduler scheduler(config_);
    const auto record = [&](Step step) {
      step(scheduler, decisions_);
      events_.push_back(std::move(step));
    };
    for (const auto& step : forward_) {
      step(scheduler, decisions_);
    }
    for (int event = 0; event < 150; ++event) {
      record(traffic.next());
      record(traffic.decide());
      if (random_.chance(0.8)) {
        traffic.committed(decisions_.back());
        record(Traffic::commit());
      }
    }
  }

  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] const std::vector<Decision>& decisions() const { return decisions_; }
  [[nodiscard]] std::vector<Step> log(bool backwards) const {
    std::vector<Step> out = backwards ? backward_ : forward_;
    out.insert(out.end(), events_.begin(), events_.end());
    return out;
  }

 private:
  Random random_;
  Config config_;
  std::vector<Step> forward_;
  std::vector<Step> backward_;
  std::vector<Step> events_;
  std::vector<Decision> decisions_;
};

class Ranks : public ::testing::TestWithParam<int> {
 protected:
  Recording recording_{static_cast<std::uint64_t>(GetParam()) + 300, GetParam() % 2 == 1};
};

TEST_P(Ranks, TheSameLogGivesTheSameDecisions) {
  EXPECT_EQ(play(recording_.config(), recording_.log(false)), recording_.decisions());
}

TEST_P(Ranks, TheOrderOfRegistrationDoesNotMatter) {
  EXPECT_EQ(play(recording_.config(), recording_.log(true)), recording_.decisions());
}

TEST_P(Ranks, FourThreadsAtOnce) {
  constexpr std::size_t kThreads = 4;
  std::vector<std::vector<Decision>> results(kThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) {
      threads.emplace_back([&] { result = play(recording_.config(), recording_.log(false)); });
    }
  }
  for (const auto& result : results) {
    EXPECT_EQ(result, recording_.decisions());
  }
}

TEST_P(Ranks, ThePureDoorOnFourThreadsAtOnce) {
  Random random(static_cast<std::uint64_t>(GetParam()));
  const Config config = random_config(random);
  const Snapshot snapshot = random_snapshot(random, {.requests = 14});
  const Decision expected = decide(snapshot, config);
  std::vector<std::vector<Decision>> results(4);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) {
      threads.emplace_back(
          [&] { std::generate_n(std::back_inserter(result), 5, [&] { return decide(snapshot, config); }); });
    }
  }
  for (const auto& result : results) {
    EXPECT_EQ(result, std::vector<Decision>(5, expected));
  }
}

INSTANTIATE_TEST_SUITE_P(Scheduler, Ranks, ::testing::Range(0, 6));

TEST(Determinism, DrawsDependOnTheSeed) {
  Random random(5);
  Config config = random_config(random);
  config.exact_limit = 1;
  config.samples = 3;
  std::size_t different = 0;
  for (int round = 0; round < 40; ++round) {
    const Snapshot snapshot = random_snapshot(random, {});
    config.seed = 1;
    const Decision first = decide(snapshot, config);
    config.seed = 2;
    different += decide(snapshot, config) == first ? 0U : 1U;
  }
  EXPECT_GT(different, 0U);
}

}  // namespace
}  // namespace topas::testing
