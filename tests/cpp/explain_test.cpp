// Explanations: the same decision, its rivals, and why a request was left waiting.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/world.hpp"
#include "topas/decision.hpp"

namespace topas::testing {
namespace {

/// Two agents of ten tokens with a task of one stage each, eight seconds long.
Snapshot two_agents() {
  Snapshot out;
  out.agents = {{"a", 10}, {"b", 10}};
  out.profiles = {{"p", {8.0}, 8.0}};
  out.tasks = {{1, 0.0, {{"a", {}, "p", false, 0.0}}}, {2, 0.0, {{"b", {}, "p", false, 0.0}}}};
  return out;
}

void add_waiting(Snapshot& snapshot, Id id, std::int64_t task, std::int64_t kv_tokens, double service_s) {
  snapshot.requests.push_back(make_request(std::move(id), task, 0, task == 1 ? "a" : "b", kv_tokens, service_s));
}

const LeftWaiting& entry_of(const Explanation& out, const Id& request) {
  static const LeftWaiting kNone{};
  const auto found = std::find_if(out.left_waiting.begin(), out.left_waiting.end(),
                                  [&request](const auto& entry) { return entry.request == request; });
  EXPECT_NE(found, out.left_waiting.end());
  return found == out.left_waiting.end() ? kNone : *found;
}

TEST(Explain, MakesTheSameDecision) {
  Random random(81);
  for (int round = 0; round < 200; ++round) {
    const Config config = random_config(random);
    const Snapshot snapshot = random_snapshot(random, {.string_ids = random.chance(0.5)});
    ASSERT_EQ(explain(snapshot, config, 3).decision, decide(snapshot, config)) << "round " << round;
  }
}

TEST(Explain, AccountsForEveryWaitingRequest) {
  Random random(82);
  for (int round = 0; round < 200; ++round) {
    const Config config = random_config(random);
    const Snapshot snapshot = random_snapshot(random, {});
    const Explanation out = explain(snapshot, config, 1);
    std::vector<Id> left;
    for (const auto& request : snapshot.requests) {
      const auto& admit = out.decision.admit;
      if (!request.running && std::find(admit.begin(), admit.end(), request.id) == admit.end()) {
        left.push_back(request.id);
      }
    }
    std::sort(left.begin(), left.end());
    std::vector<Id> explained;
    for (const auto& entry : out.left_waiting) {
      explained.push_back(entry.request);
    }
    ASSERT_EQ(explained, left) << "round " << round;
  }
}

TEST(Explain, TheChosenCandidateIsFirstAndTheOthersFollowByScore) {
  Random random(83);
  for (int round = 0; round < 100; ++round) {
    Config config = random_config(random);
    config.work_conserving = false;  // candidates are not filled
    const Explanation out = explain(random_snapshot(random, {}), config, 1000);
    if (out.candidates.empty()) {
      continue;
    }
    const CandidateState& first = out.candidates.front();
    ASSERT_EQ(first.resident, out.decision.resident);
    ASSERT_EQ(first.admit, out.decision.admit);
    ASSERT_EQ(first.preempt, out.decision.preempt);
    ASSERT_EQ(first.terms, out.decision.terms);
    const auto worse = [](const auto& a, const auto& b) { return a.terms.score() > b.terms.score(); };
    const auto last = std::find_if(out.candidates.begin() + 1, out.candidates.end(),
                                   [](const auto& candidate) { return candidate.resident.empty(); });
    ASSERT_TRUE(std::is_sorted(out.candidates.begin() + 1, last, worse)) << "round " << round;
  }
}

TEST(Explain, NoCandidateTwiceAndNoMoreThanAskedFor) {
  Snapshot snapshot = two_agents();
  add_waiting(snapshot, 1, 1, 5, 1.0);
  add_waiting(snapshot, 2, 2, 5, 2.0);
  EXPECT_EQ(explain(snapshot, plain_config(100), 10).candidates.size(), 4U);
  EXPECT_EQ(explain(snapshot, plain_config(100), 2).candidates.size(), 2U);
  EXPECT_TRUE(explain(snapshot, plain_config(100), 0).candidates.empty());
  Config greedy = plain_config(100);
  greedy.enumerate_max_agents = 0;  // comes across the same sets again
  EXPECT_LE(explain(snapshot, greedy, 10).candidates.size(), 4U);
}

TEST(Explain, ARequestThatNeverFits) {
  Snapshot snapshot = two_agents();
  add_waiting(snapshot, 1, 1, 91, 1.0);
  add_waiting(snapshot, 2, 1, 90, 1.0);
  const Explanation out = explain(snapshot, plain_config(100), 1);
  const LeftWaiting& entry = entry_of(out, 1);
  EXPECT_EQ(entry.reason, WaitReason::never_fits);
  EXPECT_EQ(entry.agent, Id("a"));
  EXPECT_FALSE(entry.has_alternative);
}

TEST(Explain, APrefixThatIsNotKept) {
  Snapshot snapshot = two_agents();
  add_waiting(snapshot, 1, 1, 50, 1.0);
  add_waiting(snapshot, 2, 2, 50, 2.0);
  const Explanation out = explain(snapshot, plain_config(100), 1);
  const LeftWaiting& entry = entry_of(out, 1);
  EXPECT_EQ(entry.reason, WaitReason::prefix_not_kept);
  EXPECT_EQ(entry.needs_tokens, 60) << "with its prefix";
  EXPECT_EQ(entry.free_tokens, 40);
  EXPECT_DOUBLE_EQ(entry.gain, 1.0);
  EXPECT_TRUE(entry.has_alternative);
  EXPECT_DOUBLE_EQ(entry.alternative_score, 0.9);
  EXPECT_EQ(out.candidates.size(), 1U) << "the alternatives were looked up among all of them";
}

TEST(Explain, TheBestAlternativeCounts) {
  Snapshot snapshot = two_agents();
  snapshot.agents.push_back({"c", 0});
  snapshot.tasks.push_back({3, 0.0, {{"c", {}, "p", false, 0.0}}});
  add_waiting(snapshot, 1, 1, 50, 1.0);
  add_waiting(snapshot, 2, 2, 50, 2.0);
  snapshot.requests.push_back(make_request(3, 3, 0, "c", 5, 0.5));
  const Explanation out = explain(snapshot, plain_config(100), 1);
  EXPECT_EQ(out.decision.resident, (std::vector<Id>{"b", "c"}));
  EXPECT_DOUBLE_EQ(entry_of(out, 1).alternative_score, 1.3) << "of a and c, not of a alone";
}

TEST(Explain, AnEmptyStateComesLastWhateverItsScore) {
  Snapshot snapshot = two_agents();
  add_waiting(snapshot, 1, 1, 5, 0.0);  // not worth its transfer
  add_waiting(snapshot, 2, 2, 5, 0.0);
  const Explanation out = explain(snapshot, plain_config(100), 10);
  ASSERT_EQ(out.candidates.size(), 4U);
  EXPECT_LT(out.decision.score(), 0.0);
  EXPECT_TRUE(out.candidates.back().resident.empty());
}

TEST(Explain, NoSlot) {
  Snapshot snapshot = two_agents();
  add_waiting(snapshot, 1, 1, 5, 1.0);
  add_waiting(snapshot, 2, 1, 5, 2.0);
  Config config = plain_config(100);
  config.action_cap = 1;
  EXPECT_EQ(entry_of(explain(snapshot, config, 1), 1).reason, WaitReason::no_slot);
}

TEST(Explain, NoRoom) {
  Snapshot snapshot = two_agents();
  add_waiting(snapshot, 1, 1, 50, 1.0);
  add_waiting(snapshot, 2, 1, 50, 2.0);
  const Explanation out = explain(snapshot, plain_config(100), 1);
  const LeftWaiting& entry = entry_of(out, 1);
  EXPECT_EQ(entry.reason, WaitReason::no_room);
  EXPECT_EQ(entry.needs_tokens, 50);
  EXPECT_EQ(entry.free_tokens, 40);
}

TEST(Explain, NotWorthItsTransfer) {
  Snapshot snapshot = two_agents();
  snapshot.agents[0].prefix_tokens = 100;
  snapshot.tasks[1] = {3, 0.0, {{"a", {}, "p", false, 0.0}}};
  add_waiting(snapshot, 1, 1, 5, 0.25);
  snapshot.requests.push_back(make_request(2, 3, 0, "a", 5, 8.0));
  const Explanation out = explain(snapshot, plain_config(1000), 1);
  EXPECT_EQ(out.decision.admit, std::vector<Id>{2});
  EXPECT_EQ(entry_of(out, 1).reason, WaitReason::not_worth);
}

TEST(Explain, TheGainIsWhatIsLeftAfterTheChosenAdmissions) {
  Snapshot snapshot = two_agents();
  add_waiting(snapshot, 1, 1, 50, 5.0);
  add_waiting(snapshot, 2, 1, 51, 6.0);
  const Explanation out = explain(snapshot, plain_config(100), 1);
  EXPECT_EQ(out.decision.admit, std::vector<Id>{2});
  EXPECT_DOUBLE_EQ(entry_of(out, 1).gain, 2.0) << "of eight seconds six are taken";
}

TEST(Explain, WhenNothingIsFeasible) {
  Snapshot snapshot = two_agents();
  for (std::int64_t id = 1; id <= 2; ++id) {
    add_waiting(snapshot, id, 1, 50, 1.0);
    snapshot.requests.back().running = true;
  }
  add_waiting(snapshot, 3, 2, 5, 1.0);
  add_waiting(snapshot, 4, 2, 500, 1.0);
  Config config = plain_config(100);
  config.action_cap = 1;
  const Explanation out = explain(snapshot, config, 5);
  EXPECT_TRUE(out.candidates.empty());
  EXPECT_EQ(out.decision, decide(snapshot, config));
  ASSERT_EQ(out.left_waiting.size(), 2U);
  EXPECT_EQ(out.left_waiting[0].reason, WaitReason::standstill);
  EXPECT_EQ(out.left_waiting[1].reason, WaitReason::never_fits);
}

}  // namespace
}  // namespace topas::testing
