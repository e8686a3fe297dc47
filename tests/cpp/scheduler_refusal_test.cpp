// Every illegal use throws the right error, names the thing and changes nothing.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "support/desk.hpp"

namespace topas::testing {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kTooMany = (std::int64_t{1} << 48U) + 1;

class Refusal : public Desk {};

TEST_F(Refusal, RegisterAgent) {
  expect_refused<ArgumentError>([](Scheduler& to) { to.register_agent("new", -1); }, "prefix_tokens: must be");
  expect_refused<ArgumentError>([](Scheduler& to) { to.register_agent("new", kTooMany); }, "prefix_tokens: must be");
  arrive();
  expect_refused<StateError>([](Scheduler& to) { to.register_agent("plan", 11); }, "agent 'plan' is in use");
}

TEST_F(Refusal, AResidentAgentKeepsItsPrefix) {
  start();
  scheduler_.task_cancelled(1.0, 1);
  expect_refused<StateError>([](Scheduler& to) { to.register_agent("plan", 11); }, "agent 'plan' is in use");
}

TEST_F(Refusal, UnregisterAgent) {
  expect_refused<UnknownId>([](Scheduler& to) { to.unregister_agent("nobody"); }, "agent 'nobody' is not known");
  expect_refused<StateError>([](Scheduler& to) { to.unregister_agent("plan"); }, "agent 'plan' is in use by 1 stage");
}

TEST_F(Refusal, RegisterWorkflow) {
  expect_refused<StateError>([](Scheduler& to) { to.register_workflow(chain()); },
                             "workflow 'flow' is already registered");
  const Workflow stranger("other", {{"a", "plan", {}, 1.0, 1.0}, {"b", "nobody", {}, 1.0, 1.0}});
  expect_refused<UnknownId>([&](Scheduler& to) { to.register_workflow(stranger); }, "agent 'nobody' is not known");
  scheduler_.unregister_workflow("flow");
  EXPECT_NO_THROW(scheduler_.unregister_agent("plan")) << "the refused workflow does not count";
}

TEST_F(Refusal, UnregisterWorkflow) {
  expect_refused<UnknownId>([](Scheduler& to) { to.unregister_workflow("none"); }, "workflow 'none' is not known");
  arrive();
  expect_refused<StateError>([](Scheduler& to) { to.unregister_workflow("flow"); },
                             "workflow 'flow' has 1 live task(s)");
}

TEST_F(Refusal, TaskArrived) {
  expect_refused<UnknownId>([](Scheduler& to) { to.task_arrived(1.0, 1, "none"); }, "workflow 'none' is not known");
  arrive();
  expect_refused<StateError>([](Scheduler& to) { to.task_arrived(1.0, 1, "flow"); }, "task 1 has already arrived");
}

TEST_F(Refusal, TaskEnds) {
  arrive();
  expect_refused<UnknownId>([](Scheduler& to) { to.task_cancelled(1.0, 2); }, "task 2 is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.task_finished(1.0, "1"); }, "task '1' is not known");
  scheduler_.task_finished(1.0, 1);
  expect_refused<UnknownId>([](Scheduler& to) { to.task_finished(1.0, 1); }, "task 1 is not known");
}

TEST_F(Refusal, RequestReadyOfSomethingUnknown) {
  arrive();
  expect_refused<UnknownId>([](Scheduler& to) { to.request_ready(1.0, 11, 2, "plan", 1, 1); }, "task 2 is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.request_ready(1.0, 11, 1, "pla", 1, 1); }, "no stage 'pla'");
}

TEST_F(Refusal, RequestReadyWithBadTokens) {
  arrive();
  const auto ready = [](std::int64_t input, std::int64_t output) {
    return [=](Scheduler& to) { to.request_ready(1.0, 11, 1, "plan", input, output); };
  };
  expect_refused<ArgumentError>(ready(-1, 5), "input_tokens: ");
  expect_refused<ArgumentError>(ready(kTooMany, 5), "input_tokens: ");
  expect_refused<ArgumentError>(ready(5, -1), "max_new_tokens: ");
  expect_refused<ArgumentError>(ready(5, std::numeric_limits<std::int64_t>::max()), "max_new_tokens: ");
  expect_refused<ArgumentError>(ready(0, 0), "input_tokens + max_new_tokens: ");
  expect_refused<ArgumentError>(ready(kTooMany - 1, kTooMany - 1), "input_tokens + max_new_tokens: ");
}

TEST_F(Refusal, RequestReadyOutOfTurn) {
  arrive();
  expect_refused<StateError>([](Scheduler& to) { to.request_ready(1.0, 10, 1, "plan", 1, 1); },
                             "request 10 is already waiting or running");
  expect_refused<StateError>([](Scheduler& to) { to.request_ready(1.0, 11, 1, "code", 1, 1); },
                             "stage 'code' of task 1 is not ready: send stage_completed or stage_skipped for 'plan'");
  scheduler_.request_aborted(1.0, 10);
  scheduler_.stage_completed(1.0, 1, "plan");
  expect_refused<StateError>([](Scheduler& to) { to.request_ready(1.0, 11, 1, "plan", 1, 1); },
                             "stage 'plan' of task 1 is already completed");
}

TEST_F(Refusal, RequestReadyOfASkippedStage) {
  scheduler_.register_workflow({"pair", {{"a", "plan", {}, 1.0, 1.0}, {"b", "plan", {}, 1.0, 1.0}}});
  scheduler_.task_arrived(1.0, 1, "pair");
  scheduler_.stage_skipped(1.0, 1, "a");
  expect_refused<StateError>([](Scheduler& to) { to.request_ready(1.0, 11, 1, "a", 1, 1); },
                             "stage 'a' of task 1 is already skipped");
}

TEST_F(Refusal, EventsOfAnUnknownRequest) {
  start();
  expect_refused<UnknownId>([](Scheduler& to) { to.request_progress(1.0, "10", 1); }, "request '10' is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.request_completed(1.0, 11, 1.0); }, "request 11 is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.request_aborted(1.0, 11); }, "request 11 is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.request_start_failed(1.0, 11); }, "request 11 is not known");
}

TEST_F(Refusal, EventsThatNeedARunningRequest) {
  arrive();
  const std::string rule = ": request 10 is waiting, not running";
  expect_refused<StateError>([](Scheduler& to) { to.request_progress(1.0, 10, 1); }, "request_progress" + rule);
  expect_refused<StateError>([](Scheduler& to) { to.request_completed(1.0, 10, 1.0); }, "request_completed" + rule);
  expect_refused<StateError>([](Scheduler& to) { to.request_start_failed(1.0, 10); }, "request_start_failed" + rule);
}

TEST_F(Refusal, BadArgumentsOfARunningRequest) {
  start();
  expect_refused<ArgumentError>([](Scheduler& to) { to.request_progress(1.0, 10, -1); }, "generated_tokens: ");
  for (const double bad : {-0.5, kInfinite, kNotANumber}) {
    expect_refused<ArgumentError>([bad](Scheduler& to) { to.request_completed(1.0, 10, bad); }, "service_s: must be");
  }
}

TEST_F(Refusal, ACompletedRequestIsOver) {
  start();
  scheduler_.request_completed(1.0, 10, 1.0);
  expect_refused<UnknownId>([](Scheduler& to) { to.request_completed(1.0, 10, 1.0); }, "request 10 is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.request_aborted(1.0, 10); }, "request 10 is not known");
}

TEST_F(Refusal, StageCompleted) {
  arrive();
  expect_refused<UnknownId>([](Scheduler& to) { to.stage_completed(1.0, 2, "plan"); }, "task 2 is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.stage_completed(1.0, 1, 7); }, "no stage 7");
  expect_refused<StateError>([](Scheduler& to) { to.stage_completed(1.0, 1, "plan"); },
                             "stage 'plan' of task 1 still has 1 live request(s)");
  expect_refused<StateError>([](Scheduler& to) { to.stage_completed(1.0, 1, "code"); },
                             "'code' of task 1 is not ready");
  scheduler_.request_aborted(1.0, 10);
  scheduler_.stage_completed(1.0, 1, "plan");
  expect_refused<StateError>([](Scheduler& to) { to.stage_completed(1.0, 1, "plan"); }, "is already completed");
}

TEST_F(Refusal, StageSkipped) {
  start();
  expect_refused<UnknownId>([](Scheduler& to) { to.stage_skipped(1.0, 2, "plan"); }, "task 2 is not known");
  expect_refused<UnknownId>([](Scheduler& to) { to.stage_skipped(1.0, 1, "none"); }, "no stage 'none'");
  expect_refused<StateError>([](Scheduler& to) { to.stage_skipped(1.0, 1, "plan"); }, "still has 1 live request(s)");
  scheduler_.request_completed(1.0, 10, 1.0);
  scheduler_.stage_completed(1.0, 1, "plan");
  expect_refused<StateError>([](Scheduler& to) { to.stage_skipped(1.0, 1, "plan"); }, "is already completed");
}

TEST_F(Refusal, PrefixEvicted) {
  start();
  expect_refused<UnknownId>([](Scheduler& to) { to.prefix_evicted(1.0, "nobody"); }, "agent 'nobody' is not known");
  expect_refused<StateError>([](Scheduler& to) { to.prefix_evicted(1.0, "code"); },
                             "the prefix of agent 'code' is not resident");
  expect_refused<StateError>([](Scheduler& to) { to.prefix_evicted(1.0, "plan"); }, "agent 'plan' has 1 running");
}

TEST_F(Refusal, RequestStartedAndPrefixLoaded) {
  start();
  expect_refused<UnknownId>([](Scheduler& to) { to.request_started(1.0, 11); }, "request 11 is not known");
  expect_refused<StateError>([](Scheduler& to) { to.request_started(1.0, 10); }, "request 10 is already running");
  expect_refused<UnknownId>([](Scheduler& to) { to.prefix_loaded(1.0, "nobody"); }, "agent 'nobody' is not known");
  expect_refused<StateError>([](Scheduler& to) { to.prefix_loaded(1.0, "plan"); }, "'plan' is already resident");
}

TEST_F(Refusal, PrefixChanged) {
  start();
  const auto change = [](const char* agent, std::int64_t tokens) {
    return [=](Scheduler& to) { to.prefix_changed(1.0, agent, tokens); };
  };
  expect_refused<UnknownId>(change("nobody", 5), "agent 'nobody' is not known");
  expect_refused<ArgumentError>(change("plan", -1), "prefix_tokens: must be");
  expect_refused<ArgumentError>(change("plan", kTooMany), "prefix_tokens: must be");
  expect_refused<StateError>(change("plan", 15), "request 10 has 14 input tokens in all");
  scheduler_.request_ready(1.0, 11, 1, "plan", 3, 0);
  expect_refused<StateError>(change("plan", 13), "nothing would be left");
  EXPECT_NO_THROW(scheduler_.prefix_changed(1.0, "plan", 12));
}

TEST_F(Refusal, ATaskCannotBeYoungerThanItsArrival) {
  for (const double bad : {1.5, kInfinite, -kInfinite, kNotANumber}) {
    expect_refused<ArgumentError>([bad](Scheduler& to) { to.task_arrived(1.0, 1, "flow", bad); }, "since: must be");
  }
}

TEST_F(Refusal, Reconfigure) {
  Config bad = config();
  bad.samples = -1;
  expect_refused<ConfigError>([&](Scheduler& to) { to.reconfigure(bad); }, "samples: ");
  EXPECT_EQ(refusal<ConfigError>([&] { return Scheduler(bad); }).rfind("samples: ", 0), 0U);
  EXPECT_EQ(scheduler_.config().samples, config().samples);
}

using TimedCall = void (*)(Scheduler&, double);

/// Every call with a time, each of them legal but for it.
constexpr TimedCall kTimedCalls[] = {
    [](Scheduler& to, double now) { to.task_arrived(now, 5, "flow"); },
    [](Scheduler& to, double now) { to.task_cancelled(now, 1); },
    [](Scheduler& to, double now) { to.task_finished(now, 1); },
    [](Scheduler& to, double now) { to.request_ready(now, 11, 1, "plan", 1, 1); },
    [](Scheduler& to, double now) { to.request_progress(now, 10, 1); },
    [](Scheduler& to, double now) { to.request_completed(now, 10, 1.0); },
    [](Scheduler& to, double now) { to.request_aborted(now, 10); },
    [](Scheduler& to, double now) { to.request_start_failed(now, 10); },
    [](Scheduler& to, double now) { to.stage_completed(now, 2, "plan"); },
    [](Scheduler& to, double now) { to.stage_skipped(now, 2, "plan"); },
    [](Scheduler& to, double now) { to.prefix_evicted(now, "code"); },
    [](Scheduler& to, double now) { to.prefix_changed(now, "code", 5); },
    [](Scheduler& to, double now) { static_cast<void>(to.decide(now)); },
    [](Scheduler& to, double now) { static_cast<void>(to.snapshot(now)); },
};

TEST_F(Refusal, TheClockNeverGoesBack) {
  start();
  scheduler_.task_arrived(3.0, 2, "flow");
  for (const auto call : kTimedCalls) {
    expect_refused<StateError>([call](Scheduler& to) { call(to, 2.5); }, "the clock went back from 3 to 2.5");
    for (const double bad : {kInfinite, kNotANumber}) {
      expect_refused<ArgumentError>([call, bad](Scheduler& to) { call(to, bad); }, "now: must be finite");
    }
  }
}

TEST_F(Refusal, TheSameTimeIsNotBack) {
  start();
  EXPECT_NO_THROW(scheduler_.task_arrived(1.0, 2, "flow"));
}

TEST_F(Refusal, ANegativeTimeIsATime) { EXPECT_NO_THROW(scheduler_.task_arrived(-5.0, 2, "flow")); }

class StaleCommit : public Desk {
 protected:
  void expect_stale(const Decision& decision) {
    expect_refused<StateError>([&](Scheduler& to) { to.commit(decision); },
                               "commit: the state has changed since the decision was made");
  }
};

TEST_F(StaleCommit, AfterAnyEvent) {
  arrive();
  const Decision decision = scheduler_.decide(1.0);
  scheduler_.task_arrived(1.0, 2, "flow");
  expect_stale(decision);
}

TEST_F(StaleCommit, AfterARegistration) {
  arrive();
  const Decision decision = scheduler_.decide(1.0);
  scheduler_.register_agent("new", 5);
  expect_stale(decision);
}

TEST_F(StaleCommit, AfterNewSettings) {
  arrive();
  const Decision decision = scheduler_.decide(1.0);
  scheduler_.reconfigure(config());
  expect_stale(decision);
}

TEST_F(StaleCommit, ASecondTime) {
  arrive();
  const Decision decision = scheduler_.decide(1.0);
  scheduler_.commit(decision);
  expect_stale(decision);
}

TEST_F(StaleCommit, OfThePureDoor) {
  arrive();
  expect_stale(decide(scheduler_.snapshot(1.0), config()));
}

TEST_F(StaleCommit, NotAfterARefusal) {
  arrive();
  const Decision decision = scheduler_.decide(1.0);
  EXPECT_THROW(scheduler_.task_arrived(1.0, 1, "flow"), StateError);
  EXPECT_NO_THROW(scheduler_.commit(decision));
}

TEST_F(StaleCommit, NotAfterAnotherDecision) {
  arrive();
  const Decision decision = scheduler_.decide(1.0);
  static_cast<void>(scheduler_.decide(7.0));
  EXPECT_NO_THROW(scheduler_.commit(decision)) << "to decide changes nothing, not even the clock";
}

/// A decision that carries the right version but was not made for this state: another scheduler's, or written by hand.
class ForeignCommit : public Desk {
 protected:
  Decision present() {
    Decision out = scheduler_.decide(1.0);
    EXPECT_NE(out.state_version, 0U);
    return out;
  }
};

TEST_F(ForeignCommit, UnknownIdsAreNamed) {
  start();
  const Decision fresh = present();
  Decision decision = fresh;
  decision.preempt = {99};
  expect_refused<UnknownId>([&](Scheduler& to) { to.commit(decision); }, "request 99 is not known");
  decision = fresh;
  decision.preempt = {10};
  decision.admit = {98};
  decision.credits = {{98, 1.0, 1.0}};
  expect_refused<UnknownId>([&](Scheduler& to) { to.commit(decision); }, "request 98 is not known");
  decision = fresh;
  decision.preempt = {10};
  decision.drop = {"nobody"};
  expect_refused<UnknownId>([&](Scheduler& to) { to.commit(decision); }, "agent 'nobody' is not known");
  decision = fresh;
  decision.load = {"nobody"};
  expect_refused<UnknownId>([&](Scheduler& to) { to.commit(decision); }, "agent 'nobody' is not known");
}

TEST_F(ForeignCommit, OnlyWhatRunsIsPreempted) {
  arrive();
  Decision decision = present();
  decision.preempt = {10};
  expect_refused<StateError>([&](Scheduler& to) { to.commit(decision); }, "request 10");
  scheduler_.commit(present());
  decision = present();
  decision.preempt = {10, 10};
  expect_refused<StateError>([&](Scheduler& to) { to.commit(decision); }, "request 10");
}

TEST_F(ForeignCommit, OnlyWhatWaitsIsAdmitted) {
  arrive();
  Decision decision = present();
  decision.credits.push_back(decision.credits.front());
  decision.admit.push_back(decision.admit.front());
  expect_refused<StateError>([&](Scheduler& to) { to.commit(decision); }, "request 10");
  scheduler_.commit(present());
  decision = present();
  decision.admit = {10};
  decision.credits = {{10, 1.0, 1.0}};
  expect_refused<StateError>([&](Scheduler& to) { to.commit(decision); }, "request 10");
}

TEST_F(ForeignCommit, OnlyWhatIsResidentLeavesAndOnlyWhatIsNotComes) {
  start();
  Decision decision = present();
  decision.load = {"plan"};
  expect_refused<StateError>([&](Scheduler& to) { to.commit(decision); }, "the prefix of agent 'plan' is already");
  decision = present();
  decision.drop = {"code"};
  expect_refused<StateError>([&](Scheduler& to) { to.commit(decision); }, "the prefix of agent 'code' is not");
}

TEST_F(ForeignCommit, AnotherRankInTheSameStateIsWelcome) {
  arrive();
  Scheduler other(config());
  for (const char* agent : {"plan", "code", "test"}) {
    other.register_agent(agent, 10);
  }
  other.register_workflow(chain());
  other.task_arrived(1.0, 1, "flow");
  other.request_ready(1.0, 10, 1, "plan", 4, 6);
  EXPECT_EQ(other.decide(1.0), scheduler_.decide(1.0));
  scheduler_.commit(other.decide(1.0));
  EXPECT_EQ(usage().running, 1);
}

}  // namespace
}  // namespace topas::testing
