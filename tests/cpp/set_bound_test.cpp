// The bounds that decide which sets need not be packed: never below what packing finds.
#include "set_bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "prefix_search.hpp"
#include "support/world.hpp"

namespace topas::testing {
namespace {

using detail::GreedyPack;
using detail::Instance;
using detail::PrefixSet;
using detail::SetBound;

TEST(SetBound, IsNeverBelowWhatPackingFinds) {
  Random random(71);
  std::size_t feasible = 0;
  std::size_t lowered = 0;
  for (int round = 0; round < 1500; ++round) {
    World world(random_config(random));
    if (round % 2 == 0) {
      fill_randomly(world, random);
    } else {
      fill_with_siblings(world, random);
    }
    const Instance& instance = world.build();
    GreedyPack pack(instance);
    const PrefixSet base = random_set(random, instance, 0.4);
    const double density = pack.pack(base).feasible ? pack.density_left() : pack.density_after(random.between(0, 2000));
    SetBound bound(instance, pack, density);
    bound.start_from(base);
    for (int set = 0; set < 12; ++set) {
      const PrefixSet changes = random_set(random, instance, 0.4);
      const PrefixSet members = toggled(base, changes);
      const auto sums = bound.of(members);
      const auto allocation = pack.pack(members);
      // A set is bounded as packing sees it, but for one that packing leaves without an emission.
      ASSERT_TRUE(bound.feasible(sums) || !allocation.feasible) << "round " << round;
      if (!allocation.feasible) {
        continue;
      }
      ++feasible;
      ASSERT_GE(bound.upper(sums), allocation.score) << "round " << round;
      const double upper = bound.tighter(changes, allocation.score).upper;
      ASSERT_GE(upper, allocation.score) << "round " << round;
      lowered += upper < bound.upper(sums) ? 1U : 0U;
    }
  }
  EXPECT_GT(feasible, 3000U);
  EXPECT_GT(lowered, 1000U) << "or it would not be worth its cost";
}

TEST(SetBound, ByArrivalItTellsWhatPackingFinds) {
  Random random(72);
  std::size_t feasible = 0;
  std::size_t without = 0;
  std::size_t below = 0;  // the bar
  std::size_t told = 0;   // where moving costs something
  for (int round = 0; round < 1500; ++round) {
    const Config config = random_service_config(random);
    World world(config);
    fill_with_a_queue(world, random);
    const Instance& instance = world.build();
    GreedyPack pack(instance);
    const PrefixSet base = random_set(random, instance, 0.4);
    SetBound bound(instance, pack, pack.density_after(random.between(0, 200)));
    bound.start_from(base);
    for (int set = 0; set < 12; ++set) {
      const PrefixSet changes = random_set(random, instance, 0.4);
      const PrefixSet members = toggled(base, changes);
      const auto sums = bound.of(members);
      const auto allocation = pack.pack(members);
      if (!bound.feasible(sums)) {
        ASSERT_FALSE(allocation.feasible) << "round " << round;
        continue;
      }
      const auto [upper, lower] = bound.tighter(changes, -std::numeric_limits<double>::infinity());
      ASSERT_EQ(std::isinf(upper), !allocation.feasible) << "round " << round;
      feasible += allocation.feasible ? 1U : 0U;
      without += allocation.feasible ? 0U : 1U;
      if (!allocation.feasible) {
        continue;
      }
      ASSERT_GE(upper, allocation.score) << "round " << round;
      ASSERT_LE(lower, allocation.score) << "round " << round;
      const double bar = allocation.score + random.unit() * std::abs(allocation.score) - 1.0;
      const double with_bar = bound.tighter(changes, bar).upper;
      ASSERT_TRUE(with_bar == upper || (std::isinf(with_bar) && upper < bar)) << "round " << round;
      below += std::isinf(with_bar) ? 1U : 0U;
      told += std::isinf(lower) || config.move_weight == 0.0 ? 0U : 1U;
      if (config.move_weight == 0.0) {
        const double rounding = config.backlog_weight == 0.0 ? 1e-6 : 1e-5;  // of larger scores
        ASSERT_LE(upper, allocation.score + rounding) << "round " << round;
      }
    }
  }
  EXPECT_GT(feasible, 3000U);
  EXPECT_GT(below, 1000U);
  EXPECT_GT(told, 100U);
  EXPECT_GT(without, 100U) << "an overdue request ends the walk before every agent is covered";
}

}  // namespace
}  // namespace topas::testing
