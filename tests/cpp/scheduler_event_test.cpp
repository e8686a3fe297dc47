// What each legal event does (SPEC section 9).
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/desk.hpp"

namespace topas::testing {
namespace {

using Ids = std::vector<Id>;

class Events : public Desk {
 protected:
  [[nodiscard]] StageState stage(std::size_t index, double now) const {
    return scheduler_.snapshot(now).tasks.front().stages.at(index);
  }
  [[nodiscard]] ProfileState profile(std::size_t index, double now) const {
    return scheduler_.snapshot(now).profiles.at(index);
  }
};

TEST_F(Events, ANewSchedulerHasNothingToDo) {
  const Decision out = scheduler_.decide(0.0);
  EXPECT_TRUE(out.resident.empty() && out.admit.empty() && out.drop.empty());
  EXPECT_EQ(gauges(usage()), (std::vector<std::int64_t>{3, 1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_F(Events, ATaskArrives) {
  scheduler_.task_arrived(2.5, 1, "flow");
  const Snapshot out = scheduler_.snapshot(2.5);
  ASSERT_EQ(out.tasks.size(), 1U);
  EXPECT_EQ(out.tasks.front().arrival, 2.5);
  EXPECT_EQ(out.tasks.front().stages.at(1).after, std::vector<std::uint32_t>{0});
  EXPECT_EQ(usage().tasks, 1);
}

TEST_F(Events, ATaskMayBeOlderThanItsArrival) {
  scheduler_.task_arrived(2.5, 1, "flow", -4.0);
  EXPECT_EQ(scheduler_.snapshot(2.5).tasks.front().arrival, -4.0);
  EXPECT_NO_THROW(scheduler_.task_arrived(2.5, 2, "flow", 2.5));
}

TEST_F(Events, ARequestIsReady) {
  arrive();
  const RequestState out = request(10, 1.0);
  EXPECT_EQ(out.task, Id(1));
  EXPECT_EQ(out.stage, 0U);
  EXPECT_EQ(out.agent, Id("plan"));
  EXPECT_EQ(out.kv_tokens, 10) << "input and all new tokens";
  EXPECT_EQ(out.input_tokens, 4);
  EXPECT_FALSE(out.running);
  EXPECT_EQ(usage().waiting, 1);
}

TEST_F(Events, ItsServiceIsEstimatedFromItsTokensBeforeAnyIsObserved) {
  Config settings = config();
  settings.prefill_fixed_s = 0.25;
  settings.prefill_s_per_token = 0.5;
  scheduler_.reconfigure(settings);
  arrive();
  EXPECT_DOUBLE_EQ(request(10, 1.0).expected_service_s, 0.25 + 0.5 * 4 + 0.5 * 6);
  decide_and_commit(1.0);
  scheduler_.request_completed(2.0, 10, 7.0);
  scheduler_.request_ready(2.0, 11, 1, "plan", 400, 600);
  EXPECT_DOUBLE_EQ(request(11, 2.0).expected_service_s, 7.0) << "the mean that was observed";
}

TEST_F(Events, ACommitStartsAndLoads) {
  arrive();
  const Decision out = decide_and_commit(1.0);
  EXPECT_EQ(out.admit, Ids{10});
  EXPECT_EQ(out.load, Ids{"plan"});
  EXPECT_TRUE(request(10, 1.0).running);
  EXPECT_EQ(gauges(usage()), (std::vector<std::int64_t>{3, 1, 1, 0, 1, 1, 20, 1, 0}));
}

TEST_F(Events, ADecisionChangesNothingUntilItIsCommitted) {
  arrive();
  const auto before = gauges(usage());
  const Decision first = scheduler_.decide(1.0);
  EXPECT_EQ(scheduler_.decide(1.0), first);
  static_cast<void>(scheduler_.decide(50.0));
  EXPECT_EQ(scheduler_.decide(1.0), first);
  EXPECT_EQ(gauges(usage()), before);
}

TEST_F(Events, ACommitMovesTheClock) {
  arrive();
  decide_and_commit(4.0);
  EXPECT_THROW(scheduler_.request_progress(3.0, 10, 1), StateError);
}

TEST_F(Events, Progress) {
  start();
  scheduler_.request_progress(2.0, 10, 5);
  EXPECT_EQ(request(10, 2.0).generated_tokens, 5);
  scheduler_.request_progress(3.0, 10, 6);
  EXPECT_EQ(request(10, 3.0).generated_tokens, 6) << "a total, not an increment";
}

TEST_F(Events, ACompletionAddsToItsStage) {
  start();
  scheduler_.request_completed(2.0, 10, 1.25);
  EXPECT_EQ(stage(0, 2.0).service_s, 1.25);
  EXPECT_FALSE(stage(0, 2.0).completed) << "a stage ends by its own event only";
  EXPECT_EQ(usage().running, 0);
  EXPECT_EQ(usage().credits, 0);
  serve(3.0, 11, 1, "plan", 0.75);
  EXPECT_EQ(stage(0, 3.0).service_s, 2.0) << "a second round";
  EXPECT_EQ(profile(0, 3.0).totals_s, std::vector{2.0}) << "the profiled point, until the stage has ended once";
  EXPECT_EQ(profile(0, 3.0).request_s, 1.0) << "the mean of both rounds";
}

TEST_F(Events, AnIdIsFreeAgainAfterwards) {
  start();
  scheduler_.request_completed(2.0, 10, 1.0);
  EXPECT_NO_THROW(scheduler_.request_ready(2.0, 10, 1, "plan", 1, 1));
  scheduler_.request_aborted(2.0, 10);
  EXPECT_NO_THROW(scheduler_.request_ready(2.0, 10, 1, "plan", 1, 1));
}

TEST_F(Events, AnAbortedRequestLeavesNoTrace) {
  start();
  scheduler_.request_ready(1.0, 11, 1, "plan", 1, 1);
  scheduler_.request_aborted(2.0, 11);
  scheduler_.request_aborted(2.0, 10);
  EXPECT_EQ(gauges(usage()), (std::vector<std::int64_t>{3, 1, 1, 0, 0, 1, 10, 0, 0}));
  EXPECT_EQ(stage(0, 2.0).service_s, 0.0);
  EXPECT_EQ(profile(0, 2.0).request_s, 2.0) << "nothing was observed";
}

TEST_F(Events, AFailedStartWaitsAgain) {
  start();
  scheduler_.request_start_failed(2.0, 10);
  EXPECT_FALSE(request(10, 2.0).running);
  EXPECT_EQ(usage().waiting, 1);
  EXPECT_EQ(usage().credits, 0);
  EXPECT_EQ(decide_and_commit(2.0).admit, Ids{10});
}

TEST_F(Events, ARequestTheEngineStartsRunsWithoutACredit) {
  arrive();
  scheduler_.request_started(2.0, 10);
  EXPECT_TRUE(request(10, 2.0).running);
  EXPECT_EQ(request(10, 2.0).credit, 0.0);
  EXPECT_EQ(usage().resident, 1) << "it runs on its agent's prefix";
  EXPECT_EQ(usage().kv_tokens, 20);
  EXPECT_TRUE(decide_and_commit(2.0).drop.empty());
  scheduler_.request_completed(3.0, 10, 1.0);
  EXPECT_EQ(usage().running, 0);
}

TEST_F(Events, AStageIsCompleted) {
  start();
  scheduler_.request_completed(2.0, 10, 1.5);
  scheduler_.stage_completed(2.0, 1, "plan");
  EXPECT_TRUE(stage(0, 2.0).completed);
  EXPECT_EQ(profile(0, 2.0).totals_s, std::vector{1.5});
  EXPECT_EQ(usage().samples, 1);
  EXPECT_NO_THROW(scheduler_.request_ready(2.0, 11, 1, "code", 1, 1)) << "the next one is ready";
}

TEST_F(Events, AStageWithoutARequestLeavesNoTotal) {
  arrive();
  scheduler_.request_aborted(1.0, 10);
  scheduler_.stage_completed(2.0, 1, "plan");
  EXPECT_TRUE(stage(0, 2.0).completed);
  EXPECT_EQ(profile(0, 2.0).totals_s, std::vector{2.0});
  EXPECT_EQ(usage().samples, 0);
}

TEST_F(Events, APrefixIsEvicted) {
  start();
  scheduler_.request_completed(2.0, 10, 1.0);
  scheduler_.request_ready(2.0, 11, 1, "plan", 4, 6);
  scheduler_.prefix_evicted(2.0, "plan");
  EXPECT_EQ(usage().resident, 0);
  EXPECT_EQ(scheduler_.decide(2.0).load, Ids{"plan"});
}

TEST_F(Events, APrefixTheEngineHoldsIsNotLoadedAgain) {
  arrive();
  EXPECT_EQ(scheduler_.decide(1.0).load, Ids{"plan"});
  scheduler_.prefix_loaded(1.0, "plan");
  EXPECT_EQ(usage().resident, 1);
  const Decision decision = scheduler_.decide(1.0);
  EXPECT_TRUE(decision.load.empty());
  EXPECT_EQ(decision.resident, Ids{"plan"});
  EXPECT_EQ(decision.terms.move, 0.0);
}

TEST_F(Events, APrefixOfAnIdleAgentLeavesWithTheNextDecision) {
  start();
  scheduler_.request_completed(2.0, 10, 1.0);
  EXPECT_EQ(usage().resident, 1);
  EXPECT_EQ(decide_and_commit(2.0).drop, Ids{"plan"});
  EXPECT_EQ(usage().resident, 0);
  EXPECT_EQ(usage().kv_tokens, 0);
}

TEST_F(Events, APreemptedRequestWaitsAtOnce) {
  Config settings = config();
  settings.kv_capacity_tokens = 45;  // one prefix and one request at a time
  settings.age_weight = 0.0;
  scheduler_.reconfigure(settings);
  scheduler_.register_workflow({"long", {{"only", "code", {}, 90.0, 90.0}}});
  scheduler_.task_arrived(1.0, 1, "flow");
  scheduler_.request_ready(1.0, 10, 1, "plan", 20, 10);
  decide_and_commit(1.0);
  scheduler_.task_arrived(2.0, 2, "long");
  scheduler_.request_ready(2.0, 20, 2, "only", 10, 25);
  const Decision out = decide_and_commit(2.0);
  EXPECT_EQ(out.preempt, Ids{10});
  EXPECT_EQ(out.admit, Ids{20});
  EXPECT_GT(out.terms.revoke, 0.0);
  EXPECT_FALSE(request(10, 2.0).running);
  EXPECT_EQ(request(10, 2.0).credit, 0.0);
  EXPECT_EQ(usage().credits, 1);
}

TEST_F(Events, APrefixChangesAtTheExpenseOfItsRequests) {
  start();
  scheduler_.request_ready(1.0, 11, 1, "plan", 5, 7);
  scheduler_.prefix_changed(2.0, "plan", 13);
  EXPECT_EQ(request(10, 2.0).kv_tokens, 7);
  EXPECT_EQ(request(10, 2.0).input_tokens, 1);
  EXPECT_EQ(request(11, 2.0).kv_tokens, 9);
  EXPECT_EQ(usage().kv_tokens, 20) << "the prefix and the request that runs";
  scheduler_.prefix_changed(3.0, "plan", 4);
  EXPECT_EQ(request(10, 3.0).kv_tokens, 16);
  EXPECT_EQ(usage().kv_tokens, 20);
}

TEST_F(Events, APrefixOfAnIdleAgentMayChangeToAnything) {
  scheduler_.prefix_changed(1.0, "code", 0);
  scheduler_.prefix_changed(1.0, "code", 500);
  EXPECT_EQ(scheduler_.snapshot(1.0).agents.front().prefix_tokens, 500);
}

TEST_F(Events, AChangedPrefixReachesTheExpectedService) {
  Config settings = config();
  settings.prefill_s_per_token = 0.125;
  settings.decode_s_per_token = 0.0;
  scheduler_.reconfigure(settings);
  arrive();
  EXPECT_DOUBLE_EQ(scheduler_.decide(1.0).terms.admit, 0.5) << "four tokens of input";
  scheduler_.prefix_changed(1.0, "plan", 12);
  EXPECT_DOUBLE_EQ(scheduler_.decide(1.0).terms.admit, 0.25);
}

TEST_F(Events, AnAgentMayBeRegisteredAgain) {
  scheduler_.register_agent("plan", 25);
  EXPECT_EQ(scheduler_.snapshot(0.0).agents.at(1).prefix_tokens, 25) << "code, plan, test";
  arrive();
  EXPECT_NO_THROW(scheduler_.register_agent("plan", 25)) << "the same again";
}

TEST_F(Events, AgentsAndWorkflowsLeave) {
  scheduler_.unregister_workflow("flow");
  for (const char* agent : {"plan", "code", "test"}) {
    scheduler_.unregister_agent(agent);
  }
  EXPECT_EQ(gauges(usage()), std::vector<std::int64_t>(9, 0));
}

TEST_F(Events, AMovedSchedulerGoesOn) {
  arrive();
  const Decision before = scheduler_.decide(1.0);
  Scheduler moved = std::move(scheduler_);
  EXPECT_EQ(moved.decide(1.0), before);
  scheduler_ = std::move(moved);
  EXPECT_EQ(scheduler_.decide(1.0), before);
}

/// What a decision knows is what the events said, whatever was remembered from decisions before.
TEST_F(Events, EveryEventReachesTheNextDecision) {
  arrive();
  const auto gain = [this](double now) { return scheduler_.decide(now).terms.admit; };
  EXPECT_DOUBLE_EQ(gain(1.0), 2.0) << "of the two seconds that were profiled";
  decide_and_commit(1.0);
  scheduler_.request_completed(1.0, 10, 0.5);
  scheduler_.request_ready(1.0, 11, 1, "plan", 4, 6);
  EXPECT_DOUBLE_EQ(gain(1.0), 0.5) << "a second round, taken for as long as the first";
  scheduler_.request_ready(1.0, 12, 1, "plan", 4, 6);
  EXPECT_DOUBLE_EQ(gain(1.0), 1.0);
  Config settings = config();
  settings.age_weight = 0.0;
  settings.max_running_requests = 1;
  scheduler_.reconfigure(settings);
  EXPECT_DOUBLE_EQ(gain(1.0), 0.5);
}

TEST_F(Events, AnObservationReachesTheOtherTasksOfTheWorkflow) {
  arrive();
  scheduler_.task_arrived(1.0, 2, "flow");
  scheduler_.request_ready(1.0, 20, 2, "plan", 4, 6);
  decide_and_commit(1.0);
  scheduler_.request_start_failed(1.0, 20);
  EXPECT_DOUBLE_EQ(scheduler_.decide(1.0).terms.admit, 2.0);
  scheduler_.request_completed(1.0, 10, 0.25);
  EXPECT_DOUBLE_EQ(scheduler_.decide(1.0).terms.admit, 0.25) << "requests of the stage take a quarter";
  scheduler_.stage_completed(1.0, 1, "plan");
  EXPECT_DOUBLE_EQ(scheduler_.decide(1.0).terms.admit, 0.25);
}

}  // namespace
}  // namespace topas::testing
