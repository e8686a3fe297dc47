// Thousands of random events: the incremental door agrees with the pure one, and its accounts are right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "support/event_log.hpp"
#include "topas/error.hpp"

namespace topas::testing {
namespace {

/// Configs from tiny to roomy; the scheduler's is the one of the case.
class RandomTraffic : public ::testing::TestWithParam<int> {
 protected:
  RandomTraffic()
      : random_(static_cast<std::uint64_t>(GetParam()) + 100),
        config_(random_config(random_)),
        traffic_(random_, {.string_ids = GetParam() % 2 == 1}),
        scheduler_(settings()) {
    traffic_.set_up();
    for (const auto& step : traffic_.registrations()) {
      step(scheduler_, decisions_);
    }
  }

  Config settings() {
    config_.enumerate_max_agents = GetParam() % 4 < 2 ? 8 : 0;
    config_.exact_limit = GetParam() % 8 < 4 ? 4096 : 2;
    config_.age_scale_s = random_.chance(0.5) ? std::optional(12.0) : std::nullopt;
    return config_;
  }

  void take(const Step& step) {
    step(scheduler_, decisions_);
    ASSERT_EQ(gauges(scheduler_.usage()), gauges(traffic_.expected()));
  }

  /// An event makes earlier decisions stale and moves the clock.
  void take_event() {
    const auto before = scheduler_.decide(traffic_.now()).state_version;
    ASSERT_NO_FATAL_FAILURE(take(traffic_.next()));
    ASSERT_NE(scheduler_.decide(traffic_.now()).state_version, before);
    ASSERT_THROW(static_cast<void>(scheduler_.snapshot(std::nextafter(traffic_.now(), -1.0))), StateError);
  }

  /// Both doors, twice.
  void decide() {
    ASSERT_NO_FATAL_FAILURE(take(traffic_.decide()));
    const Decision& incremental = decisions_.back();
    ASSERT_EQ(scheduler_.decide(traffic_.now()), incremental);
    Decision pure = topas::decide(scheduler_.snapshot(traffic_.now()), scheduler_.config());
    pure.state_version = incremental.state_version;
    ASSERT_EQ(pure, incremental);
  }

  void commit() {
    const Decision made = decisions_.back();
    traffic_.committed(made);
    ASSERT_NO_FATAL_FAILURE(take(Traffic::commit()));
    const Usage usage = scheduler_.usage();
    const bool changed = !made.admit.empty() || !made.preempt.empty();
    if (changed) {  // else a changed prefix or a start by the engine may have left too much running for the caps
      ASSERT_LE(usage.kv_tokens, config_.kv_capacity_tokens);
      ASSERT_TRUE(config_.max_running_requests == 0 || usage.running <= config_.max_running_requests);
    }
    const Snapshot after = scheduler_.snapshot(traffic_.now());
    ASSERT_EQ(after.resident, made.resident);
    for (const auto& agent : after.resident) {
      ASSERT_TRUE(std::any_of(after.requests.begin(), after.requests.end(), [&](const auto& request) {
        return request.running && request.agent == agent;
      })) << "an idle prefix";
    }
  }

  /// A few uses that are never legal; the next decision would tell if one of them changed anything.
  void disturb() {
    const auto version = scheduler_.decide(traffic_.now()).state_version;
    const double now = traffic_.now();
    EXPECT_THROW(scheduler_.task_finished(now, "nobody"), UnknownId);
    EXPECT_THROW(scheduler_.request_completed(now, "nothing", 1.0), UnknownId);
    EXPECT_THROW(scheduler_.register_agent("broken", -1), ArgumentError);
    EXPECT_THROW(scheduler_.task_arrived(now, "new", "no workflow"), UnknownId);
    EXPECT_EQ(scheduler_.decide(now).state_version, version);
  }

  void retune() {
    config_.seed = random_.below(100);
    config_.reuse_weight = random_.quarters(2);
    config_.count_running = random_.chance(0.5);
    config_.age_credit = random_.chance(0.5);
    scheduler_.reconfigure(config_);
  }

  Random random_;
  Config config_;
  Traffic traffic_;
  Scheduler scheduler_;
  std::vector<Decision> decisions_;
};

TEST_P(RandomTraffic, BothDoorsAgreeAndTheAccountsAreRight) {
  for (int event = 0; event < 500; ++event) {
    SCOPED_TRACE(event);
    ASSERT_NO_FATAL_FAILURE(take_event());
    if (random_.chance(0.6)) {
      ASSERT_NO_FATAL_FAILURE(decide());
      if (random_.chance(0.7)) {
        ASSERT_NO_FATAL_FAILURE(commit());
      }
    }
    if (random_.chance(0.05)) {
      disturb();
    }
    if (random_.chance(0.02)) {
      retune();
    }
  }
  EXPECT_TRUE(std::any_of(decisions_.begin(), decisions_.end(), [](const auto& made) { return !made.admit.empty(); }));
}

TEST_P(RandomTraffic, NothingIsLeftWhenAllTasksHaveEnded) {
  for (int event = 0; event < 150; ++event) {
    ASSERT_NO_FATAL_FAILURE(take(traffic_.next()));
    ASSERT_NO_FATAL_FAILURE(decide());
    ASSERT_NO_FATAL_FAILURE(commit());
  }
  for (const auto& step : traffic_.drain()) {
    step(scheduler_, decisions_);
  }
  ASSERT_NO_FATAL_FAILURE(decide());
  ASSERT_NO_FATAL_FAILURE(commit());
  const Usage usage = scheduler_.usage();
  const Usage empty{usage.agents, usage.workflows, 0, 0, 0, 0, 0, 0, usage.samples};
  EXPECT_EQ(gauges(usage), gauges(empty));
  const Snapshot left = scheduler_.snapshot(traffic_.now());
  EXPECT_TRUE(left.tasks.empty() && left.requests.empty() && left.resident.empty());
}

INSTANTIATE_TEST_SUITE_P(Scheduler, RandomTraffic, ::testing::Range(0, 32));

}  // namespace
}  // namespace topas::testing
