// One rollout by hand (SPEC section 8).
#include <gtest/gtest.h>

#include <vector>

#include "rollout_run.hpp"

namespace topas::testing {
namespace {

using detail::RolloutBase;
using detail::RolloutModel;
using detail::RolloutRun;
using Admitted = std::vector<std::uint32_t>;

/// Two agents with prefixes of 100 tokens, which take 1 s to load; tasks of one stage each, with one request of 100
/// tokens in it.
class Rollout : public ::testing::Test {
 protected:
  Rollout() {
    model_.capacity_tokens = 200;
    model_.agents = {{100, 1.0, 100}, {100, 1.0, 100}};
    model_.scenarios.resize(1);
  }

  void task(std::uint32_t agent, double request_s, bool running, std::uint32_t requests = 1) {
    const auto at = static_cast<std::uint32_t>(model_.stages.size());
    model_.age_s.push_back(0.0);
    model_.open_stages.push_back(1);
    RolloutModel::Stage stage;
    stage.task = at;
    stage.agent = agent;
    stage.live = 1;
    stage.kv_tokens = 100;
    model_.stages.push_back(stage);
    model_.requests.push_back({at, 100, running, 0.0});
    model_.scenarios[0].push_back({requests, request_s});
  }
  [[nodiscard]] double cost(const Admitted& admit, RolloutBase base) const {
    return cost(detail::RolloutMove{admit, {}}, base);
  }
  [[nodiscard]] double cost(const detail::RolloutMove& move, RolloutBase base) const {
    RolloutRun run(model_);
    run.take(move);
    return run.cost(base, 0);
  }

  RolloutModel model_;
};

TEST_F(Rollout, SumsTheEndsOfTasks) {
  task(0, 10.0, true);
  task(0, 5.0, false);
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::arrival), 10.0 + 16.0) << "the prefix has left when the second begins";
  model_.capacity_tokens = 300;
  EXPECT_DOUBLE_EQ(cost(Admitted{1}, RolloutBase::arrival), 10.0 + 5.0);
}

TEST_F(Rollout, PowersWeighAges) {
  task(0, 10.0, true);
  model_.age_s[0] = 20.0;
  model_.power = 2.0;
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::strict), 900.0);
  model_.age_s[0] = 15.0;
  model_.power = 1.5;
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::strict), 125.0);
}

TEST_F(Rollout, BasesDifferInWhoComesFirst) {
  task(0, 10.0, true);
  task(0, 20.0, true);
  task(1, 5.0, false);
  task(0, 5.0, false);
  model_.capacity_tokens = 300;
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::strict), 10.0 + 20.0 + 26.0 + 32.0)
      << "the last one loads the prefix again";
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::arrival), 10.0 + 20.0 + 15.0 + 26.0);
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::resident), 10.0 + 20.0 + 15.0 + 26.0);
}

TEST_F(Rollout, RequestsOfAStageFollowEachOther) {
  task(0, 10.0, true, 3);
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::arrival), 32.0) << "the prefix leaves with each of them";
}

TEST_F(Rollout, StagesWaitForTheOnesBefore) {
  task(0, 10.0, true);
  RolloutModel::Stage next;
  next.agent = 1;
  next.open_before = 1;
  next.kv_tokens = 100;
  model_.stages.push_back(next);
  model_.successors = {1};
  model_.stages[0].successors = {0, 1};
  model_.open_stages[0] = 2;
  model_.scenarios[0].push_back({1, 7.0});
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::arrival), 10.0 + 1.0 + 7.0);
}

TEST_F(Rollout, PreemptedRequestsBeginAgain) {
  task(0, 10.0, true);
  task(1, 4.0, false);
  model_.requests[0].spent_s = 6.0;
  EXPECT_DOUBLE_EQ(cost(Admitted{}, RolloutBase::arrival), 4.0 + 9.0);
  EXPECT_DOUBLE_EQ(cost(detail::RolloutMove{{1}, {0}}, RolloutBase::arrival), 5.0 + 16.0);
}

TEST_F(Rollout, WhatNeverFitsHoldsNothingUp) {
  task(0, 10.0, false);
  task(0, 10.0, false);
  model_.requests[1].kv_tokens = 500;
  EXPECT_DOUBLE_EQ(cost(Admitted{0}, RolloutBase::arrival), 11.0);
}

}  // namespace
}  // namespace topas::testing
