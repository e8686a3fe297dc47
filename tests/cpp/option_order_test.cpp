// The order of options: what is open, and the first that fits, against a plain list.
#include "option_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "support/random_cases.hpp"

namespace topas::testing {
namespace {

using detail::OptionOrder;
using detail::Ranked;

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

/// `count` options of random agents and sizes, many of them equally dense; requests are numbered otherwise than places.
std::vector<Ranked> random_options(Random& random, std::uint32_t count, std::uint32_t agents, std::int64_t largest) {
  std::vector<Ranked> out;
  double density = 100.0;
  for (std::uint32_t place = 0; place < count; ++place) {
    density -= random.chance(0.5) ? random.unit() : 0.0;
    const std::int64_t kv_tokens = random.between(1, largest);
    out.push_back({{count - 1 - place, density * static_cast<double>(kv_tokens), density},
                   0.0,
                   static_cast<std::uint32_t>(random.below(agents)),
                   0,
                   kv_tokens});
  }
  return out;
}

/// The first open place whose option fits, looked at one by one.
template <class Fits>
std::uint32_t plain_next(const OptionOrder& order, const std::vector<std::uint8_t>& open, std::uint32_t place,
                         const Fits& fits) {
  while (place < order.size() && (open[place] == 0 || !fits(order[place]))) {
    ++place;
  }
  return place;
}

/// Favours some of the agents, a few no longer; which.
std::vector<std::uint8_t> favour_some(Random& random, OptionOrder& order, std::uint32_t agents) {
  std::vector<std::uint8_t> out(agents, 0);
  for (int time = 0; time < 2; ++time) {
    for (std::uint32_t agent = 0; agent < agents; ++agent) {
      if (random.chance(0.4)) {
        out[agent] ^= 1U;
        order.favour_or_not(agent);
      }
    }
  }
  return out;
}

std::vector<std::uint32_t> random_members(Random& random, std::uint32_t agents) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t agent = 0; agent < agents; ++agent) {
    if (random.chance(0.5)) {
      out.push_back(agent);
    }
  }
  return out;
}

TEST(OptionOrder, FindsWhatAPlainListFinds) {
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    const auto agents = static_cast<std::uint32_t>(random.between(1, 9));
    const auto count = static_cast<std::uint32_t>(random.between(0, 200));
    OptionOrder order;
    order.assign(random_options(random, count, agents, random.chance(0.5) ? 40 : 100'000), agents, count);
    for (int set = 0; set < 12; ++set) {
      const auto members = random_members(random, agents);
      order.open(members);
      const auto favoured = favour_some(random, order, agents);
      std::vector<std::uint8_t> open(count, 0);
      for (std::uint32_t place = 0; place < count; ++place) {
        open[place] = std::binary_search(members.begin(), members.end(), order[place].agent) ? 1 : 0;
      }
      for (int step = 0; step < 20 && count > 0; ++step) {
        if (random.chance(0.4)) {
          const auto place = static_cast<std::uint32_t>(random.below(count));
          ASSERT_EQ(order.close(order[place].option.request), open[place] != 0);
          open[place] = 0;
        }
        const auto from = static_cast<std::uint32_t>(random.below(count + 1));
        const std::int64_t most = random.chance(0.2) ? kAny : random.between(-1, 120);
        const auto fits = [most](const Ranked& ranked) { return ranked.kv_tokens <= most; };
        ASSERT_EQ(order.next(from, most), plain_next(order, open, from, fits)) << "round " << round;
        const auto even_fits = [most, &favoured](const Ranked& ranked) {
          return ranked.kv_tokens % 2 == 0 && (ranked.kv_tokens <= most || favoured[ranked.agent] != 0);
        };
        ASSERT_EQ(order.next(from, most, even_fits), plain_next(order, open, from, even_fits)) << "round " << round;
      }
    }
  }
}

TEST(OptionOrder, MarksWhereEqualDensitiesEnd) {
  OptionOrder order;
  order.assign({{{0, 6.0, 3.0}, 0.0, 0, 0, 2}, {{1, 3.0, 3.0}, 0.0, 1, 0, 1}, {{2, 2.0, 2.0}, 0.0, 0, 0, 1}}, 2, 3);
  EXPECT_EQ(order[0].run_end, 2U);
  EXPECT_EQ(order[1].run_end, 2U);
  EXPECT_EQ(order[2].run_end, 3U);
}

TEST(OptionOrder, TakesInOneMoreAgent) {
  OptionOrder order;
  order.assign({{{0, 6.0, 3.0}, 0.0, 1, 0, 2}, {{1, 2.0, 2.0}, 0.0, 0, 0, 1}}, 2, 2);
  order.open(std::vector<std::uint32_t>{0});
  EXPECT_EQ(order.next(0, kAny), 1U);
  order.include(1);
  EXPECT_EQ(order.next(0, kAny), 0U);
  order.open(std::vector<std::uint32_t>{0});
  EXPECT_EQ(order.next(0, kAny), 1U);
}

TEST(OptionOrder, HasNothingThatIsNotRanked) {
  OptionOrder order;
  order.assign({}, 2, 3);
  order.open(std::vector<std::uint32_t>{0, 1});
  EXPECT_EQ(order.next(0, kAny), 0U);
  EXPECT_FALSE(order.close(1));
}

}  // namespace
}  // namespace topas::testing
