// Residuals and the window of observations behind them (SPEC section 2).
#include "residual.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <vector>

#include "profile.hpp"
#include "support/random_cases.hpp"

namespace topas::detail {
namespace {

using Values = std::vector<double>;

Values support_of(const Values& totals, double served, double request_s = 9.0) {
  Values out{-1.0};  // whatever was in it before
  residual_support({false, totals, served, request_s}, out);
  return out;
}

Values sorted(std::span<const double> values) { return {values.begin(), values.end()}; }

TEST(Residual, AStageThatHasNotStartedDrawsFromAllTotals) {
  EXPECT_EQ(support_of({0.0, 1.0, 1.0, 4.0}, 0.0), (Values{0.0, 1.0, 1.0, 4.0}));
}

TEST(Residual, IsConditionedOnTheServiceSoFar) {
  EXPECT_EQ(support_of({1.0, 2.0, 5.0, 5.0}, 1.5), (Values{0.5, 3.5, 3.5}));
}

TEST(Residual, ATotalEqualToTheServiceSoFarIsExcluded) { EXPECT_EQ(support_of({1.0, 2.0, 5.0}, 2.0), (Values{3.0})); }

TEST(Residual, BeyondAllTotalsIsTheMeanOfOneRequest) {
  EXPECT_EQ(support_of({1.0, 2.0}, 2.0, 0.75), (Values{0.75}));
  EXPECT_EQ(support_of({1.0, 2.0}, 100.0, 0.75), (Values{0.75}));
}

TEST(Residual, BeyondAllTotalsMayBeNothingWhenRequestsTakeNothing) {
  EXPECT_EQ(support_of({1.0}, 3.0, 0.0), (Values{0.0}));
}

TEST(Residual, StaysAboveZeroForTheSmallestDifference) {
  const double served = 3.0;
  const double next = std::nextafter(served, 4.0);
  const Values support = support_of({served, next}, served);
  ASSERT_EQ(support.size(), 1U);
  EXPECT_GT(support.front(), 0.0);
}

TEST(ExpectedResidual, IsTheMeanOfWhatTheSupportGives) {
  testing::Random random(9);
  for (int round = 0; round < 500; ++round) {
    Values totals(static_cast<std::size_t>(random.between(1, 40)));
    std::generate(totals.begin(), totals.end(), [&random] { return random.unit() * 8.0; });
    std::sort(totals.begin(), totals.end());
    const StageOutlook stage{false, totals, random.chance(0.5) ? random.unit() * 9.0 : 0.0, random.unit() * 3.0};
    const double reduction = random.chance(0.3) ? 0.0 : random.unit() * 5.0;
    Values support;
    residual_support(stage, support);
    double sum = 0.0;
    for (const double residual : support) {
      sum += std::max(residual - reduction, 0.0);
    }
    ASSERT_EQ(residual_support_size(stage), support.size());
    ASSERT_NEAR(expected_residual(stage, reduction), sum / static_cast<double>(support.size()), 1e-12);
  }
}

TEST(ExpectedResidual, BeyondAllTotalsIsReducedToo) {
  const Values totals{1.0, 2.0};
  EXPECT_DOUBLE_EQ(expected_residual({false, totals, 5.0, 0.75}, 0.5), 0.25);
  EXPECT_EQ(expected_residual({false, totals, 5.0, 0.75}, 1.0), 0.0);
  EXPECT_EQ(residual_support_size({false, totals, 5.0, 0.75}), 1U);
}

TEST(Window, StartsEmpty) {
  const Window window;
  EXPECT_TRUE(window.empty());
  EXPECT_TRUE(window.sorted().empty());
}

TEST(Window, KeepsDuplicatesInOrder) {
  Window window;
  for (const double value : {3.0, 1.0, 3.0, 2.0}) {
    window.add(value);
  }
  EXPECT_EQ(sorted(window.sorted()), (Values{1.0, 2.0, 3.0, 3.0}));
  EXPECT_DOUBLE_EQ(window.mean(), 2.25);
}

TEST(Window, KeepsTheLatest256) {
  Window window;
  for (int value = 0; value < 256; ++value) {
    window.add(value);
  }
  EXPECT_EQ(window.sorted().size(), 256U);
  EXPECT_EQ(window.sorted().front(), 0.0);
  window.add(1000.0);
  EXPECT_EQ(window.sorted().size(), 256U);
  EXPECT_EQ(window.sorted().front(), 1.0);
  EXPECT_EQ(window.sorted().back(), 1000.0);
}

TEST(Window, EvictsTheOldestAmongDuplicates) {
  Window window;
  std::deque<double> latest;
  testing::Random random(7);
  for (int round = 0; round < 1500; ++round) {
    const double value = random.quarters(2);  // nine values: duplicates all over
    window.add(value);
    latest.push_back(value);
    if (latest.size() > 256) {
      latest.pop_front();
    }
    Values expected(latest.begin(), latest.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(sorted(window.sorted()), expected) << "after " << round;
    ASSERT_DOUBLE_EQ(window.mean(),
                     std::accumulate(expected.begin(), expected.end(), 0.0) / static_cast<double>(expected.size()));
  }
}

TEST(Window, TakesInWhatIsNewWheneverItIsAsked) {
  testing::Random random(33);
  Window window;
  Window asked_each_time;
  std::deque<double> latest;
  for (int burst = 0; burst < 400; ++burst) {
    for (auto more = random.between(0, 9); more > 0; --more) {
      const double value = random.quarters(40);
      window.add(value);
      asked_each_time.add(value);
      ASSERT_FALSE(asked_each_time.sorted().empty());
      latest.push_back(value);
      if (latest.size() > Window::kWindow) {
        latest.pop_front();
      }
    }
    ASSERT_EQ(window.size(), latest.size());
    ASSERT_EQ(window.empty(), latest.empty());
    if (random.chance(0.3)) {
      ASSERT_EQ(window.mean(), asked_each_time.mean()) << "to the bit";
    }
    if (random.chance(0.3)) {
      Values expected(latest.begin(), latest.end());
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(sorted(window.sorted()), expected) << "burst " << burst;
    }
  }
  EXPECT_EQ(latest.size(), Window::kWindow);
}

TEST(Window, MeanDependsOnNothingButTheLatest256) {
  testing::Random random(9);
  Values values;
  Window window;
  for (int round = 0; round < 1000; ++round) {
    values.push_back(random.unit() * 1e6);
    window.add(values.back());
  }
  Window fresh;
  for (auto at = values.end() - 256; at != values.end(); ++at) {
    fresh.add(*at);
  }
  EXPECT_EQ(window.mean(), fresh.mean()) << "to the last bit";
}

TEST(Window, MeanDoesNotDependOnTheOrderOfArrival) {
  testing::Random random(8);
  Values values(200);
  std::generate(values.begin(), values.end(), [&random] { return random.unit() * 100.0; });
  Window forward;
  Window backward;
  std::for_each(values.begin(), values.end(), [&](double value) { forward.add(value); });
  std::for_each(values.rbegin(), values.rend(), [&](double value) { backward.add(value); });
  EXPECT_EQ(forward.mean(), backward.mean());
}

TEST(Profile, IsThePointsThatWereProfiledBeforeAnythingIsObserved) {
  const Profile profile(8.0, 2.0);
  EXPECT_EQ(sorted(profile.sorted_totals()), (Values{8.0}));
  EXPECT_EQ(profile.request_s(), 2.0);
  EXPECT_FALSE(profile.has_requests());
  EXPECT_EQ(profile.samples(), 0U);
}

TEST(Profile, TotalsAndRequestsAreObservedOnTheirOwn) {
  Profile profile(8.0, 2.0);
  profile.record_request(4.0);
  EXPECT_EQ(profile.request_s(), 4.0);
  EXPECT_TRUE(profile.has_requests());
  EXPECT_EQ(sorted(profile.sorted_totals()), (Values{8.0})) << "no execution has been completed";
  profile.record_total(6.0);
  profile.record_total(5.0);
  EXPECT_EQ(sorted(profile.sorted_totals()), (Values{5.0, 6.0})) << "the profiled point is gone";
  EXPECT_EQ(profile.samples(), 2U);
}

TEST(Profile, VersionChangesWithEveryObservation) {
  Profile profile(1.0, 1.0);
  const auto fresh = profile.version();
  profile.record_request(1.0);
  const auto after_request = profile.version();
  profile.record_total(1.0);
  EXPECT_NE(fresh, after_request);
  EXPECT_NE(after_request, profile.version());
}

TEST(Profile, IsBounded) {
  Profile profile(1.0, 1.0);
  for (int round = 0; round < 10'000; ++round) {
    profile.record_total(round);
    profile.record_request(round);
  }
  EXPECT_EQ(profile.samples(), Window::kWindow);
  EXPECT_EQ(profile.sorted_totals().front(), 10'000.0 - 256.0);
  EXPECT_DOUBLE_EQ(profile.request_s(), 10'000.0 - 128.5);
}

}  // namespace
}  // namespace topas::detail
