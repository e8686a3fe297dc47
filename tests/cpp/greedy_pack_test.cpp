// GreedyPack: every rule of SPEC section 4 by hand, then against a plain second version of it.
#include "greedy_pack.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#include "support/naive.hpp"
#include "support/world.hpp"

namespace topas::testing {
namespace {

using detail::Allocation;
using detail::GreedyPack;
using detail::Instance;

struct Packed {
  Allocation allocation;
  std::vector<Id> admit;
};

std::vector<Id> admitted(const detail::Instance& instance, const GreedyPack& packing, const Allocation& allocation) {
  std::vector<Id> out;
  for (const auto& admission : packing.admissions().first(allocation.admitted)) {
    out.push_back(*instance.waiting[admission.request].id);
  }
  return out;
}

Packed pack(World& world, const Members& members) {
  const auto& instance = world.build();
  GreedyPack packing(instance);
  const Allocation allocation = packing.pack(members);
  return {allocation, admitted(instance, packing, allocation)};
}

using Ids = std::vector<Id>;

TEST(GreedyPack, AdmitsTheDensestFirst) {
  World world(plain_config(100));
  const auto agent = world.agent(10, true);
  world.waiting(1, agent, world.task({4.0}), 20, 4.0);  // 0.2 a token
  world.waiting(2, agent, world.task({3.0}), 10, 3.0);  // 0.3
  world.waiting(3, agent, world.task({9.0}), 40, 9.0);  // 0.225
  const Packed out = pack(world, {agent});
  EXPECT_EQ(out.admit, (Ids{2, 3, 1}));
  EXPECT_DOUBLE_EQ(out.allocation.terms.admit, 16.0);
}

TEST(GreedyPack, ALargeOneThatDoesNotFitIsPassedOver) {
  World world(plain_config(50));
  const auto agent = world.agent(10, true);
  world.waiting(1, agent, world.task({100.0}), 41, 100.0);
  world.waiting(2, agent, world.task({1.0}), 40, 1.0);
  EXPECT_EQ(pack(world, {agent}).admit, Ids{2});
}

TEST(GreedyPack, AnExactFitIsAFit) {
  World world(plain_config(50));
  const auto agent = world.agent(10, true);
  world.running(1, agent, world.task({1.0}), 15);
  world.waiting(2, agent, world.task({1.0}), 25, 1.0);
  const Packed out = pack(world, {agent});
  EXPECT_TRUE(out.allocation.feasible);
  EXPECT_EQ(out.admit, Ids{2});
}

TEST(GreedyPack, PrefixesAndKeptRequestsMustFit) {
  for (const std::int64_t capacity : {25, 24}) {
    World world(plain_config(capacity));
    const auto agent = world.agent(10, true);
    world.running(1, agent, world.task({1.0}), 15);
    EXPECT_EQ(pack(world, {agent}).allocation.feasible, capacity == 25);
  }
}

TEST(GreedyPack, TheEmptySetIsFeasible) {
  World world(plain_config(10));
  const auto agent = world.agent(10, true);
  world.running(1, agent, world.task({1.0}), 15, 2.0, 3.0);
  const Packed out = pack(world, {});
  EXPECT_TRUE(out.allocation.feasible);
  EXPECT_TRUE(out.allocation.empty());
  EXPECT_EQ(out.allocation.preempted, 1U);
  EXPECT_DOUBLE_EQ(out.allocation.score, -5.0);
}

TEST(GreedyPack, AnAgentWithoutRequestsIsInfeasible) {
  World world(plain_config(100));
  const auto idle = world.agent(10, true);
  const auto busy = world.agent(10, true);
  world.waiting(1, busy, world.task({1.0}), 5, 1.0);
  EXPECT_FALSE(pack(world, {idle, busy}).allocation.feasible);
  EXPECT_TRUE(pack(world, {busy}).allocation.feasible);
}

/// Three running requests on one agent, two on another, waiting ones on both.
class Caps : public ::testing::Test {
 protected:
  World& world(std::int64_t cap, std::int64_t limit) {
    Config config = plain_config(1000);
    config.action_cap = cap;
    config.max_running_requests = limit;
    World& out = worlds_.emplace_back(config);
    const auto first = out.agent(1, true);
    const auto second = out.agent(1, true);
    for (std::int64_t at = 0; at < 5; ++at) {
      out.running(at, at < 3 ? first : second, out.task({1.0}), 1);
      out.waiting(10 + at, at < 3 ? first : second, out.task({1.0}), 1, 1.0);
    }
    return out;
  }
  std::deque<World> worlds_;
};

TEST_F(Caps, NoMorePreemptionsThanTheCap) {
  EXPECT_FALSE(pack(world(1, 0), {0}).allocation.feasible);
  EXPECT_TRUE(pack(world(2, 0), {0}).allocation.feasible);
  EXPECT_FALSE(pack(world(2, 0), {1}).allocation.feasible);
  EXPECT_TRUE(pack(world(0, 0), {}).allocation.feasible) << "0 is no cap";
}

TEST_F(Caps, NoMoreAdmissionsThanTheCap) {
  EXPECT_EQ(pack(world(2, 0), {0, 1}).allocation.admitted, 2U);
  EXPECT_EQ(pack(world(0, 0), {0, 1}).allocation.admitted, 5U);
}

TEST_F(Caps, TheRunningLimitCountsTheKept) {
  EXPECT_EQ(pack(world(0, 7), {0, 1}).allocation.admitted, 2U);
  EXPECT_EQ(pack(world(0, 7), {0}).allocation.admitted, 3U);
  EXPECT_EQ(pack(world(2, 100), {0, 1}).allocation.admitted, 2U) << "the smaller of both limits";
}

TEST_F(Caps, TheRunningLimitMayBeReachedExactly) {
  const Packed out = pack(world(0, 5), {0, 1});
  EXPECT_TRUE(out.allocation.feasible);
  EXPECT_EQ(out.allocation.admitted, 0U);
  EXPECT_FALSE(pack(world(0, 4), {0, 1}).allocation.feasible);
}

TEST(GreedyPack, RoomIsReservedForUncoveredAgents) {
  World world(plain_config(40));
  const auto dense = world.agent(5, true);
  const auto other = world.agent(5, true);
  world.waiting(1, dense, world.task({50.0}), 10, 50.0);
  world.waiting(2, dense, world.task({40.0}), 10, 40.0);
  world.waiting(3, other, world.task({1.0}), 19, 1.0);
  world.waiting(4, other, world.task({1.0}), 12, 0.0);
  // 30 free, 12 of them reserved: 1 fits beside it, 2 does not, then 3 would take 19 of 20.
  EXPECT_EQ(pack(world, {dense, other}).admit, (Ids{1, 3}));
}

TEST(GreedyPack, TheReservationOfAnAgentIsItsOwnToUse) {
  World world(plain_config(25));
  const auto agent = world.agent(5, true);
  world.waiting(1, agent, world.task({9.0}), 20, 9.0);
  world.waiting(2, agent, world.task({1.0}), 10, 0.0);
  EXPECT_EQ(pack(world, {agent}).admit, Ids{1});
}

TEST(GreedyPack, ReservationsThatDoNotFitTogetherAreInfeasible) {
  for (const std::int64_t capacity : {40, 39}) {
    World world(plain_config(capacity));
    for (std::int64_t at = 0; at < 2; ++at) {
      const auto agent = world.agent(5, true);
      world.waiting(at, agent, world.task({1.0}), 15, 1.0);
    }
    EXPECT_EQ(pack(world, {0, 1}).allocation.feasible, capacity == 40);
  }
}

TEST(GreedyPack, ASlotIsReservedForEachUncoveredAgent) {
  Config config = plain_config(1000);
  config.action_cap = 2;
  World world(config);
  const auto dense = world.agent(5, true);
  const auto other = world.agent(5, true);
  world.waiting(1, dense, world.task({50.0}), 10, 50.0);
  world.waiting(2, dense, world.task({40.0}), 10, 40.0);
  world.waiting(3, other, world.task({1.0}), 10, 1.0);
  EXPECT_EQ(pack(world, {dense, other}).admit, (Ids{1, 3}));
}

TEST(GreedyPack, MoreUncoveredAgentsThanSlotsAreInfeasible) {
  Config config = plain_config(1000);
  config.action_cap = 1;
  World world(config);
  for (std::int64_t at = 0; at < 2; ++at) {
    const auto agent = world.agent(5, true);
    world.waiting(at, agent, world.task({1.0}), 10, 1.0);
  }
  EXPECT_FALSE(pack(world, {0, 1}).allocation.feasible);
  EXPECT_TRUE(pack(world, {0}).allocation.feasible);
}

TEST(GreedyPack, ZeroGainGoesOn) {
  World world(plain_config(100));
  const auto agent = world.agent(10, true);
  const auto task = world.task({5.0, 2.0});  // two parallel stages: the shorter one gains nothing
  world.waiting(1, agent, task, 10, 5.0, 0);
  world.waiting(2, agent, world.task({0.0}), 10, 1.0);
  world.waiting(3, agent, world.task({0.0}), 10, 1.0);
  const Packed out = pack(world, {agent});
  EXPECT_EQ(out.admit, (Ids{1, 2, 3})) << "the fullest of the allocations that tie";
  EXPECT_DOUBLE_EQ(out.allocation.score, 3.0);
}

TEST(GreedyPack, TheBestEmissionNeedNotBeTheFullest) {
  World world(plain_config(1000));
  const auto agent = world.agent(100);  // each further task that waits for it costs one second
  world.waiting(1, agent, world.task({5.0}), 10, 5.0);
  world.waiting(2, agent, world.task({0.25}), 10, 0.25);
  const Packed out = pack(world, {agent});
  EXPECT_EQ(out.admit, Ids{1});
  EXPECT_DOUBLE_EQ(out.allocation.score, 4.0);
}

TEST(GreedyPack, EmissionsWaitUntilEveryAgentIsCovered) {
  World world(plain_config(1000));
  const auto dear = world.agent(100);
  const auto cheap = world.agent(0);
  world.waiting(1, dear, world.task({5.0}), 10, 5.0);
  world.waiting(2, cheap, world.task({0.25}), 10, 0.25);
  const Packed out = pack(world, {dear, cheap});
  EXPECT_EQ(out.admit, (Ids{1, 2})) << "the set asks for both, whatever it costs";
  EXPECT_DOUBLE_EQ(out.allocation.score, 5.25 - 2.0);
}

TEST(GreedyPack, AmongTiesARepresentedTaskGoesFirst) {
  World world(plain_config(1000));
  const auto agent = world.agent(10, true);
  const auto late = world.task({9.0, 1.0}, {{}, {0}}, 5.0);
  const auto early = world.task({1.0}, {}, 1.0);
  world.waiting(1, agent, early, 10, 1.0);
  world.waiting(2, agent, late, 10, 9.0, 0);
  world.waiting(3, agent, late, 10, 1.0, 1);
  EXPECT_EQ(pack(world, {agent}).admit, (Ids{2, 3, 1}));
}

TEST(GreedyPack, AmongTiesTheEarlierArrivalGoesFirst) {
  World world(plain_config(1000));
  const auto agent = world.agent(10, true);
  world.waiting(1, agent, world.task({1.0}, {}, 5.0), 10, 1.0);
  world.waiting(2, agent, world.task({1.0}, {}, 3.0), 10, 1.0);
  EXPECT_EQ(pack(world, {agent}).admit, (Ids{2, 1}));
}

TEST(GreedyPack, AmongTiesTheSmallerIdGoesFirst) {
  World world(plain_config(1000));
  const auto agent = world.agent(10, true);
  for (const Id& id : {Id("a"), Id(10), Id(9)}) {
    world.waiting(id, agent, world.task({1.0}), 10, 1.0);
  }
  EXPECT_EQ(pack(world, {agent}).admit, (Ids{9, 10, "a"}));
}

TEST(GreedyPack, ValuesThatNearlyAgreeTie) {
  World world(plain_config(1000));
  const auto agent = world.agent(10, true);
  world.waiting(1, agent, world.task({1.0 + 1e-13}, {}, 5.0), 1, 2.0);
  world.waiting(2, agent, world.task({1.0}, {}, 3.0), 1, 1.0);
  EXPECT_EQ(pack(world, {agent}).admit, (Ids{2, 1}));
}

TEST(GreedyPack, GainsAreWeightedWithAge) {
  World world(plain_config(1000));
  const auto agent = world.agent(10, true);
  world.waiting(1, agent, world.task({4.0}, {}, 0.0, 1.0), 10, 4.0);
  world.waiting(2, agent, world.task({2.0}, {}, 0.0, 2.5), 10, 2.0);
  const Packed out = pack(world, {agent});
  EXPECT_EQ(out.admit, (Ids{2, 1}));
  EXPECT_DOUBLE_EQ(out.allocation.terms.admit, 9.0);
}

TEST(GreedyPack, MarginalsFollowTheAdmissionsOfTheTask) {
  World world(plain_config(1000));
  const auto agent = world.agent(10, true);
  const auto task = world.task({5.0, 4.0});
  world.waiting(1, agent, task, 10, 5.0, 0);
  world.waiting(2, agent, task, 10, 4.0, 1);
  const auto& instance = world.build();
  GreedyPack packing(instance);
  const Allocation out = packing.pack(Members{agent});
  ASSERT_EQ(out.admitted, 2U);
  EXPECT_DOUBLE_EQ(packing.admissions()[0].gain, 1.0) << "5 to the 4 that is left of the other stage";
  EXPECT_DOUBLE_EQ(packing.admissions()[1].gain, 4.0);
}

TEST(GreedyPack, KeptRequestsCountOnlyWhenAsked) {
  for (const bool count : {false, true}) {
    Config config = plain_config(1000);
    config.count_running = count;
    World world(config);
    const auto agent = world.agent(10, true);
    const auto task = world.task({5.0, 4.0});  // two parallel stages, the longer one is running
    world.running(1, agent, task, 10, 0.0, 0.0, 5.0);
    world.waiting(2, agent, task, 10, 4.0, 1);
    EXPECT_DOUBLE_EQ(pack(world, {agent}).allocation.terms.admit, count ? 4.0 : 0.0);
  }
}

TEST(GreedyPack, PreemptedRequestsDoNotCount) {
  Config config = plain_config(1000);
  config.count_running = true;
  World world(config);
  const auto kept = world.agent(10, true);
  const auto gone = world.agent(10, true);
  const auto task = world.task({5.0, 4.0});
  world.running(1, gone, task, 10, 0.0, 0.0, 5.0);
  world.waiting(2, kept, task, 10, 4.0, 1);
  EXPECT_DOUBLE_EQ(pack(world, {kept}).allocation.terms.admit, 0.0);
  EXPECT_DOUBLE_EQ(pack(world, {kept, gone}).allocation.terms.admit, 4.0);
}

/// The allocation of a set, then filled.
Packed pack_and_fill(World& world, Members& members) {
  const auto& instance = world.build();
  GreedyPack packing(instance);
  Allocation allocation = packing.pack(members);
  packing.fill(members, allocation);
  return {allocation, admitted(instance, packing, allocation)};
}

TEST(Fill, TakesInTheAgentInTheGreatestDemand) {
  World world(plain_config(100));
  const auto runs = world.agent(10, true);
  const auto one = world.agent(30);
  const auto two = world.agent(30);
  world.running(1, runs, world.task({1.0}), 10);
  world.waiting(2, one, world.task({5.0}), 10, 5.0);
  world.waiting(3, two, world.task({3.0}), 10, 3.0);
  world.waiting(4, two, world.task({3.0}), 10, 3.0);
  Members members{runs};
  const Packed out = pack_and_fill(world, members);
  EXPECT_EQ(members, (Members{runs, two}));
  EXPECT_EQ(out.admit, (Ids{3, 4}));
  EXPECT_DOUBLE_EQ(out.allocation.terms.admit, 6.0);
  EXPECT_DOUBLE_EQ(out.allocation.terms.move, 2 * 0.3) << "30 tokens come in, two tasks wait";
  EXPECT_DOUBLE_EQ(out.allocation.score, out.allocation.terms.score());
}

TEST(Fill, OnlyDemandThatFitsCounts) {
  World world(plain_config(100));
  const auto runs = world.agent(10, true);
  const auto small = world.agent(30);
  const auto large = world.agent(30);
  world.running(1, runs, world.task({1.0}), 10);
  world.waiting(2, small, world.task({5.0}), 10, 5.0);
  world.waiting(3, large, world.task({9.0}), 51, 9.0);  // one token more than there is
  world.waiting(4, large, world.task({3.0}), 10, 3.0);
  Members members{runs};
  EXPECT_EQ(pack_and_fill(world, members).admit, (Ids{2, 4})) << "then there is room for the other";
}

TEST(Fill, OfAgentsInTheSameDemandTheOneWithMoreRequestsComesIn) {
  World world(plain_config(100));
  const auto runs = world.agent(10, true);
  const auto one = world.agent(50);
  const auto two = world.agent(50);
  world.running(1, runs, world.task({1.0}), 10);
  world.waiting(2, one, world.task({6.0}), 10, 6.0);
  world.waiting(3, two, world.task({3.0}), 10, 3.0);
  world.waiting(4, two, world.task({3.0}), 10, 3.0);
  Members members{runs};
  EXPECT_EQ(pack_and_fill(world, members).admit, (Ids{3, 4}));
}

TEST(Fill, PreemptedRequestsStayOut) {
  World world(plain_config(200));
  const auto out_of_set = world.agent(10, true);
  const auto in = world.agent(10, true);
  world.running(1, out_of_set, world.task({1.0}), 10);
  world.waiting(2, out_of_set, world.task({1.0}), 10, 1.0);
  world.waiting(3, in, world.task({1.0}), 10, 1.0);
  Members members{in};
  EXPECT_EQ(pack_and_fill(world, members).admit, Ids{3});
  EXPECT_EQ(members, Members{in});
}

TEST(Fill, MarginalsFollowWhatTheSetHasAdmitted) {
  World world(plain_config(200));
  const auto in = world.agent(10, true);
  const auto late = world.agent(10);
  const auto task = world.task({6.0});
  world.waiting(1, in, task, 10, 4.0);
  world.waiting(2, late, task, 10, 4.0);
  Members members{in};
  EXPECT_DOUBLE_EQ(pack_and_fill(world, members).allocation.terms.admit, 4.0 + 2.0);
}

TEST(GreedyPack, SaysWhatIsLeftAfterAnAllocation) {
  Config config = plain_config(100);
  config.action_cap = 5;
  World world(config);
  const auto agent = world.agent(10, true);
  world.waiting(1, agent, world.task({9.0}), 20, 9.0);
  world.waiting(2, agent, world.task({1.0}), 30, 1.0);
  world.waiting(3, agent, world.task({4.0}), 90, 4.0);
  GreedyPack packing(world.build());
  const Allocation out = packing.pack(Members{agent});
  EXPECT_EQ(out.admitted, 2U);
  EXPECT_EQ(packing.room_after(out.admitted), 40);
  EXPECT_EQ(packing.slots_after(out.admitted), 3);
  EXPECT_EQ(packing.room_after(1), 70);
  EXPECT_DOUBLE_EQ(packing.gain_after(world.waiting_index(3), out.admitted), 4.0);
}

Ids ids_of(const detail::Instance& instance, std::span<const std::uint32_t> requests) {
  Ids out;
  for (const auto request : requests) {
    out.push_back(*instance.waiting[request].id);
  }
  return out;
}

void expect_agreement(GreedyPack& packing, const detail::Instance& instance, const Members& members) {
  const Allocation out = packing.pack(members);
  const auto expected = naive_pack(instance, members);
  ASSERT_EQ(out.feasible, expected.has_value());
  if (!expected.has_value()) {
    return;
  }
  std::vector<std::uint32_t> admitted;
  for (const auto& admission : packing.admissions().first(out.admitted)) {
    admitted.push_back(admission.request);
  }
  ASSERT_EQ(ids_of(instance, admitted), ids_of(instance, expected->admit));
  ASSERT_EQ(out.kept, expected->kept);
  ASSERT_EQ(out.preempted, expected->preempted);
  ASSERT_NEAR(out.score, expected->score, 1e-9);
  ASSERT_EQ(out.score, out.terms.score());
}

/// The agents whose bits are set.
Members members_of(const Instance& instance, std::uint64_t bits) {
  Members out;
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    if (((bits >> agent) & 1U) != 0) {
      out.push_back(agent);
    }
  }
  return out;
}

TEST(GreedyPack, AgreesWithThePlainVersionOnEverySetOfRandomWorlds) {
  Random random(51);
  int admissions = 0;
  for (int round = 0; round < 500; ++round) {
    World world(random_config(random));
    fill_randomly(world, random);
    const auto& instance = world.build();
    GreedyPack packing(instance);  // one for all sets: nothing may be left over from set to set
    for (std::uint32_t subset = 0; subset < (1U << instance.agents.size()); ++subset) {
      const Members members = members_of(instance, subset);
      ASSERT_NO_FATAL_FAILURE(expect_agreement(packing, instance, members)) << "round " << round;
      admissions += static_cast<int>(packing.admissions().size());
    }
  }
  EXPECT_GT(admissions, 1000);
}

bool has(const Members& members, std::uint32_t agent) {
  return std::binary_search(members.begin(), members.end(), agent);
}

/// How many of the admissions stand behind the first word of the order.
std::size_t behind_the_first_word(const GreedyPack& packing) {
  const auto& all = packing.order().all();
  const auto admissions = packing.admissions();
  return static_cast<std::size_t>(std::count_if(admissions.begin(), admissions.end(), [&all](const auto& admission) {
    return std::none_of(all.begin(), all.begin() + 64, [&admission](const detail::Ranked& ranked) {
      return ranked.option.request == admission.request;
    });
  }));
}

/// How many of the admissions have a sibling that the set preempts.
std::size_t beside_preempted(const GreedyPack& packing, const Instance& instance, const Members& members) {
  const auto admissions = packing.admissions();
  return static_cast<std::size_t>(std::count_if(admissions.begin(), admissions.end(), [&](const auto& admission) {
    return std::any_of(instance.running.begin(), instance.running.end(), [&](const auto& running) {
      return running.task == instance.waiting[admission.request].task && !has(members, running.agent);
    });
  }));
}

/// Whether an overdue request of the set is left behind, so that nothing after it is admitted.
bool is_held_up(const GreedyPack& packing, const Instance& instance, const Members& members) {
  const auto admissions = packing.admissions();
  for (std::uint32_t at = 0; at < instance.waiting.size() && !admissions.empty(); ++at) {
    const auto& request = instance.waiting[at];
    if (instance.tasks[request.task].overdue && has(members, request.agent) &&
        std::none_of(admissions.begin(), admissions.end(), [at](const auto& each) { return each.request == at; })) {
      return true;
    }
  }
  return false;
}

TEST(GreedyPack, AgreesWithThePlainVersionOverSeveralWords) {
  Random random(52);
  std::size_t behind = 0;
  std::size_t beside = 0;
  std::size_t large = 0;
  for (int round = 0; round < 60; ++round) {
    Config config = random_config(random);
    config.kv_capacity_tokens = random.between(100, 500);
    World world(config);
    fill_with_many(world, random);
    const auto& instance = world.build();
    ASSERT_GT(instance.waiting.size(), 64U);
    ASSERT_LE(instance.waiting.size(), 200U);
    large += std::any_of(instance.tasks.begin(), instance.tasks.end(), [](const auto& each) { return each.words > 1; })
                 ? 1U
                 : 0U;
    GreedyPack packing(instance);
    for (int set = 0; set < 12; ++set) {
      const Members members = random_set(random, instance, 0.5);
      ASSERT_NO_FATAL_FAILURE(expect_agreement(packing, instance, members)) << "round " << round;
      behind += behind_the_first_word(packing);
      beside += config.count_running ? beside_preempted(packing, instance, members) : 0;
    }
  }
  EXPECT_GT(behind, 500U);
  EXPECT_GT(beside, 100U);
  EXPECT_GT(large, 5U) << "tasks whose completions have several words";
}

TEST(GreedyPack, AgreesWithThePlainVersionByArrival) {
  Random random(53);
  std::size_t behind = 0;
  std::size_t held_up = 0;
  for (int round = 0; round < 400; ++round) {
    Config config = random_service_config(random);
    config.kv_capacity_tokens = random.between(60, 400);
    World world(config);
    fill_with_a_queue(world, random);
    const auto& instance = world.build();
    GreedyPack packing(instance);
    for (int set = 0; set < 12; ++set) {
      const Members members = random_set(random, instance, 0.5);
      ASSERT_NO_FATAL_FAILURE(expect_agreement(packing, instance, members)) << "round " << round;
      behind += instance.waiting.size() > 64 ? behind_the_first_word(packing) : 0;
      held_up += is_held_up(packing, instance, members) ? 1U : 0U;
    }
  }
  EXPECT_GT(behind, 500U);
  EXPECT_GT(held_up, 300U);
}

TEST(GreedyPack, AgreesWithThePlainVersionBesidePreemptedSiblings) {
  Random random(54);
  std::size_t beside = 0;
  std::size_t beside_by_arrival = 0;
  std::size_t held_up = 0;
  for (int round = 0; round < 1000; ++round) {
    const bool by_arrival = round % 2 == 1;  // of requests whose gains still come from paths
    Config config = random_config(random);
    config.count_running = true;
    config.admit_order = by_arrival ? AdmitOrder::arrival : AdmitOrder::density;
    config.overtake_limit = by_arrival ? 2.0 : 0.0;
    World world(config);
    fill_with_siblings(world, random);
    world.overdue(static_cast<std::uint32_t>(random.below(4)));
    const auto& instance = world.build();
    GreedyPack packing(instance);
    for (int set = 0; set < 24; ++set) {
      const Members members = random_set(random, instance, 0.5);
      ASSERT_NO_FATAL_FAILURE(expect_agreement(packing, instance, members)) << "round " << round;
      (by_arrival ? beside_by_arrival : beside) += beside_preempted(packing, instance, members);
      held_up += is_held_up(packing, instance, members) ? 1U : 0U;
    }
  }
  EXPECT_GT(beside, 2000U);
  EXPECT_GT(beside_by_arrival, 2000U);
  EXPECT_GT(held_up, 500U);
}

/// A world of any kind; `round` says which.
void fill(World& world, Random& random, int round) {
  if (round % 3 == 0) {
    fill_with_a_queue(world, random);
  } else if (round % 3 == 1) {
    fill_with_siblings(world, random);
  } else {
    fill_with_many(world, random);
  }
}

/// The config for it.
Config config_for(Random& random, int round) {
  return round % 3 == 0 ? random_service_config(random) : random_config(random);
}

bool nearly(double left, double right) {
  return std::abs(left - right) <= 1e-12 * std::max(std::abs(left), std::abs(right));
}

/// The terms of the allocation by a score of its own.
Terms replayed(const GreedyPack& packing, const Instance& instance, const Members& members, std::uint32_t admitted) {
  std::vector<std::uint8_t> inside(instance.agents.size(), 0);
  for (const auto member : members) {
    inside[member] = 1;
  }
  detail::Score score(instance);
  score.start(members, inside);
  for (const auto& admission : packing.admissions().first(admitted)) {
    score.admit(instance.waiting[admission.request], admission.gain);
  }
  return score.terms();
}

TEST(GreedyPack, EachTermIsThatOfTheChosenAdmissions) {
  Random random(55);
  std::size_t cut_short = 0;
  Terms sum;
  for (int round = 0; round < 600; ++round) {
    World world(config_for(random, round));
    fill(world, random, round);
    const auto& instance = world.build();
    GreedyPack packing(instance);
    for (int set = 0; set < 20; ++set) {
      const Members members = random_set(random, instance, 0.5);
      const Allocation out = packing.pack(members);
      if (!out.feasible) {
        continue;
      }
      const Terms expected = replayed(packing, instance, members, out.admitted);
      ASSERT_PRED2(nearly, out.terms.admit, expected.admit) << "round " << round;
      ASSERT_PRED2(nearly, out.terms.reuse, expected.reuse) << "round " << round;
      ASSERT_PRED2(nearly, out.terms.move, expected.move) << "round " << round;
      ASSERT_PRED2(nearly, out.terms.redo, expected.redo) << "round " << round;
      ASSERT_PRED2(nearly, out.terms.revoke, expected.revoke) << "round " << round;
      if (out.admitted < packing.admissions().size()) {
        ++cut_short;
        sum.reuse += expected.reuse;
        sum.move += expected.move;
        sum.redo += expected.redo;
        sum.revoke += expected.revoke;
      }
    }
  }
  EXPECT_GT(cut_short, 500U) << "or the last terms would do";
  for (const double term : {sum.reuse, sum.move, sum.redo, sum.revoke}) {
    EXPECT_GT(term, 1.0);
  }
}

/// Places for what falls, kept from one decision to the next.
struct KeptFalls {
  explicit KeptFalls(const Instance& instance)
      : of_requests(instance.waiting.size(), detail::kUnknown), of_tasks(instance.tasks.size()) {}

  /// The instance with these places and what they hold.
  [[nodiscard]] Instance at(Instance instance) {
    for (std::size_t at = 0; at < of_requests.size(); ++at) {
      instance.waiting[at].fall_s = of_requests[at];
      instance.waiting[at].keep_fall = &of_requests[at];
    }
    for (std::size_t at = 0; at < of_tasks.size(); ++at) {
      instance.tasks[at].fall = of_tasks[at];
      instance.tasks[at].keep_fall = &of_tasks[at];
    }
    return instance;
  }
  [[nodiscard]] std::size_t requests_known() const {
    return static_cast<std::size_t>(
        std::count_if(of_requests.begin(), of_requests.end(), [](double fall_s) { return !std::isnan(fall_s); }));
  }
  [[nodiscard]] std::size_t tasks_known() const {
    return static_cast<std::size_t>(
        std::count_if(of_tasks.begin(), of_tasks.end(), [](const detail::Fall& fall) { return fall.set != 0; }));
  }

  std::vector<double> of_requests;
  std::vector<detail::Fall> of_tasks;
};

/// What packing says of an instance: the bounds of all gains, then the admissions and gains of a few sets.
std::vector<double> all_gains(const Instance& instance, const std::vector<Members>& sets) {
  GreedyPack packing(instance);
  std::vector<double> out;
  for (std::uint32_t at = 0; at < instance.waiting.size(); ++at) {
    out.push_back(packing.most_gain(at));
  }
  for (std::uint32_t task = 0; task < instance.tasks.size(); ++task) {
    out.push_back(packing.most_gain_of(task));
  }
  for (const Members& members : sets) {
    out.push_back(packing.pack(members).score);
    for (const auto& admission : packing.admissions()) {
      out.push_back(static_cast<double>(admission.request));
      out.push_back(admission.gain);
    }
  }
  return out;
}

TEST(GreedyPack, KeptFallsChangeNothing) {
  Random random(56);
  std::size_t of_requests = 0;
  std::size_t of_tasks = 0;
  for (int round = 0; round < 300; ++round) {
    World world(config_for(random, round));
    fill(world, random, round);
    const auto& instance = world.build();
    std::vector<Members> sets;
    for (int set = 0; set < 12; ++set) {
      sets.push_back(random_set(random, instance, 0.5));
    }
    const auto without_places = all_gains(instance, sets);
    KeptFalls kept(instance);
    ASSERT_EQ(all_gains(kept.at(instance), sets), without_places) << "empty places, round " << round;
    of_requests += kept.requests_known();
    of_tasks += kept.tasks_known();
    ASSERT_EQ(all_gains(kept.at(instance), sets), without_places) << "filled places, round " << round;
  }
  EXPECT_GT(of_requests, 5000U);
  EXPECT_GT(of_tasks, 1000U);
}

TEST(GreedyPack, KeptFallsAreTaken) {
  World world(plain_config(100));
  const auto agent = world.agent(10, true);
  const auto task = world.task({5.0, 4.0});
  world.waiting(1, agent, task, 10, 5.0, 0);
  world.waiting(2, agent, task, 10, 4.0, 1);
  KeptFalls kept(world.build());
  static_cast<void>(GreedyPack(kept.at(world.instance())));
  ASSERT_EQ(kept.of_requests, (std::vector<double>{1.0, 0.0}));
  ASSERT_EQ(kept.of_tasks[0].seconds, 5.0);
  kept.of_requests[1] = 3.0;
  kept.of_tasks[0].seconds = 4.5;
  const Instance instance = kept.at(world.instance());
  GreedyPack packing(instance);
  EXPECT_EQ(packing.most_gain_of(task), 4.5);
  ASSERT_EQ(packing.pack(Members{agent}).admitted, 2U);
  EXPECT_EQ(packing.admissions()[0].request, 1U);
  EXPECT_EQ(packing.admissions()[0].gain, 3.0);
  kept.of_tasks[0].set = 1;  // of other requests
  const Instance other = kept.at(world.instance());
  EXPECT_EQ(GreedyPack(other).most_gain_of(task), 5.0);
}

}  // namespace
}  // namespace topas::testing
