// Credits, ageing, conditional branches, and how tasks end.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/desk.hpp"

namespace topas::testing {
namespace {

using Ids = std::vector<Id>;
using Spec = std::vector<StageSpec>;

StageSpec stage(Id name, std::vector<Id> after) { return {std::move(name), "plan", std::move(after), 1.0, 1.0}; }

class Branches : public Desk {
 protected:
  void arrive_as(Spec stages) {
    scheduler_.register_workflow({"branch", std::move(stages)});
    scheduler_.task_arrived(1.0, 1, "branch");
  }
  /// Indexes of the stages of task 1 that are over.
  [[nodiscard]] std::vector<std::size_t> over() const {
    std::vector<std::size_t> out;
    const auto stages = scheduler_.snapshot(1.0).tasks.at(0).stages;
    for (std::size_t at = 0; at < stages.size(); ++at) {
      if (stages[at].completed) {
        out.push_back(at);
      }
    }
    return out;
  }
};

using Over = std::vector<std::size_t>;

TEST_F(Branches, ASkippedStageTakesWhatOnlyItLeadsTo) {
  arrive_as({stage("in", {}), stage("left", {"in"}), stage("right", {"in"}), stage("deep", {"left"}),
             stage("out", {"deep", "right"})});
  scheduler_.stage_completed(1.0, 1, "in");
  scheduler_.stage_skipped(1.0, 1, "left");
  EXPECT_EQ(over(), (Over{0, 1, 3})) << "the join still waits for the right branch";
  EXPECT_NO_THROW(scheduler_.request_ready(1.0, 10, 1, "right", 1, 1));
}

TEST_F(Branches, ABranchMayBeSkippedBeforeItsTurn) {
  arrive_as({stage("in", {}), stage("left", {"in"}), stage("right", {"in"})});
  scheduler_.stage_skipped(1.0, 1, "left");
  EXPECT_EQ(over(), (Over{1}));
}

TEST_F(Branches, AJoinOfSkippedBranchesIsSkipped) {
  arrive_as({stage("in", {}), stage("left", {"in"}), stage("right", {"in"}), stage("out", {"left", "right"})});
  scheduler_.stage_skipped(1.0, 1, "left");
  scheduler_.stage_skipped(1.0, 1, "right");
  EXPECT_EQ(over(), (Over{1, 2, 3}));
}

TEST_F(Branches, AJoinWithOneCompletedBranchIsNotSkipped) {
  arrive_as({stage("left", {}), stage("right", {}), stage("out", {"left", "right"})});
  scheduler_.stage_completed(1.0, 1, "left");
  scheduler_.stage_skipped(1.0, 1, "right");
  EXPECT_EQ(over(), (Over{0, 1}));
  EXPECT_NO_THROW(scheduler_.request_ready(1.0, 10, 1, "out", 1, 1));
}

TEST_F(Branches, SkippingTwiceIsANoOp) {
  arrive_as({stage("left", {}), stage("deep", {"left"}), stage("right", {})});
  scheduler_.stage_skipped(1.0, 1, "left");
  const Decision decision = scheduler_.decide(1.0);
  scheduler_.stage_skipped(1.0, 1, "left");
  scheduler_.stage_skipped(1.0, 1, "deep");
  EXPECT_EQ(scheduler_.decide(1.0), decision) << "the version too: nothing has happened";
}

TEST_F(Branches, ALongCascadeNeedsNoRecursion) {
  Spec stages{stage(std::int64_t{0}, {})};
  for (std::int64_t at = 1; at < 10'000; ++at) {
    stages.push_back(stage(at, {at - 1}));
  }
  stages.push_back(stage("other", {}));
  arrive_as(std::move(stages));
  scheduler_.stage_skipped(1.0, 1, std::int64_t{0});
  EXPECT_EQ(over().size(), 10'000U);
}

TEST_F(Branches, ATaskOfWhichEverythingIsSkippedIsOver) {
  arrive_as({stage("in", {}), stage("out", {"in"})});
  scheduler_.stage_skipped(1.0, 1, "in");
  EXPECT_EQ(usage().tasks, 0);
}

class TaskEnds : public Desk {};

TEST_F(TaskEnds, ByItselfWithItsLastStage) {
  scheduler_.task_arrived(1.0, 1, "flow");
  for (const char* name : {"plan", "code", "test"}) {
    EXPECT_EQ(usage().tasks, 1);
    serve(1.0, name, 1, name, 1.0);
    scheduler_.stage_completed(1.0, 1, name);
  }
  EXPECT_EQ(usage().tasks, 0);
  EXPECT_THROW(scheduler_.task_finished(1.0, 1), UnknownId);
  EXPECT_NO_THROW(scheduler_.task_arrived(1.0, 1, "flow")) << "its id is free";
}

TEST_F(TaskEnds, WithItsRequests) {
  for (const bool finished : {false, true}) {
    scheduler_.task_arrived(1.0, 1, "flow");
    scheduler_.request_ready(1.0, 10, 1, "plan", 4, 6);
    scheduler_.request_ready(1.0, 11, 1, "plan", 4, 6);
    decide_and_commit(1.0);
    scheduler_.request_start_failed(1.0, 11);
    finished ? scheduler_.task_finished(1.0, 1) : scheduler_.task_cancelled(1.0, 1);
    EXPECT_EQ(gauges(usage()), (std::vector<std::int64_t>{3, 1, 0, 0, 0, 1, 10, 0, 0}));
    EXPECT_NO_THROW(decide_and_commit(1.0));
    EXPECT_EQ(usage().kv_tokens, 0);
  }
}

TEST_F(TaskEnds, TheWorkflowMayLeaveThen) {
  start();
  EXPECT_THROW(scheduler_.unregister_workflow("flow"), StateError);
  scheduler_.task_cancelled(1.0, 1);
  EXPECT_NO_THROW(scheduler_.unregister_workflow("flow"));
}

TEST_F(TaskEnds, NothingGrowsWithTheNumberOfTasks) {
  scheduler_.register_workflow({"short", {{"only", "plan", {}, 1.0, 1.0}}});
  for (std::int64_t round = 0; round < 600; ++round) {
    const auto now = static_cast<double>(round);
    scheduler_.task_arrived(now, round, "short");
    serve(now, round, round, "only", now);
    scheduler_.stage_completed(now, round, "only");
  }
  decide_and_commit(600.0);
  EXPECT_EQ(gauges(usage()), (std::vector<std::int64_t>{3, 2, 0, 0, 0, 0, 0, 0, 256}));
  const Snapshot out = scheduler_.snapshot(600.0);
  const auto& totals = out.profiles.back().totals_s;
  EXPECT_EQ(totals.size(), 256U);
  EXPECT_EQ(totals.front(), 344.0) << "the latest ones";
}

class AgeScale : public Desk {
 protected:
  void run_task(double now, const Id& task, double service_s) {
    scheduler_.task_arrived(now, task, "flow");
    serve(now, "r", task, "plan", service_s);
    scheduler_.task_finished(now, task);
  }
};

TEST_F(AgeScale, IsTheMeanCriticalPathBeforeAnyTaskHasEnded) {
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 7.0);
  scheduler_.register_workflow({"short", {{"only", "plan", {}, 2.0, 2.0}}});
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 4.5);
  scheduler_.unregister_workflow("flow");
  scheduler_.unregister_workflow("short");
  EXPECT_EQ(scheduler_.age_scale_s(), 0.0);
}

TEST_F(AgeScale, IsAWeightedMeanOfFinishedTasksAfterwards) {
  run_task(1.0, 1, 20.0);
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 20.0);
  run_task(2.0, 2, 30.0);
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 21.0);
  run_task(3.0, 3, 11.0);
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 20.0);
}

TEST_F(AgeScale, CountsAllRequestsOfATask) {
  scheduler_.task_arrived(1.0, 1, "flow");
  serve(1.0, 10, 1, "plan", 2.0);
  serve(1.0, 11, 1, "plan", 3.0);
  scheduler_.stage_completed(1.0, 1, "plan");
  serve(1.0, 12, 1, "code", 4.0);
  scheduler_.stage_completed(1.0, 1, "code");
  scheduler_.stage_skipped(1.0, 1, "test");
  EXPECT_EQ(usage().tasks, 0);
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 9.0);
}

TEST_F(AgeScale, CancelledTasksAndTasksWithoutServiceDoNotCount) {
  scheduler_.task_arrived(1.0, 1, "flow");
  serve(1.0, 10, 1, "plan", 2.0);
  scheduler_.task_cancelled(1.0, 1);
  scheduler_.task_arrived(1.0, 2, "flow");
  scheduler_.task_finished(1.0, 2);
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 7.0);
}

TEST_F(AgeScale, AConstantWins) {
  run_task(1.0, 1, 20.0);
  Config settings = config();
  settings.age_scale_s = 3.0;
  scheduler_.reconfigure(settings);
  EXPECT_EQ(scheduler_.age_scale_s(), 3.0);
  EXPECT_EQ(scheduler_.snapshot(1.0).age_scale_s, 3.0);
  scheduler_.reconfigure(config());
  EXPECT_DOUBLE_EQ(scheduler_.age_scale_s(), 20.0) << "what was observed is still known";
}

class Credits : public Desk {};

TEST_F(Credits, AreStoredAtAdmission) {
  arrive();
  const Decision out = decide_and_commit(8.0);  // seven seconds old, H_age = 7 s: g = 2
  ASSERT_EQ(out.credits.size(), 1U);
  EXPECT_DOUBLE_EQ(out.credits.front().value, 4.0);
  EXPECT_DOUBLE_EQ(out.credits.front().age_factor, 2.0);
  EXPECT_EQ(request(10, 8.0).credit, out.credits.front().value);
  EXPECT_EQ(request(10, 8.0).age_factor_at_admission, out.credits.front().age_factor);
  EXPECT_EQ(request(10, 99.0).credit, out.credits.front().value) << "frozen";
}

TEST_F(Credits, AreClearedWithTheRequest) {
  start();
  EXPECT_EQ(usage().credits, 1);
  scheduler_.request_start_failed(1.0, 10);
  EXPECT_EQ(usage().credits, 0);
  EXPECT_EQ(request(10, 1.0).credit, 0.0);
  EXPECT_FALSE(request(10, 1.0).age_factor_at_admission.has_value());
  decide_and_commit(1.0);
  scheduler_.request_completed(1.0, 10, 1.0);
  EXPECT_EQ(usage().credits, 0);
}

/// A running request whose credit stands between it and a longer task of another agent.
class Contended : public Desk {
 protected:
  Decision contend(bool age_credit) {
    Config settings = config();
    settings.kv_capacity_tokens = 45;
    settings.age_credit = age_credit;
    settings.age_scale_s = 10.0;
    scheduler_.reconfigure(settings);
    scheduler_.register_workflow({"long", {{"only", "code", {}, 90.0, 90.0}}});
    scheduler_.task_arrived(0.0, 1, "flow");
    scheduler_.request_ready(0.0, 10, 1, "plan", 20, 10);
    decide_and_commit(0.0);
    scheduler_.task_arrived(20.0, 2, "long");
    scheduler_.request_ready(20.0, 20, 2, "only", 10, 25);
    return scheduler_.decide(20.0);
  }
};

TEST_F(Contended, ACreditIsRevokedAsItWasGranted) { EXPECT_DOUBLE_EQ(contend(false).terms.revoke, 2.0); }

TEST_F(Contended, ACreditIsRevokedAtItsPresentAge) {
  EXPECT_DOUBLE_EQ(contend(true).terms.revoke, 6.0) << "g was 1 and is 3";
}

TEST_F(Contended, RevokedCreditsAreGone) {
  scheduler_.commit(contend(true));
  EXPECT_EQ(usage().credits, 1) << "of the request that was admitted instead";
  EXPECT_EQ(request(10, 20.0).credit, 0.0);
}

}  // namespace
}  // namespace topas::testing
