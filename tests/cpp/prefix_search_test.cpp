// Which sets are tried and which one is chosen (SPEC section 5).
#include "prefix_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "support/naive.hpp"
#include "support/world.hpp"

namespace topas::testing {
namespace {

using detail::Allocation;
using detail::GreedyPack;
using detail::PrefixSearch;
using detail::PrefixSet;
using detail::Shortlist;

Allocation allocation(double score, std::uint32_t kept, std::uint32_t admitted, std::uint32_t preempted = 0) {
  Allocation out;
  out.feasible = true;
  out.score = score;
  out.kept = kept;
  out.admitted = admitted;
  out.preempted = preempted;
  return out;
}

PrefixSet choice(const std::vector<std::pair<PrefixSet, Allocation>>& offers) {
  Shortlist list;
  for (const auto& [members, offered] : offers) {
    list.offer(members, offered);
  }
  return list.empty() ? PrefixSet{99} : list.choose();
}

/// The same choice whatever the order of the offers.
PrefixSet choice_in_every_order(std::vector<std::pair<PrefixSet, Allocation>> offers) {
  const auto by_set = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(offers.begin(), offers.end(), by_set);
  const PrefixSet first = choice(offers);
  while (std::next_permutation(offers.begin(), offers.end(), by_set)) {
    EXPECT_EQ(choice(offers), first);
  }
  return first;
}

TEST(Shortlist, NothingFeasible) { EXPECT_EQ(choice({{{0}, Allocation{}}}), PrefixSet{99}); }

TEST(Shortlist, TheHighestScore) {
  EXPECT_EQ(choice_in_every_order(
                {{{0}, allocation(1.0, 1, 0)}, {{1}, allocation(3.0, 1, 0, 5)}, {{2}, allocation(2.0, 1, 9)}}),
            PrefixSet{1});
}

TEST(Shortlist, AnEmptyOneOnlyWhenThereIsNoOther) {
  EXPECT_EQ(choice_in_every_order({{{}, allocation(5.0, 0, 0)}, {{1}, allocation(-3.0, 1, 0)}}), PrefixSet{1});
  EXPECT_EQ(choice_in_every_order({{{}, allocation(-5.0, 0, 0)}, {{1}, Allocation{}}}), PrefixSet{});
}

TEST(Shortlist, AmongTiesFewerPreemptionsThenMoreAdmissionsThenTheSmallerSet) {
  EXPECT_EQ(choice_in_every_order({{{0}, allocation(1.0, 1, 3, 2)}, {{1}, allocation(1.0, 1, 1, 1)}}), PrefixSet{1});
  EXPECT_EQ(choice_in_every_order({{{0}, allocation(1.0, 1, 1, 1)}, {{1}, allocation(1.0, 1, 2, 1)}}), PrefixSet{1});
  EXPECT_EQ(choice_in_every_order({{{0, 2}, allocation(1.0, 1, 1)}, {{0, 1, 2}, allocation(1.0, 1, 1)}}),
            (PrefixSet{0, 1, 2}));
  EXPECT_EQ(choice_in_every_order({{{0}, allocation(1.0, 1, 1)}, {{0, 1}, allocation(1.0, 1, 1)}}), PrefixSet{0});
}

TEST(Shortlist, TiesAreCountedFromTheHighest) {
  // a and b tie, b and c tie, a and c do not: only b and c are in the running.
  constexpr double kStep = 0.8e-12;
  EXPECT_EQ(choice_in_every_order({{{0}, allocation(1.0, 1, 9)},
                                   {{1}, allocation(1.0 + kStep, 1, 2)},
                                   {{2}, allocation(1.0 + 2.0 * kStep, 1, 1)}}),
            PrefixSet{1});
}

/// What a search did: every feasible set in the order of evaluation, and the outcome.
struct Searched {
  std::vector<PrefixSet> feasible;
  std::optional<PrefixSet> chosen;
  std::uint64_t evaluated = 0;
};

Searched search(const detail::Instance& instance) {
  GreedyPack pack(instance);
  Searched out;
  PrefixSearch run(instance, pack, [&out](std::span<const std::uint32_t> members, const Allocation&) {
    out.feasible.emplace_back(members.begin(), members.end());
  });
  out.chosen = run.run();
  out.evaluated = run.evaluated();
  GreedyPack again(instance);
  PrefixSearch pruned(instance, again);
  EXPECT_EQ(pruned.run(), out.chosen) << "what is left out cannot be chosen";
  EXPECT_LE(pruned.evaluated(), out.evaluated);
  return out;
}

/// The best score among the first sets, the present one at the head, that a search with this budget packs.
double score_within(Config config, std::int64_t budget, std::uint64_t seed) {
  config.max_evaluations = budget;
  World world(config);
  Random random(seed);
  fill_randomly(world, random);
  const auto& instance = world.build();
  GreedyPack pack(instance);
  PrefixSearch run(instance, pack);
  const auto chosen = run.run();
  if (budget > 0) {
    EXPECT_LE(run.evaluated(), static_cast<std::uint64_t>(budget));
  }
  if (!chosen) {
    return -std::numeric_limits<double>::infinity();
  }
  const detail::Allocation allocation = pack.pack(*chosen);
  return allocation.empty() ? -1e300 : allocation.score;  // chosen only where there is no other
}

TEST(PrefixSearch, MorePackingIsNeverWorseThanThePresentSet) {
  Random random(67);
  int better = 0;
  for (std::uint64_t round = 0; round < 300; ++round) {
    Config config = random_config(random);
    config.enumerate_max_agents = random.chance(0.5) ? 8 : 0;
    const double present = score_within(config, 1, round);
    const double some = score_within(config, 4, round);
    EXPECT_GE(some, present - 1e-9) << "round " << round;
    EXPECT_EQ(some, score_within(config, 4, round)) << "the same whenever it is asked";
    better += some > present ? 1 : 0;
  }
  EXPECT_GT(better, 30);
}

/// The same instance searched with this budget, and once more with the same packing.
std::optional<PrefixSet> chosen_within(detail::Instance instance, std::int64_t budget) {
  Config config = *instance.config;
  config.max_evaluations = budget;
  instance.config = &config;
  GreedyPack pack(instance);
  PrefixSearch run(instance, pack);
  auto chosen = run.run();
  PrefixSearch again(instance, pack);
  EXPECT_EQ(again.run(), chosen) << "the same whenever it is asked";
  EXPECT_EQ(again.evaluated(), run.evaluated());
  return chosen;
}

PrefixSet resident_agents(const detail::Instance& instance) {
  PrefixSet out;
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    if (instance.agents[agent].resident) {
      out.push_back(agent);
    }
  }
  return out;
}

TEST(PrefixSearch, WithABudgetWalksNeverEndBelowThePresentSet) {
  Random random(68);
  int better = 0;
  int short_of = 0;
  int ample = 0;
  for (int round = 0; round < 1000; ++round) {
    Config config = random_service_config(random);
    config.enumerate_max_agents = random.chance(0.5) ? 8 : 0;
    World world(config);
    fill_with_a_queue(world, random);
    const auto& instance = world.build();
    GreedyPack pack(instance);
    const Allocation present = pack.pack(resident_agents(instance));
    const auto without = chosen_within(instance, 0);
    ASSERT_EQ(chosen_within(instance, 100'000), without) << "round " << round;
    ample += without.has_value() ? 1 : 0;
    if (!present.feasible || present.empty()) {
      continue;
    }
    ASSERT_TRUE(without.has_value()) << "round " << round;
    const double most = pack.pack(*without).score;
    for (const std::int64_t budget : {1, 2, 5}) {
      const auto chosen = chosen_within(instance, budget);
      ASSERT_TRUE(chosen.has_value()) << "round " << round;
      const Allocation allocation = pack.pack(*chosen);
      ASSERT_FALSE(allocation.empty()) << "round " << round;
      ASSERT_GE(allocation.score, present.score - 1e-9) << "round " << round;
      better += allocation.score > present.score + 1e-9 ? 1 : 0;
      short_of += allocation.score < most - 1e-9 ? 1 : 0;
    }
  }
  EXPECT_GT(ample, 800);
  EXPECT_GT(better, 500);
  EXPECT_GT(short_of, 500) << "or the budget would not matter";
}

Config greedy_config(std::int64_t capacity) {
  Config config = plain_config(capacity);
  config.enumerate_max_agents = 0;
  return config;
}

/// One waiting request of a task of its own; it gains `gain` seconds.
void want(World& world, std::uint32_t agent, double gain, std::int64_t kv_tokens = 10) {
  static std::int64_t number = 0;
  world.waiting(number++, agent, world.task({gain}), kv_tokens, gain);
}

TEST(PrefixSearch, EnumeratesEverySubset) {
  World world(plain_config(1000));
  for (int agent = 0; agent < 5; ++agent) {
    want(world, world.agent(1), 1.0);
  }
  const Searched out = search(world.build());
  EXPECT_EQ(out.evaluated, 32U);
  EXPECT_EQ(std::set<PrefixSet>(out.feasible.begin(), out.feasible.end()).size(), 32U);
}

TEST(PrefixSearch, EnumeratesUpToTheLimit) {
  for (const std::int64_t limit : {3, 2}) {
    Config config = plain_config(1000);
    config.enumerate_max_agents = limit;
    World world(config);
    for (int agent = 0; agent < 3; ++agent) {
      want(world, world.agent(1, true), 1.0);
    }
    EXPECT_EQ(search(world.build()).evaluated == 8, limit == 3);
  }
}

TEST(PrefixSearch, NothingActive) {
  World world(greedy_config(10));
  const Searched out = search(world.build());
  EXPECT_EQ(out.chosen, PrefixSet{});
  EXPECT_EQ(out.evaluated, 1U);
}

TEST(PrefixSearch, ClimbsFromTheResidentPrefixes) {
  World world(greedy_config(1000));
  want(world, world.agent(100), 2.0);        // worth one second once loaded
  want(world, world.agent(100, true), 5.0);  // resident
  want(world, world.agent(10), 9.0);         // worth 8.9 s, loaded first
  const Searched out = search(world.build());
  EXPECT_EQ(out.feasible.front(), PrefixSet{1});
  EXPECT_EQ(out.chosen, (PrefixSet{1, 2}));
  EXPECT_EQ(std::count(out.feasible.begin(), out.feasible.end(), PrefixSet{1, 2}), 1) << "reached by one addition";
}

TEST(PrefixSearch, APairIsTriedOnceWhenNoSingleImproves) {
  // Each of two parallel stages alone gains nothing; together they shorten the path by four seconds.
  World world(greedy_config(1000));
  world.agent(1, true);
  const auto left = world.agent(10);
  const auto right = world.agent(10);
  want(world, 0, 3.0);
  const auto task = world.task({4.0, 4.0});
  world.waiting(901, left, task, 10, 4.0, 0);
  world.waiting(902, right, task, 10, 4.0, 1);
  const Searched out = search(world.build());
  EXPECT_EQ(out.chosen, (PrefixSet{0, 1, 2}));
}

TEST(PrefixSearch, ThereIsNoSecondPairTest) {
  // Two such pairs: the first stall adds one of them, the second one is left where it is.
  World world(greedy_config(1000));
  world.agent(1, true);
  want(world, 0, 3.0);
  for (const double total : {6.0, 4.0}) {
    const auto left = world.agent(10);
    const auto right = world.agent(10);
    const auto task = world.task({total, total});
    world.waiting(static_cast<std::int64_t>(900 + left), left, task, 10, total, 0);
    world.waiting(static_cast<std::int64_t>(900 + right), right, task, 10, total, 1);
  }
  const Searched out = search(world.build());
  EXPECT_EQ(out.chosen, (PrefixSet{0, 1, 2}));
  EXPECT_EQ(std::count(out.feasible.begin(), out.feasible.end(), PrefixSet{0, 1, 2, 3, 4}), 0);
}

TEST(PrefixSearch, SingleAdditionsGoOnAfterThePair) {
  // Agent 3 only pays once the pair is there: its stage is the third of three parallel ones.
  World world(greedy_config(1000));
  world.agent(1, true);
  want(world, 0, 3.0);
  const auto task = world.task({8.0, 8.0, 4.0});
  for (std::uint32_t stage = 0; stage < 3; ++stage) {
    const auto agent = world.agent(10);
    world.waiting(static_cast<std::int64_t>(900 + stage), agent, task, 10, 8.0, stage);
  }
  const Searched out = search(world.build());
  EXPECT_EQ(out.chosen, (PrefixSet{0, 1, 2, 3}));
}

TEST(PrefixSearch, AnInfeasibleStartClimbsAgainFromNothing) {
  // The two resident prefixes leave no room for a request of both: no addition helps.
  World world(greedy_config(60));
  want(world, world.agent(40, true), 5.0, 10);
  want(world, world.agent(40, true), 4.0, 10);
  want(world, world.agent(1), 3.0, 9);
  const Searched out = search(world.build());
  EXPECT_EQ(out.chosen, (PrefixSet{0, 2}));
  EXPECT_NE(std::find(out.feasible.begin(), out.feasible.end(), PrefixSet{}), out.feasible.end());
}

TEST(PrefixSearch, DropsAndSwapsFromTheStart) {
  // The resident agent is worth a little; swapping it for the other one is better, both do not fit.
  World world(greedy_config(60));
  want(world, world.agent(30, true), 1.0, 10);
  want(world, world.agent(40), 50.0, 10);
  want(world, world.agent(39), 4.0, 11);
  const Searched out = search(world.build());
  EXPECT_EQ(out.chosen, PrefixSet{1});
  const std::set<PrefixSet> seen(out.feasible.begin(), out.feasible.end());
  EXPECT_TRUE(seen.contains(PrefixSet{})) << "the drop";
  EXPECT_TRUE(seen.contains(PrefixSet{2})) << "the other swap";
}

TEST(PrefixSearch, EqualAdditionsGoToTheSmallerAgent) {
  World world(greedy_config(100));
  for (int agent = 0; agent < 3; ++agent) {
    want(world, world.agent(40), 5.0, 20);
  }
  EXPECT_EQ(search(world.build()).chosen, PrefixSet{0});
}

TEST(PrefixSearch, ToImproveIsMoreThanATie) {
  World world(greedy_config(1000));
  want(world, world.agent(1, true), 5.0);
  for (int agent = 0; agent < 3; ++agent) {
    want(world, world.agent(0), 1e-13);
  }
  const Searched out = search(world.build());
  EXPECT_EQ(std::count(out.feasible.begin(), out.feasible.end(), PrefixSet{0, 1, 2, 3}), 0);
  EXPECT_EQ(out.chosen, (PrefixSet{0, 1, 2})) << "of the pairs that were tried, all of them ties";
}

TEST(PrefixSearch, AmongAdditionsThatTieTheFirstIsTaken) {
  World world(greedy_config(100));
  want(world, world.agent(40), 5.0, 20);
  want(world, world.agent(40), 5.0 + 1e-13, 20);  // does not fit beside the first
  want(world, world.agent(10), 1.0, 20);
  const Searched out = search(world.build());
  const auto place = [&out](const PrefixSet& set) { return std::find(out.feasible.begin(), out.feasible.end(), set); };
  EXPECT_LT(place({0, 2}), place({1, 2})) << "the climb goes on from the first, the other is a swap";
  EXPECT_EQ(out.chosen, (PrefixSet{0, 2}));
}

TEST(PrefixSearch, NothingIsFeasibleWhenMoreRunsThanTheLimitsAllow) {
  Config config = plain_config(10);
  config.action_cap = 1;
  World world(config);
  const auto agent = world.agent(5, true);
  world.running(1, agent, world.task({1.0}), 5);
  world.running(2, agent, world.task({1.0}), 5);
  const Searched out = search(world.build());
  EXPECT_FALSE(out.chosen.has_value());
  EXPECT_TRUE(out.feasible.empty());
}

/// What the present state keeps cannot be served, and what can be is worth less than it costs to load: serving at a
/// loss comes before serving nothing, however many sets the score of nothing would rule out.
TEST(PrefixSearch, ServesAtALossRatherThanNothing) {
  for (const auto order : {AdmitOrder::arrival, AdmitOrder::density}) {
    Config config = plain_config(100);
    config.gain_model = GainModel::service;
    config.admit_order = order;
    config.move_model = MoveModel::once;
    World world(config);
    world.waiting(1, world.agent(10, true), world.task({5.0}), 95, 5.0);  // never fits
    for (std::int64_t request = 2; request < 6; ++request) {
      world.waiting(request, world.agent(40), world.task({0.1}), 10, 0.1);  // loading takes 0.4 s
    }
    const Searched out = search(world.build());
    ASSERT_TRUE(out.chosen.has_value());
    EXPECT_EQ(*out.chosen, PrefixSet{1});
  }
}

NaiveSearch naive_search(const detail::Instance& instance) {
  return {static_cast<std::uint32_t>(instance.agents.size()),
          [&instance](const Members& members) { return naive_pack(instance, members); }};
}

/// Both ways, with gains that are services, admitted by arrival: most sets are walked, not packed.
TEST(PrefixSearch, ByArrivalItAgreesWithThePlainVersion) {
  Random random(63);
  for (int round = 0; round < 200; ++round) {
    Config config = random_service_config(random);
    config.enumerate_max_agents = round % 2 == 0 ? 8 : 0;
    World world(config);
    fill_with_a_queue(world, random);
    const auto& instance = world.build();
    Members start;
    Members firm;
    for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
      if (instance.agents[agent].resident) {
        start.push_back(agent);
      }
      if (instance.agents[agent].firm) {
        firm.push_back(agent);
      }
    }
    NaiveSearch expected = naive_search(instance);
    if (round % 2 == 0) {
      expected.enumerate();
    } else {
      expected.search_greedily(start, firm);
    }
    ASSERT_EQ(search(instance).chosen, expected.choose()) << "round " << round;
  }
}

TEST(PrefixSearch, EnumerationAgreesWithBruteForce) {
  Random random(61);
  for (int round = 0; round < 400; ++round) {
    Config config = random_config(random);
    config.enumerate_max_agents = 8;
    World world(config);
    if (round % 2 == 0) {
      fill_randomly(world, random);
    } else {
      fill_with_siblings(world, random);
    }
    const auto& instance = world.build();
    NaiveSearch expected = naive_search(instance);
    expected.enumerate();
    ASSERT_EQ(search(instance).chosen, expected.choose()) << "round " << round;
  }
}

TEST(PrefixSearch, TheGreedyPathAgreesWithThePlainVersion) {
  Random random(62);
  std::size_t fewer = 0;
  for (int round = 0; round < 600; ++round) {
    Config config = random_config(random);
    config.enumerate_max_agents = 0;
    World world(config);
    if (round % 2 == 0) {
      fill_randomly(world, random);
    } else {
      fill_with_siblings(world, random);
    }
    const auto& instance = world.build();
    const Members start = resident_agents(instance);
    NaiveSearch expected = naive_search(instance);
    expected.search_greedily(start);
    const Searched out = search(instance);
    ASSERT_EQ(out.chosen, expected.choose()) << "round " << round;
    fewer += expected.distinct() < (std::size_t{1} << instance.agents.size()) ? 1U : 0U;
  }
  EXPECT_GT(fewer, 100U) << "the path leaves sets out, so it matters which ones";
}

}  // namespace
}  // namespace topas::testing
