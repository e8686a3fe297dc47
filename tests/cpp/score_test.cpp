// The five terms of the score by hand (SPEC section 3).
#include "score.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/world.hpp"
#include "topas/decision.hpp"

namespace topas::testing {
namespace {

using detail::age_factor;
using detail::redo_cost;
using detail::revoke_cost;

TEST(AgeFactor, GrowsWithTheAgeOfTheTask) {
  Config config = plain_config(100);
  config.age_weight = 2.0;
  EXPECT_DOUBLE_EQ(age_factor(config, 4.0, 13.0, 3.0), 6.0);
  EXPECT_EQ(age_factor(config, 4.0, 3.0, 3.0), 1.0);
  EXPECT_EQ(age_factor(config, 4.0, 1.0, 3.0), 1.0) << "an arrival to come is no age";
}

TEST(AgeFactor, IsOneWithoutAgeingOrWithoutAScale) {
  Config config = plain_config(100);
  EXPECT_EQ(age_factor(config, 4.0, 13.0, 3.0), 1.0);
  config.age_weight = 2.0;
  EXPECT_EQ(age_factor(config, 0.0, 13.0, 3.0), 1.0);
}

TEST(RedoCost, IsTheEnginesToSay) {
  Config config = plain_config(100);
  config.decode_s_per_token = 0.5;
  config.prefill_fixed_s = 1.0;
  config.prefill_s_per_token = 0.25;
  config.redo_weight = 2.0;
  EXPECT_DOUBLE_EQ(redo_cost(config, 100, 6), 6.0);
  config.redo_model = RedoModel::prefill;
  EXPECT_DOUBLE_EQ(redo_cost(config, 10, 6), 10.0);
  config.redo_model = RedoModel::kept;
  EXPECT_EQ(redo_cost(config, 10, 6), 0.0);
}

TEST(RevokeCost, AgesWithTheTaskOnlyWhenAsked) {
  Config config = plain_config(100);
  EXPECT_EQ(revoke_cost(config, 3.0, 4.0, 2.0), 3.0);
  config.age_credit = true;
  EXPECT_DOUBLE_EQ(revoke_cost(config, 3.0, 4.0, 2.0), 6.0);
  EXPECT_DOUBLE_EQ(revoke_cost(config, 3.0, 1.0, 2.0), 3.0) << "never below what was granted";
}

TEST(Backlog, WeighsServicesByTheRoomThatTheQueueWouldTake) {
  Config config = plain_config(100);
  config.gain_model = GainModel::service;
  config.backlog_weight = 2.0;
  World world(config);
  const auto queued = world.agent(60);
  const auto runs = world.agent(50, true);
  const auto task = world.task({1.0});
  world.waiting(1, queued, task, 10, 3.0);
  world.waiting(2, queued, task, 30, 4.0);
  world.waiting(3, queued, task, 41, 1.0);  // it can never fit
  world.running(4, runs, task, 25, 5.0, 7.0);
  const auto& instance = world.build();
  EXPECT_DOUBLE_EQ(instance.agents[queued].backlog, 1.0 + 2.0 * 40 / 40);
  EXPECT_DOUBLE_EQ(instance.worth(instance.waiting[world.waiting_index(2)]), 3.0 * 4.0);
  EXPECT_DOUBLE_EQ(instance.agents[runs].revoke, (1.0 + 2.0 * 25 / 50) * 7.0) << "its own";
  EXPECT_DOUBLE_EQ(instance.agents[runs].redo, 3.0 * 5.0) << "the greatest";
}

TEST(Score, MovesOnceForEachTaskThatWaitsForAnIncomingPrefix) {
  World world(plain_config(1000));
  const auto in = world.agent(30);
  const auto stays = world.agent(50, true);
  world.agent(40, true);   // leaves
  world.idle_resident(5);  // leaves too
  const auto task = world.task({1.0});
  const auto other = world.task({1.0});
  world.waiting(1, in, task, 1, 1.0);
  world.waiting(2, in, task, 1, 1.0);
  world.waiting(3, in, other, 1, 1.0);
  world.waiting(4, stays, world.task({1.0}), 1, 1.0);
  const auto& instance = world.build();
  detail::Score score(instance);
  const std::vector<std::uint32_t> members{in, stays};
  score.start(members, {1, 1, 0});
  EXPECT_EQ(score.terms(), Terms{}) << "nobody waits for it yet";
  score.admit(instance.waiting[world.waiting_index(4)], 1.0);
  EXPECT_EQ(score.terms().move, 0.0) << "its prefix is resident";
  score.admit(instance.waiting[world.waiting_index(1)], 1.0);
  EXPECT_DOUBLE_EQ(score.terms().move, 0.75);
  score.admit(instance.waiting[world.waiting_index(2)], 1.0);
  EXPECT_DOUBLE_EQ(score.terms().move, 0.75) << "the same task";
  score.admit(instance.waiting[world.waiting_index(3)], 1.0);
  EXPECT_DOUBLE_EQ(score.terms().move, 1.5);
  EXPECT_DOUBLE_EQ(score.terms().admit, 4.0);
  score.start(members, {1, 1, 0});
  score.admit(instance.waiting[world.waiting_index(3)], 1.0);
  EXPECT_DOUBLE_EQ(score.terms().move, 0.75) << "nothing is left of the candidate before";
}

TEST(Score, MovesOnceWhoeverWaitsWhenTheEngineDoes) {
  Config config = plain_config(1000);
  config.move_model = MoveModel::once;
  config.move_weight = 4.0;
  World world(config);
  const auto in = world.agent(30);
  for (const auto id : {1, 2}) {
    world.waiting(id, in, world.task({1.0}), 1, 1.0);
  }
  const auto& instance = world.build();
  detail::Score score(instance);
  score.start(std::vector<std::uint32_t>{in}, {1});
  EXPECT_EQ(score.terms().move, 0.0);
  for (const auto id : {1, 2}) {
    score.admit(instance.waiting[world.waiting_index(id)], 1.0);
    EXPECT_DOUBLE_EQ(score.terms().move, 4.0 * 0.3);
  }
}

TEST(Score, IsTheSumOfItsTerms) { EXPECT_DOUBLE_EQ((Terms{10.0, 5.0, 1.0, 2.0, 4.0}).score(), 8.0); }

/// Stages by agent, predecessors and whether they are completed; totals and requests take one second.
struct Plan {
  Id agent;
  std::vector<std::uint32_t> after;
  bool completed = false;
};

Snapshot snapshot_of(const std::vector<Plan>& stages) {
  Snapshot out;
  out.now = 10.0;
  out.profiles = {{"p", {1.0}, 1.0}};
  out.tasks = {{"t", 0.0, {}}};
  for (const auto& [agent, after, completed] : stages) {
    const auto known = [&agent = agent](const auto& state) { return state.id == agent; };
    if (std::none_of(out.agents.begin(), out.agents.end(), known)) {
      out.agents.push_back({agent, 100});
    }
    out.tasks.front().stages.push_back({agent, after, "p", completed, 0.0});
  }
  return out;
}

void add_request(Snapshot& snapshot, Id id, std::uint32_t stage, bool running) {
  snapshot.requests.push_back(
      make_request(std::move(id), "t", stage, snapshot.tasks.front().stages[stage].agent, 1, 1.0));
  snapshot.requests.back().running = running;
}

/// J_reuse of the set of all active agents; 100 tokens take one second to move.
double reuse_of(const Snapshot& snapshot, double weight = 1.0) {
  Config config = plain_config(100'000);
  config.reuse_weight = weight;
  double most = 0.0;
  for (const auto& candidate : explain(snapshot, config, 100).candidates) {
    most = std::max(most, candidate.terms.reuse);
  }
  return most;
}

TEST(Reuse, EveryForkChildOfARunningStageCounts) {
  Snapshot snapshot = snapshot_of({{"a", {}}, {"b", {0}}, {"b", {0}}, {"a", {0}}});
  add_request(snapshot, 1, 0, true);
  snapshot.tasks.push_back(snapshot.tasks.front());
  snapshot.tasks.back().id = "u";
  snapshot.requests.push_back(make_request(2, "u", 1, "b", 1));  // makes agent b active
  EXPECT_DOUBLE_EQ(reuse_of(snapshot), 3.0);
  EXPECT_DOUBLE_EQ(reuse_of(snapshot, 0.5), 1.5);
}

TEST(Reuse, OnlyActiveAgentsAreThereToBeReused) {
  Snapshot snapshot = snapshot_of({{"a", {}}, {"b", {0}}});
  add_request(snapshot, 1, 0, true);
  EXPECT_EQ(reuse_of(snapshot), 0.0);
}

TEST(Reuse, ThePredecessorMustRun) {
  Snapshot snapshot = snapshot_of({{"a", {}}, {"a", {0}}});
  add_request(snapshot, 1, 0, false);
  EXPECT_EQ(reuse_of(snapshot), 0.0);
  add_request(snapshot, 2, 0, true);
  EXPECT_DOUBLE_EQ(reuse_of(snapshot), 1.0);
  add_request(snapshot, 3, 0, true);
  EXPECT_DOUBLE_EQ(reuse_of(snapshot), 1.0) << "two requests of one stage lead to one next stage";
}

TEST(Reuse, TheJoinWaitsForItsLastPredecessor) {
  Snapshot snapshot = snapshot_of({{"a", {}}, {"a", {}}, {"a", {0, 1}}});
  add_request(snapshot, 1, 0, true);
  add_request(snapshot, 2, 1, true);
  EXPECT_EQ(reuse_of(snapshot), 0.0);
  snapshot.requests.pop_back();
  snapshot.tasks.front().stages[1].completed = true;
  EXPECT_DOUBLE_EQ(reuse_of(snapshot), 1.0);
}

TEST(Reuse, CompletedAndRunningStagesDoNotCount) {
  Snapshot snapshot = snapshot_of({{"a", {}}, {"a", {0}}, {"a", {0}}, {"a", {0}}});
  add_request(snapshot, 1, 0, true);
  EXPECT_DOUBLE_EQ(reuse_of(snapshot), 3.0);
  snapshot.tasks.front().stages[1].completed = true;
  add_request(snapshot, 2, 2, true);
  EXPECT_DOUBLE_EQ(reuse_of(snapshot), 1.0);
}

/// Two agents with one task each: the running one of "a" costs something to preempt.
Snapshot contended() {
  Snapshot out;
  out.now = 10.0;
  out.age_scale_s = 5.0;
  out.agents = {{"a", 10}, {"b", 20}};
  out.profiles = {{"p", {8.0}, 8.0}};
  out.tasks = {{1, 0.0, {{"a", {}, "p", false, 0.0}}}, {2, 5.0, {{"b", {}, "p", false, 0.0}}}};
  RequestState running = make_request("r", 1, 0, "a", 30, 8.0);
  running.input_tokens = 4;
  running.running = true;
  running.generated_tokens = 6;
  running.credit = 2.0;
  running.age_factor_at_admission = 1.5;
  out.requests = {running, make_request("w", 2, 0, "b", 30, 3.0)};
  out.resident = {"a"};
  return out;
}

Terms terms_of(const Explanation& explanation, const std::vector<Id>& resident) {
  for (const auto& candidate : explanation.candidates) {
    if (candidate.resident == resident) {
      return candidate.terms;
    }
  }
  ADD_FAILURE() << "no such candidate";
  return {};
}

TEST(Score, EveryTermOfADecisionByHand) {
  Config config = plain_config(1000);
  config.age_weight = 1.0;
  const Explanation paper = explain(contended(), config, 100);
  // g = 1 + 5/5 = 2 for the waiting task; prefix b in: 0.2 s; a out: 0.1 s; six tokens decoded again: 3 s.
  EXPECT_EQ(terms_of(paper, {"a"}), (Terms{0.0, 0.0, 0.0, 0.0, 0.0}));
  EXPECT_EQ(terms_of(paper, {"a", "b"}), (Terms{6.0, 0.0, 0.2, 0.0, 0.0}));
  const Terms swapped = terms_of(paper, {"b"});
  EXPECT_DOUBLE_EQ(swapped.admit, 6.0);
  EXPECT_DOUBLE_EQ(swapped.move, 0.3);
  EXPECT_DOUBLE_EQ(swapped.redo, 3.0);
  EXPECT_DOUBLE_EQ(swapped.revoke, 2.0);
  EXPECT_EQ(terms_of(paper, {}).move, 0.0) << "nobody waits for a prefix";
}

TEST(Score, TheGuardMakesPreemptionDearer) {
  Config config = plain_config(1000);
  config.age_weight = 1.0;
  config.age_credit = true;
  config.redo_weight = 3.0;
  config.redo_model = RedoModel::prefill;
  config.prefill_s_per_token = 0.1;
  const Terms swapped = terms_of(explain(contended(), config, 100), {"b"});
  EXPECT_DOUBLE_EQ(swapped.redo, 3.0);    // 3 * 0.1 * (4 + 6)
  EXPECT_DOUBLE_EQ(swapped.revoke, 4.0);  // g is 3 now and was 1.5
}

TEST(Score, ACreditWithoutItsAgeFactorIsNotAged) {
  Config config = plain_config(1000);
  config.age_weight = 1.0;
  config.age_credit = true;
  Snapshot snapshot = contended();
  snapshot.requests.front().age_factor_at_admission.reset();
  EXPECT_DOUBLE_EQ(terms_of(explain(snapshot, config, 100), {"b"}).revoke, 2.0);
}

}  // namespace
}  // namespace topas::testing
