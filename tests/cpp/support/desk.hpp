// A scheduler with three agents and a chain of three stages, and a check that a refusal changes nothing.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/event_log.hpp"
#include "support/refusal.hpp"
#include "support/world.hpp"
#include "topas/error.hpp"
#include "topas/scheduler.hpp"

namespace topas::testing {

/// Stages "plan" (2 s), "code" (4 s) and "test" (1 s) of workflow "flow", each of the agent of the same name.
class Desk : public ::testing::Test {
 protected:
  static Config config() {
    Config out = plain_config(1000);
    out.age_weight = 1.0;
    return out;
  }
  static Workflow chain() {
    return {
        "flow",
        {{"plan", "plan", {}, 2.0, 2.0}, {"code", "code", {"plan"}, 4.0, 4.0}, {"test", "test", {"code"}, 1.0, 1.0}}};
  }

  Desk() {
    for (const char* agent : {"plan", "code", "test"}) {
      scheduler_.register_agent(agent, 10);
    }
    scheduler_.register_workflow(chain());
  }

  /// Task 1 with a waiting request 10 of its first stage, at time 1.
  void arrive() {
    scheduler_.task_arrived(1.0, 1, "flow");
    scheduler_.request_ready(1.0, 10, 1, "plan", 4, 6);
  }
  Decision decide_and_commit(double now) {
    Decision out = scheduler_.decide(now);
    scheduler_.commit(out);
    return out;
  }
  /// Task 1 with its request 10 running, at time 1.
  void start() {
    arrive();
    decide_and_commit(1.0);
  }
  /// A request of the stage is made ready, started and completed.
  void serve(double now, Id request, const Id& task, const Id& stage, double service_s) {
    scheduler_.request_ready(now, request, task, stage, 4, 6);
    decide_and_commit(now);
    scheduler_.request_completed(now, request, service_s);
  }

  [[nodiscard]] RequestState request(const Id& id, double now) const {
    for (const auto& state : scheduler_.snapshot(now).requests) {
      if (state.id == id) {
        return state;
      }
    }
    ADD_FAILURE() << "no request " << to_string(id);
    return {};
  }
  [[nodiscard]] Usage usage() const { return scheduler_.usage(); }

  /// The call throws an error of this very type that says `what`, and nothing has changed.
  template <class Error>
  void expect_refused(const std::function<void(Scheduler&)>& call, const std::string& what) {
    constexpr double kLater = 1e6;
    const Decision decision = scheduler_.decide(kLater);
    const Snapshot snapshot = scheduler_.snapshot(kLater);
    const auto before = gauges(usage());
    const auto message = refusal<Error>([&] {
      call(scheduler_);
      return 0;
    });
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_EQ(scheduler_.decide(kLater), decision);
    EXPECT_EQ(scheduler_.snapshot(kLater), snapshot);
    EXPECT_EQ(gauges(usage()), before);
  }

  Scheduler scheduler_{config()};
};

}  // namespace topas::testing
