// Joint outcomes: all of them, or stratified draws that depend on nothing but their arguments.
#include "draws.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "random.hpp"
#include "support/drawn.hpp"

namespace topas::detail {
namespace {

using testing::draw_outcomes;
using Supports = std::vector<std::vector<double>>;

std::vector<double> row(const Outcomes& outcomes, std::size_t stage, std::size_t count) {
  return {outcomes.residual[stage], outcomes.residual[stage] + count};
}

std::vector<double> counting(std::size_t size) {
  std::vector<double> out(size);
  std::iota(out.begin(), out.end(), 0.0);
  return out;
}

std::size_t outcomes_in(const Outcomes& outcomes) {
  return static_cast<std::size_t>(
      std::count_if(outcomes.weights.begin(), outcomes.weights.end(), [](double weight) { return weight > 0.0; }));
}

TEST(Rows, ArePaddedToEight) {
  EXPECT_EQ(Rows(2, 1).columns(), 8U);
  EXPECT_EQ(Rows(2, 8).columns(), 8U);
  EXPECT_EQ(Rows(2, 9).columns(), 16U);
  EXPECT_EQ(Rows().columns(), 0U);
}

TEST(Random, IsSplitMix64) {
  SplitMix64 random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4ULL);
  EXPECT_EQ(random.next(), 0x06c45d188009454fULL);
}

TEST(Random, BelowStaysBelow) {
  SplitMix64 random(5);
  std::array<int, 7> seen{};
  for (int round = 0; round < 7000; ++round) {
    ++seen.at(random.below(7));
  }
  EXPECT_GT(*std::min_element(seen.begin(), seen.end()), 800);
  EXPECT_EQ(random.below(1), 0U);
}

TEST(Random, UnitStaysInItsInterval) {
  SplitMix64 random(6);
  for (int round = 0; round < 1000; ++round) {
    const double value = random.unit();
    EXPECT_GE(value, 0.0);
    EXPECT_LT(value, 1.0);
  }
}

TEST(Enumerate, ProbabilitiesAddUpToOne) {
  const Outcomes outcomes = enumerate_outcomes({{1.0, 2.0, 2.0}, {0.0}, {3.0, 4.0, 5.0, 5.0, 5.0}}, 100);
  EXPECT_EQ(outcomes_in(outcomes), 6U) << "distinct values only";
  EXPECT_NEAR(std::accumulate(outcomes.weights.begin(), outcomes.weights.end(), 0.0), 1.0, 1e-12);
  EXPECT_EQ(outcomes.total_weight, 1.0);
}

TEST(Enumerate, EveryJointOutcomeOnceWithItsProbability) {
  const Outcomes outcomes = enumerate_outcomes({{1.0, 2.0, 2.0}, {3.0, 7.0}}, 4);
  std::map<std::pair<double, double>, double> seen;
  for (std::size_t at = 0; at < 4; ++at) {
    seen[{outcomes.residual[0][at], outcomes.residual[1][at]}] += outcomes.weights[at];
  }
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_DOUBLE_EQ((seen[{1.0, 3.0}]), 1.0 / 6.0);
  EXPECT_DOUBLE_EQ((seen[{2.0, 7.0}]), 2.0 / 6.0);
}

TEST(Enumerate, StopsAboveTheLimit) {
  const Supports supports{counting(4), counting(5), counting(5)};
  EXPECT_EQ(outcomes_in(enumerate_outcomes(supports, 100)), 100U) << "exactly the limit is allowed";
  EXPECT_TRUE(enumerate_outcomes(supports, 99).weights.empty());
}

TEST(Enumerate, OnePointPassesEveryLimit) { EXPECT_EQ(outcomes_in(enumerate_outcomes({{2.0, 2.0}}, 1)), 1U); }

TEST(Enumerate, ManyStagesDoNotOverflow) {
  EXPECT_TRUE(enumerate_outcomes(Supports(200, counting(250)), 1U << 20U).weights.empty());
  EXPECT_EQ(outcomes_in(enumerate_outcomes(Supports(200, {1.0}), 1)), 1U);
}

TEST(Draws, EachStratumExactlyOnce) {
  constexpr std::size_t kCount = 128;
  const Outcomes outcomes = draw_outcomes({counting(kCount)}, std::vector<std::uint64_t>{11}, kCount);
  auto values = row(outcomes, 0, kCount);
  EXPECT_FALSE(std::is_sorted(values.begin(), values.end())) << "in an order of their own";
  std::sort(values.begin(), values.end());
  EXPECT_EQ(values, counting(kCount));
}

TEST(Draws, SeveralDrawsOfAnEvenShareOfTheSupport) {
  const Outcomes outcomes = draw_outcomes({counting(4)}, std::vector<std::uint64_t>{12}, 100);
  std::map<double, int> seen;
  for (const double value : row(outcomes, 0, 100)) {
    ++seen[value];
  }
  EXPECT_EQ(seen, (std::map<double, int>{{0.0, 25}, {1.0, 25}, {2.0, 25}, {3.0, 25}}));
}

TEST(Draws, OneDrawInEachStratumOfALargerSupport) {
  constexpr std::size_t kCount = 16;
  constexpr std::size_t kSize = 250;
  const Outcomes outcomes = draw_outcomes({counting(kSize)}, std::vector<std::uint64_t>{13}, kCount);
  auto values = row(outcomes, 0, kCount);
  std::sort(values.begin(), values.end());
  for (std::size_t stratum = 0; stratum < kCount; ++stratum) {
    EXPECT_GE(values[stratum], std::floor(static_cast<double>(stratum * kSize) / kCount));
    EXPECT_LE(values[stratum], std::floor(static_cast<double>((stratum + 1) * kSize) / kCount));
  }
}

/// The draws of one stage as they are specified.
std::vector<double> draws_by_recipe(const std::vector<double>& support, std::uint64_t state, std::uint32_t count) {
  const auto next = [&state] {
    const std::uint64_t out = mix(state);
    state += 0x9E3779B97F4A7C15ULL;
    return out;
  };
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  for (std::uint32_t i = count - 1; i >= 1; --i) {
    __extension__ using Wide = unsigned __int128;
    std::swap(order[i], order[static_cast<std::uint32_t>((static_cast<Wide>(next()) * (i + 1)) >> 64U)]);
  }
  std::vector<double> out;
  for (std::uint32_t k = 0; k < count; ++k) {
    const double jitter = static_cast<double>(next() >> 11U) * 0x1.0p-53;
    const auto index = static_cast<std::size_t>((order[k] + jitter) * static_cast<double>(support.size()) / count);
    out.push_back(support[std::min(index, support.size() - 1)]);
  }
  return out;
}

TEST(Draws, FollowTheirRecipeBitForBit) {
  for (std::uint64_t stream = 0; stream < 50; ++stream) {
    const auto count = static_cast<std::uint32_t>(1 + stream * 3);
    const std::vector<double> support = counting(5 + stream);
    const Outcomes outcomes = draw_outcomes({support}, std::vector{stream}, count);
    ASSERT_EQ(row(outcomes, 0, count), draws_by_recipe(support, stream, count)) << stream;
  }
}

TEST(Draws, OneStageKeepsItsPlacesAsItsSupportGrows) {
  StageDraws kept(7, 40);
  for (std::size_t size = 1; size < 60; size += 7) {
    std::vector<double> row(40);
    kept.draw(counting(size), row.data());
    ASSERT_EQ(row, draws_by_recipe(counting(size), 7, 40)) << size;
  }
  EXPECT_TRUE(kept.same_as(7, 40));
  EXPECT_FALSE(kept.same_as(8, 40));
  EXPECT_FALSE(kept.same_as(7, 41));
}

TEST(Draws, APointNeedsNone) {
  const Outcomes outcomes = draw_outcomes({{2.5}}, std::vector<std::uint64_t>{1}, 3);
  EXPECT_EQ(row(outcomes, 0, 3), (std::vector{2.5, 2.5, 2.5}));
  EXPECT_EQ(outcomes.total_weight, 3.0);
  EXPECT_EQ(outcomes_in(outcomes), 3U) << "the padding has no weight";
}

TEST(Draws, DoNotDependOnTheOtherStages) {
  const std::vector<std::uint64_t> streams{21, 22, 23};
  const Outcomes three = draw_outcomes({counting(5), counting(9), counting(30)}, streams, 50);
  const Outcomes alone = draw_outcomes({counting(9)}, std::vector<std::uint64_t>{22}, 50);
  EXPECT_EQ(row(three, 1, 50), row(alone, 0, 50));
}

TEST(Draws, StagesAreShuffledIndependently) {
  const std::vector<std::uint64_t> streams{draw_stream(1, 2, 0), draw_stream(1, 2, 1)};
  const Outcomes outcomes = draw_outcomes({counting(64), counting(64)}, streams, 64);
  EXPECT_NE(row(outcomes, 0, 64), row(outcomes, 1, 64));
}

TEST(Draws, TheStreamDependsOnSeedTaskAndStageOnly) {
  EXPECT_EQ(draw_stream(1, 2, 3), draw_stream(1, 2, 3));
  EXPECT_NE(draw_stream(1, 2, 3), draw_stream(2, 2, 3));
  EXPECT_NE(draw_stream(1, 2, 3), draw_stream(1, 3, 3));
  EXPECT_NE(draw_stream(1, 2, 3), draw_stream(1, 2, 4));
  EXPECT_EQ(draw_stream(0, 0, 0), mix(mix(mix(0) ^ 0) ^ 0));
}

}  // namespace
}  // namespace topas::detail
