// What is done for each prefix set allocates nothing once buffers have grown.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "prefix_search.hpp"
#include "set_bound.hpp"
#include "support/allocations.hpp"
#include "support/world.hpp"

namespace topas::testing {
namespace {

using detail::GreedyPack;
using detail::Instance;
using detail::PrefixSet;
using detail::SetBound;

std::vector<PrefixSet> random_sets(Random& random, const Instance& instance) {
  std::vector<PrefixSet> out(20);
  std::generate(out.begin(), out.end(), [&] { return random_set(random, instance, 0.5); });
  return out;
}

/// By density and by arrival, with siblings and with a queue.
const Instance& build(World& world, Random& random, int round) {
  if (round % 4 < 2) {
    fill_with_siblings(world, random);
  } else {
    fill_with_a_queue(world, random);
  }
  return world.build();
}

/// Allocations of the second time that something is done.
template <class Work>
std::size_t allocations_again(const Work& work) {
  work();
  const std::size_t before = allocations();
  work();
  return allocations() - before;
}

TEST(Allocation, CountsWhatIsAllocated) {
  EXPECT_EQ(allocations_again([] { EXPECT_EQ(std::vector<int>(100).size(), 100U); }), 1U);
}

TEST(Allocation, PackingASetAllocatesNothing) {
  Random random(91);
  std::size_t feasible = 0;
  for (int round = 0; round < 100; ++round) {
    World world(round % 2 == 0 ? random_config(random) : random_service_config(random));
    const Instance& instance = build(world, random, round);
    GreedyPack pack(instance);
    const auto sets = random_sets(random, instance);
    ASSERT_EQ(allocations_again([&] {
                for (const PrefixSet& set : sets) {
                  feasible += pack.pack(set).feasible ? 1U : 0U;
                }
              }),
              0U)
        << "round " << round;
  }
  EXPECT_GT(feasible, 500U);
}

TEST(Allocation, BoundingASetAllocatesNothing) {
  Random random(92);
  constexpr double kNoBar = -std::numeric_limits<double>::infinity();
  std::size_t finite = 0;
  for (int round = 0; round < 100; ++round) {
    World world(round % 2 == 0 ? random_config(random) : random_service_config(random));
    const Instance& instance = build(world, random, round);
    GreedyPack pack(instance);
    SetBound bound(instance, pack, pack.density_after(100));
    const PrefixSet base = random_set(random, instance, 0.5);
    bound.start_from(base);
    auto sets = random_sets(random, instance);  // of agents that are toggled
    std::erase_if(sets, [&](const PrefixSet& changes) { return !bound.feasible(bound.of(toggled(base, changes))); });
    ASSERT_EQ(allocations_again([&] {
                for (const PrefixSet& changes : sets) {
                  finite += std::isfinite(bound.tighter(changes, kNoBar).upper) ? 1U : 0U;
                }
              }),
              0U)
        << "round " << round;
  }
  EXPECT_GT(finite, 500U);
}

}  // namespace
}  // namespace topas::testing
