// The pure door: what a decision says, and that it depends on nothing but its arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "support/refusal.hpp"
#include "support/world.hpp"
#include "topas/decision.hpp"
#include "topas/error.hpp"

namespace topas::testing {
namespace {

using Ids = std::vector<Id>;

/// Agents "a" (10 tokens), "b" (20) and "c" (30); tasks 1, 2, 3 of one stage for each, four seconds long.
Snapshot three_tasks() {
  Snapshot out;
  out.now = 5.0;
  out.agents = {{"a", 10}, {"b", 20}, {"c", 30}};
  out.profiles = {{"p", {4.0}, 4.0}};
  std::int64_t task = 0;
  for (const char* agent : {"a", "b", "c"}) {
    out.tasks.push_back({++task, 0.0, {{agent, {}, "p", false, 0.0}}});
  }
  return out;
}

RequestState request(Id id, std::int64_t task, Id agent, std::int64_t kv_tokens, bool running = false) {
  RequestState out = make_request(std::move(id), task, 0, std::move(agent), kv_tokens, 4.0);
  out.running = running;
  return out;
}

TEST(Decide, SaysWhatIsLoadedDroppedAdmittedAndPreempted) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request("w2", 2, "b", 40), request("r1", 1, "a", 5, true), request("w3", 3, "c", 50)};
  snapshot.resident = {"b", "a"};
  const Decision out = decide(snapshot, plain_config(110));  // c fits beside neither
  EXPECT_EQ(out.now, 5.0);
  EXPECT_EQ(out.state_version, 0U);
  EXPECT_EQ(out.resident, (Ids{"a", "b"}));
  EXPECT_EQ(out.admit, Ids{"w2"});
  EXPECT_TRUE(out.preempt.empty());
  EXPECT_TRUE(out.load.empty());
  EXPECT_TRUE(out.drop.empty());
  EXPECT_EQ(out.credits, (std::vector<Credit>{{"w2", 4.0, 1.0}}));
  EXPECT_DOUBLE_EQ(out.score(), 4.0);
}

TEST(Decide, PreemptsWhenItPays) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request("r1", 1, "a", 50, true), request("w3", 3, "c", 70)};
  snapshot.requests.front().generated_tokens = 1;  // half a second
  snapshot.resident = {"a"};
  const Decision out = decide(snapshot, plain_config(100));
  EXPECT_EQ(out.resident, Ids{"c"});
  EXPECT_EQ(out.preempt, Ids{"r1"});
  EXPECT_EQ(out.load, Ids{"c"});
  EXPECT_EQ(out.drop, Ids{"a"});
  EXPECT_DOUBLE_EQ(out.score(), 4.0 - 0.4 - 0.5);
}

TEST(Decide, IdlePrefixesLeave) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request("w1", 1, "a", 5)};
  snapshot.resident = {"c", "b"};
  const Decision out = decide(snapshot, plain_config(110));
  EXPECT_EQ(out.resident, Ids{"a"});
  EXPECT_EQ(out.drop, (Ids{"b", "c"}));
  EXPECT_DOUBLE_EQ(out.terms.move, 0.6) << "in 10, out 20 and 30";
}

TEST(Decide, WorkGoesOnEvenAtALoss) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request("w1", 1, "a", 5)};
  snapshot.requests.front().expected_service_s = 0.0;
  const Decision out = decide(snapshot, plain_config(110));
  EXPECT_EQ(out.admit, Ids{"w1"});
  EXPECT_LT(out.score(), 0.0);
}

TEST(Decide, AnImpossibleRequestIsNamedAndBlocksNobody) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request(9, 1, "a", 91), request(8, 1, "a", 90), request(7, 2, "b", 1000),
                       request(6, 3, "c", 100)};
  const Decision out = decide(snapshot, plain_config(100));
  EXPECT_EQ(out.unschedulable, (Ids{6, 7, 9}));
  EXPECT_EQ(out.admit, Ids{8});
}

TEST(Decide, AnImpossibleRequestOfAnAgentLeavesItsOthersAlone) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request(1, 1, "a", 1000), request(2, 1, "a", 5, true), request(3, 1, "a", 5)};
  snapshot.resident = {"a"};
  const Decision out = decide(snapshot, plain_config(100));
  EXPECT_EQ(out.unschedulable, Ids{1});
  EXPECT_EQ(out.admit, Ids{3});
}

TEST(Decide, WhatRunsGoesOnWhenNothingIsFeasible) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request(1, 1, "a", 50, true), request(2, 1, "a", 50, true), request(3, 2, "b", 5)};
  snapshot.resident = {"a", "c"};
  Config config = plain_config(100);  // more is running than fits, and it may not all be preempted
  config.action_cap = 1;
  const Decision out = decide(snapshot, config);
  EXPECT_EQ(out.resident, Ids{"a"});
  EXPECT_EQ(out.drop, Ids{"c"}) << "an idle prefix";
  EXPECT_TRUE(out.admit.empty() && out.preempt.empty() && out.load.empty());
  EXPECT_EQ(out.evaluated_sets, 0U);
}

TEST(Decide, WithoutRequestsNothingStays) {
  Snapshot snapshot = three_tasks();
  snapshot.resident = {"a"};
  const Decision out = decide(snapshot, plain_config(100));
  EXPECT_TRUE(out.resident.empty());
  EXPECT_EQ(out.drop, Ids{"a"});
}

TEST(Decide, NeedsAnAgeScaleOnlyWhenItAges) {
  Snapshot snapshot = three_tasks();
  snapshot.requests = {request("w1", 1, "a", 5)};
  Config config = plain_config(100);
  EXPECT_NO_THROW(decide(snapshot, config));
  config.age_weight = 1.0;
  const auto message = refusal<ConfigError>([&] { return decide(snapshot, config); });
  EXPECT_EQ(message.rfind("age_scale_s: ", 0), 0U);
  snapshot.age_scale_s = 5.0;
  EXPECT_EQ(decide(snapshot, config).credits.front().age_factor, 2.0);
  config.age_scale_s = 1.0;
  EXPECT_EQ(decide(snapshot, config).credits.front().age_factor, 6.0) << "the config's constant wins";
}

TEST(Decide, RefusesABadConfig) {
  Config config = plain_config(100);
  config.samples = -1;
  refusal<ConfigError>([&] { return decide(three_tasks(), config); });
  refusal<ConfigError>([&] { return explain(three_tasks(), config, 1); });
  refusal<ConfigError>([&] { return expected_longest_path(three_tasks(), config, 1, {}); });
}

TEST(Decide, WithoutSamplesWhatCannotBeEnumeratedIsRefused) {
  Snapshot snapshot = three_tasks();
  snapshot.profiles.front().totals_s = {1.0, 2.0, 3.0};
  snapshot.requests = {request("w1", 1, "a", 5)};
  Config config = plain_config(100);
  config.samples = 0;
  config.exact_limit = 3;
  EXPECT_NO_THROW(decide(snapshot, config));
  config.exact_limit = 2;
  const auto message = refusal<CapacityError>([&] { return decide(snapshot, config); });
  EXPECT_EQ(message.rfind("task 1: ", 0), 0U) << message;
  EXPECT_NE(message.find("exact_limit = 2"), std::string::npos) << message;
}

template <class Values>
void shuffle(Random& random, Values& values) {
  for (std::size_t last = values.size(); last > 1; --last) {
    std::swap(values[last - 1], values[random.below(last)]);
  }
}

TEST(Decide, DoesNotDependOnTheOrderOfAnyList) {
  Random random(71);
  for (int round = 0; round < 150; ++round) {
    const Config config = random_config(random);
    const Snapshot snapshot = random_snapshot(random, {.string_ids = random.chance(0.5)});
    Snapshot mixed = snapshot;
    shuffle(random, mixed.agents);
    shuffle(random, mixed.profiles);
    shuffle(random, mixed.tasks);
    shuffle(random, mixed.requests);
    shuffle(random, mixed.resident);
    for (auto& profile : mixed.profiles) {
      shuffle(random, profile.totals_s);
    }
    ASSERT_EQ(decide(mixed, config), decide(snapshot, config)) << "round " << round;
  }
}

TEST(Decide, OtherTasksWithoutRequestsChangeNothing) {
  Random random(72);
  for (int round = 0; round < 50; ++round) {
    const Config config = random_config(random);
    Snapshot snapshot = random_snapshot(random, {});
    const Decision before = decide(snapshot, config);
    snapshot.tasks.push_back(snapshot.tasks.front());
    snapshot.tasks.back().id = "idle";
    ASSERT_EQ(decide(snapshot, config), before) << "round " << round;
  }
}

/// Everything that SPEC section 1 calls feasible.
void expect_feasible(const Snapshot& snapshot, const Config& config, const Decision& out) {
  std::int64_t tokens = 0;
  std::set<Id> served;
  std::int64_t running = 0;
  for (const auto& request : snapshot.requests) {
    const bool admitted = std::count(out.admit.begin(), out.admit.end(), request.id) > 0;
    const bool preempted = std::count(out.preempt.begin(), out.preempt.end(), request.id) > 0;
    ASSERT_FALSE(admitted && request.running);
    ASSERT_FALSE(preempted && !request.running);
    if (admitted || (request.running && !preempted)) {
      tokens += request.kv_tokens;
      served.insert(request.agent);
      ++running;
    }
  }
  for (const auto& agent : snapshot.agents) {
    tokens += std::count(out.resident.begin(), out.resident.end(), agent.id) > 0 ? agent.prefix_tokens : 0;
  }
  ASSERT_EQ(Ids(served.begin(), served.end()), out.resident) << "no idle prefix, none missing";
  ASSERT_LE(tokens, config.kv_capacity_tokens);
  ASSERT_TRUE(config.max_running_requests == 0 || running <= config.max_running_requests);
  const auto most = static_cast<std::int64_t>(std::max(out.admit.size(), out.preempt.size()));
  ASSERT_TRUE(config.action_cap == 0 || most <= config.action_cap);
}

TEST(Decide, IsFeasibleOnRandomSnapshots) {
  Random random(73);
  int admissions = 0;
  for (int round = 0; round < 600; ++round) {
    const Config config = random_config(random);
    const Snapshot snapshot = random_snapshot(random, {.string_ids = random.chance(0.5)});
    const Decision out = decide(snapshot, config);
    if (!explain(snapshot, config, 1).candidates.empty()) {  // something is feasible
      ASSERT_NO_FATAL_FAILURE(expect_feasible(snapshot, config, out)) << "round " << round;
    }
    admissions += static_cast<int>(out.admit.size());
  }
  EXPECT_GT(admissions, 600);
}

TEST(ExpectedLongestPath, ByHand) {
  Snapshot snapshot = three_tasks();
  snapshot.profiles.push_back({"q", {1.0, 3.0}, 2.0});
  snapshot.tasks.front().stages.push_back({"b", {0}, "q", false, 0.0});
  snapshot.requests = {request("w", 1, "a", 5)};
  snapshot.requests.front().expected_service_s = 1.5;
  EXPECT_DOUBLE_EQ(expected_longest_path(snapshot, plain_config(100), 1, {}), 6.0);
  EXPECT_DOUBLE_EQ(expected_longest_path(snapshot, plain_config(100), 1, {"w"}), 4.5);
  snapshot.tasks.front().stages[0].completed = true;
  EXPECT_DOUBLE_EQ(expected_longest_path(snapshot, plain_config(100), 1, {}), 2.0);
  snapshot.tasks.front().stages[1].completed = true;
  EXPECT_EQ(expected_longest_path(snapshot, plain_config(100), 1, {"w"}), 0.0);
}

}  // namespace
}  // namespace topas::testing
