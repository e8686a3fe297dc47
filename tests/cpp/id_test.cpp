// Ids: their order and their hash decide ties and draws, so both are fixed.
#include "topas/id.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "random.hpp"
#include "tie.hpp"

namespace topas {
namespace {

TEST(Id, IntegersAndStringsAreDifferent) {
  EXPECT_NE(Id(7), Id("7"));
  EXPECT_NE(stable_hash(Id(7)), stable_hash(Id("7")));
  EXPECT_EQ(Id("a"), Id(std::string("a")));
}

TEST(Id, OrderedIntegersFirstThenBytes) {
  std::vector<Id> ids{Id("b"), Id(""), Id("a\xc3\xa4"), Id("az"), Id(10), Id(-3), Id(9), Id("B")};
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (std::vector<Id>{Id(-3), Id(9), Id(10), Id(""), Id("B"), Id("az"), Id("a\xc3\xa4"), Id("b")}));
}

TEST(Id, TheWholeRangeOfIntegers) {
  const Id least(std::numeric_limits<std::int64_t>::min());
  const Id most(std::numeric_limits<std::int64_t>::max());
  EXPECT_LT(least, most);
  EXPECT_EQ(to_string(least), "-9223372036854775808");
  EXPECT_NE(stable_hash(least), stable_hash(most));
}

TEST(Id, IsSpelledAsItWouldBeInPython) {
  EXPECT_EQ(to_string(Id(-7)), "-7");
  EXPECT_EQ(to_string(Id("planner")), "'planner'");
}

TEST(Id, ControlCharactersAreWrittenOut) {
  EXPECT_EQ(to_string(Id(std::string("a\n\0b\x7f", 5))), "'a\\x0a\\x00b\\x7f'");
  EXPECT_EQ(to_string(Id("\xc3\xa4")), "'\xc3\xa4'");
}

TEST(Id, TheHashIsFixed) {
  EXPECT_EQ(stable_hash(Id(std::int64_t{0})), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(stable_hash(Id(-1)), detail::mix(0xffffffffffffffffULL));
  EXPECT_EQ(stable_hash(Id("")), detail::mix(~0xcbf29ce484222325ULL));
  EXPECT_EQ(stable_hash(Id("a")), detail::mix(~0xaf63dc4c8601ec8cULL));
}

TEST(Tie, ByTheLargerOfOneAndTheValues) {
  EXPECT_TRUE(detail::tie(0.0, 1e-12));
  EXPECT_FALSE(detail::tie(0.0, 1.1e-12));
  EXPECT_TRUE(detail::tie(1000.0, 1000.0 + 9e-10));
  EXPECT_FALSE(detail::tie(1000.0, 1000.0 + 2e-9));
  EXPECT_TRUE(detail::tie(-1000.0, -1000.0 - 9e-10));
}

TEST(Tie, AnInfiniteValueTiesWithItselfOnly) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(detail::tie(-kInfinite, -kInfinite));
  EXPECT_FALSE(detail::tie(-kInfinite, -1e300));
  EXPECT_TRUE(detail::beats(-1e300, -kInfinite));
  EXPECT_FALSE(detail::beats(-kInfinite, -kInfinite));
}

TEST(Tie, ToBeatIsMoreThanToTie) {
  EXPECT_FALSE(detail::beats(1.0 + 1e-13, 1.0));
  EXPECT_TRUE(detail::beats(1.0 + 1e-11, 1.0));
  EXPECT_FALSE(detail::beats(1.0, 2.0));
}

}  // namespace
}  // namespace topas
