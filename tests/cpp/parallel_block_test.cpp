// Parallel stages with all their outcomes: the bits of the general way, which writes every outcome down.
#include "parallel_block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "support/naive.hpp"

namespace topas::testing {
namespace {

using detail::ParallelBlock;
using detail::PathBlock;
using detail::PathScratch;

/// Parallel stages, some of them reducible, both ways.
class Parallel {
 public:
  Parallel(Random& random, std::uint32_t stages, int totals) {
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      auto& support = supports_.emplace_back(static_cast<std::size_t>(random.between(1, totals)));
      std::generate(support.begin(), support.end(),
                    [&random] { return random.chance(0.5) ? random.quarters(8) : random.unit() * 4; });
      std::sort(support.begin(), support.end());
      if (random.chance(0.8)) {
        reducible_.push_back(stage);
      }
    }
  }

  [[nodiscard]] std::size_t reducible() const { return reducible_.size(); }
  [[nodiscard]] ParallelBlock fast() const { return {supports_, reducible_}; }
  [[nodiscard]] PathBlock general() const {
    std::vector<std::uint32_t> stages(supports_.size());
    std::iota(stages.begin(), stages.end(), 0U);
    return {graph_of(Adjacency(supports_.size())), stages, detail::enumerate_outcomes(supports_, 1U << 20U),
            reducible_};
  }

 private:
  std::vector<std::vector<double>> supports_;
  std::vector<std::uint32_t> reducible_;
};

std::vector<double> random_reduction(Random& random, std::size_t size) {
  std::vector<double> out(size);
  std::generate(out.begin(), out.end(), [&random] { return random.chance(0.3) ? 0.0 : random.unit() * 6; });
  return out;
}

TEST(ParallelBlock, GivesTheBitsOfTheGeneralWay) {
  Random random(81);
  for (int round = 0; round < 300; ++round) {
    const Parallel now(random, static_cast<std::uint32_t>(random.between(1, 7)), 4);
    const ParallelBlock fast = now.fast();
    const PathBlock general = now.general();
    ASSERT_EQ(fast.outcomes(), general.outcomes());
    PathScratch scratch;
    for (int set = 0; set < 4; ++set) {
      const auto reduction = random_reduction(random, now.reducible());
      ASSERT_EQ(fast.expected_path(reduction, scratch), general.expected_path(reduction, scratch)) << "round " << round;
    }
  }
}

TEST(ParallelBlock, GivesTheBitsOfAlternatives) {
  Random random(82);
  for (int round = 0; round < 200; ++round) {
    const Parallel now(random, static_cast<std::uint32_t>(random.between(1, 7)), 4);
    const auto reduction = random_reduction(random, now.reducible());
    std::vector<PathBlock::Alternative> alternatives;
    for (std::uint32_t index = 0; index < now.reducible(); ++index) {
      for (auto left = random.below(3); left > 0; --left) {
        alternatives.push_back({index, random.unit() * 6});
      }
    }
    std::vector<double> fast(alternatives.size());
    std::vector<double> general(alternatives.size());
    PathScratch scratch;
    ASSERT_EQ(now.fast().expected_paths(reduction, alternatives, fast, scratch),
              now.general().expected_paths(reduction, alternatives, general, scratch));
    ASSERT_EQ(fast, general) << "round " << round;
  }
}

TEST(ParallelBlock, GainsOfSubsetsAreWhatThePathFallsBy) {
  Random random(83);
  for (int round = 0; round < 200; ++round) {
    const Parallel now(random, static_cast<std::uint32_t>(random.between(1, 7)), round % 2 == 0 ? 4 : 2);
    const ParallelBlock block = now.fast();
    const auto reduction = random_reduction(random, now.reducible());
    std::vector<double> gains;
    PathScratch scratch;
    block.gains_of_subsets(reduction, gains, scratch);
    ASSERT_EQ(gains.size(), std::size_t{1} << now.reducible());
    const double before = block.expected_path(std::vector<double>(now.reducible(), 0.0), scratch);
    for (std::size_t set = 0; set < gains.size(); ++set) {
      std::vector<double> some(now.reducible(), 0.0);
      for (std::size_t at = 0; at < some.size(); ++at) {
        some[at] = ((set >> at) & 1U) != 0 ? reduction[at] : 0.0;
      }
      ASSERT_NEAR(gains[set], before - block.expected_path(some, scratch), 1e-13) << "round " << round << ", " << set;
    }
  }
}

TEST(ParallelBlock, TheScratchHoldsNothing) {
  Random random(84);
  const Parallel small(random, 2, 3);
  const Parallel large(random, 6, 4);
  PathScratch used;
  std::fill_n(used.values(5000), 5000, 1e300);
  PathScratch fresh;
  for (const Parallel* now : {&small, &large, &small}) {
    const auto reduction = random_reduction(random, now->reducible());
    EXPECT_EQ(now->fast().expected_path(reduction, used), now->fast().expected_path(reduction, fresh));
  }
}

}  // namespace
}  // namespace topas::testing
