// GreedyPack: every rule of SPEC section 4 by hand, then against a plain second version of it.
#include "greedy_pack.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "support/naive.hpp"
#include "support/world.hpp"

namespace topas::testing {
namespace {

using detail::Allocation;
using detail::GreedyPack;

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

TEST(GreedyPack, AgreesWithThePlainVersionOnEverySetOfRandomWorlds) {
  Random random(51);
  int admissions = 0;
  for (int round = 0; round < 500; ++round) {
    World world(random_config(random));
    fill_randomly(world, random);
    const auto& instance = world.build();
    GreedyPack packing(instance);  // one for all sets: nothing may be left over from set to set
    for (std::uint32_t subset = 0; subset < (1U << instance.agents.size()); ++subset) {
      Members members;
      for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
        if (((subset >> agent) & 1U) != 0) {
          members.push_back(agent);
        }
      }
      ASSERT_NO_FATAL_FAILURE(expect_agreement(packing, instance, members)) << "round " << round;
      admissions += static_cast<int>(packing.admissions().size());
    }
  }
  EXPECT_GT(admissions, 1000);
}

}  // namespace
}  // namespace topas::testing
