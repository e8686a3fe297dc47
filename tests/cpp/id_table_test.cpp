// The tables of the incremental door against those of the standard library, on random insertions and removals.
#include "id_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "random.hpp"
#include "request_list.hpp"

namespace topas::detail {
namespace {

struct Named {
  Id id;
};

/// Few different ones, so that they come again: integers of both signs and strings, some with a long common beginning.
Id random_id(SplitMix64& random) {
  const auto number = static_cast<std::int64_t>(random.below(200)) - 100;
  switch (random.below(4)) {
    case 0:
      return number;
    case 1:
      return number * (std::numeric_limits<std::int64_t>::max() / 100);
    case 2:
      return "agent-" + std::to_string(number);
    default:
      return std::string(random.below(12), random.below(2) == 0 ? '\0' : '\xff');
  }
}

TEST(IdTable, FindsWhatAMapFinds) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SplitMix64 random(seed);
    IdTable<Named> table;
    std::map<Id, Named*> plain;
    for (int step = 0; step < 2000; ++step) {
      const Id id = random_id(random);
      const auto known = plain.find(id);
      ASSERT_EQ(table.find(id), known == plain.end() ? nullptr : known->second);
      if (known == plain.end()) {
        plain[id] = &table.insert(std::make_unique<Named>(Named{id}));
      } else if (random.below(3) > 0) {
        table.erase(*known->second);
        plain.erase(known);
      }
      ASSERT_EQ(table.size(), plain.size());
    }
    std::vector<Id> visited;
    table.for_each([&visited](const Named& named) { visited.push_back(named.id); });
    std::sort(visited.begin(), visited.end());
    ASSERT_TRUE(std::equal(visited.begin(), visited.end(), plain.begin(), plain.end(),
                           [](const Id& id, const auto& entry) { return id == entry.first; }));
  }
}

TEST(OrderKey, AscendsWithTheId) {
  SplitMix64 random(1);
  for (int pair = 0; pair < 20000; ++pair) {
    const Id left = random_id(random);
    const Id right = random_id(random);
    if (left < right) {
      ASSERT_LE(order_key(left), order_key(right)) << to_string(left) << ' ' << to_string(right);
    }
  }
  EXPECT_LT(order_key(std::numeric_limits<std::int64_t>::min()), order_key(-1));
  EXPECT_LT(order_key(-1), order_key(std::int64_t{1}));
  EXPECT_LT(order_key(std::numeric_limits<std::int64_t>::max()), order_key(""));
}

TEST(RequestList, KeepsTheOrderOfIds) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SplitMix64 random(seed);
    RequestList<Named> list;
    std::map<Id, Named> plain;
    for (int step = 0; step < 500; ++step) {
      const Id id = random_id(random);
      const auto [known, added] = plain.try_emplace(id, Named{id});
      if (added) {
        list.insert(known->second);
      } else if (random.below(3) > 0) {
        list.erase(known->second);
        plain.erase(known);
      }
      ASSERT_EQ(list.empty(), plain.empty());
    }
    ASSERT_TRUE(std::equal(list.begin(), list.end(), plain.begin(), plain.end(),
                           [](const auto& listed, const auto& entry) { return listed.request == &entry.second; }));
  }
}

}  // namespace
}  // namespace topas::detail
