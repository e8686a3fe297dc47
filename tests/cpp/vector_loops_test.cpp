// The innermost loops, each against a plain one: the same bits, but for sums whose order is not told.
#include "vector_loops.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "support/random_cases.hpp"

namespace topas::testing {
namespace {

using Values = std::vector<double>;

/// Around the widths of vectors, and none at all.
constexpr std::array<std::size_t, 18> kCounts{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 129};
/// Of columns: with and without a rest behind blocks of 16 or 32.
constexpr std::array<std::size_t, 9> kColumns{8, 16, 24, 32, 40, 56, 64, 72, 136};
constexpr int kRounds = 50;
constexpr double kGuard = -777.25;

/// Not negative; quarters among them, so that some tie, and zeros.
double random_value(Random& random) { return random.chance(0.5) ? random.quarters(2) : 2.0 * random.unit(); }

Values random_values(Random& random, std::size_t count) {
  Values out(count);
  std::generate(out.begin(), out.end(), [&random] { return random_value(random); });
  return out;
}

/// With one more value, which no loop may touch.
Values guarded(Values values) {
  values.push_back(kGuard);
  return values;
}

void expect_same_bits(const Values& got, const Values& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    ASSERT_EQ(std::bit_cast<std::uint64_t>(got[k]), std::bit_cast<std::uint64_t>(expected[k]))
        << got[k] << " instead of " << expected[k] << " at " << k << " of " << got.size();
  }
}

/// Runs it a few times with every one of the sizes.
template <std::size_t kSizes>
void for_sizes(const std::array<std::size_t, kSizes>& sizes, const std::function<void(std::size_t)>& run) {
  for (const std::size_t size : sizes) {
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_NO_FATAL_FAILURE(run(size)) << "size " << size << ", round " << round;
    }
  }
}

double plain_path(double residual, double reduction, double below) {
  return std::max(residual - reduction, 0.0) + below;
}

/// Every eighth product into a lane of its own; then the lanes four apart, two apart and one apart.
double plain_sum(const Values& weights, const Values& values) {
  Values lanes(8, 0.0);
  for (std::size_t k = 0; k < values.size(); ++k) {
    lanes[k % 8] += weights[k] * values[k];
  }
  for (const std::size_t apart : {4U, 2U, 1U}) {
    for (std::size_t lane = 0; lane < apart; ++lane) {
      lanes[lane] += lanes[lane + apart];
    }
  }
  return lanes[0];
}

TEST(VectorLoops, RaisesPaths) {
  Random random(201);
  std::size_t lowered = 0;  // to nothing
  std::size_t raised = 0;
  for_sizes(kCounts, [&](std::size_t count) {
    const Values residual = random_values(random, count);
    const Values below = random_values(random, count);
    const double reduction = random_value(random);
    const Values before = guarded(random_values(random, count));
    Values expected = before;
    for (std::size_t k = 0; k < count; ++k) {
      expected[k] = std::max(before[k], plain_path(residual[k], reduction, below[k]));
      lowered += residual[k] <= reduction ? 1U : 0U;
      raised += expected[k] > before[k] ? 1U : 0U;
    }
    Values path = before;
    detail::raise_path(path.data(), residual.data(), reduction, below.data(), count);
    expect_same_bits(path, expected);
  });
  EXPECT_GT(lowered, 1000U);
  EXPECT_GT(raised, 1000U);
}

TEST(VectorLoops, Raises) {
  Random random(202);
  std::size_t raised = 0;
  for_sizes(kCounts, [&](std::size_t count) {
    const Values values = random_values(random, count);
    Values above = guarded(random_values(random, count));
    Values expected = above;
    for (std::size_t k = 0; k < count; ++k) {
      expected[k] = above[k] < values[k] ? values[k] : above[k];
      raised += above[k] < values[k] ? 1U : 0U;
    }
    detail::raise(above.data(), values.data(), count);
    expect_same_bits(above, expected);
  });
  EXPECT_GT(raised, 1000U);
}

TEST(VectorLoops, AddsWhatIsLowered) {
  Random random(203);
  std::size_t added = 0;
  std::size_t lowered = 0;  // to nothing
  for_sizes(kCounts, [&](std::size_t count) {
    const Values residual = random_values(random, count);
    const double reduction = random_value(random);
    Values sum = guarded(random_values(random, count));
    Values expected = sum;
    for (std::size_t k = 0; k < count; ++k) {
      expected[k] = sum[k] + std::max(residual[k] - reduction, 0.0);
      added += residual[k] > reduction ? 1U : 0U;
      lowered += residual[k] < reduction ? 1U : 0U;
    }
    detail::add_lowered(sum.data(), residual.data(), reduction, count);
    expect_same_bits(sum, expected);
  });
  EXPECT_GT(added, 1000U);
  EXPECT_GT(lowered, 1000U);
}

/// A few stages in each of `count` outcomes, and one path more.
struct Outcomes {
  Outcomes(Random& random, std::size_t stages, std::size_t count) : other(random_values(random, count)) {
    for (std::size_t stage = 0; stage < stages; ++stage) {
      residual.push_back(random_values(random, count));
      below.push_back(random_values(random, count));
      reduction.push_back(random_value(random));
    }
  }

  /// The paths of one outcome, the longest first.
  [[nodiscard]] Values paths(std::size_t k) const {
    Values out{other[k], 0.0};
    for (std::size_t stage = 0; stage < residual.size(); ++stage) {
      out.push_back(plain_path(residual[stage][k], reduction[stage], below[stage][k]));
    }
    std::sort(out.begin(), out.end(), std::greater<>());
    return out;
  }

  std::vector<Values> residual, below;
  Values reduction;
  Values other;
};

/// The longest and the next longest paths of the outcomes, as raise_two() tells them.
std::array<Values, 2> longest_two(const Outcomes& outcomes) {
  const std::size_t count = outcomes.other.size();
  Values longest = guarded(outcomes.other);
  Values next = guarded(Values(count, 0.0));
  for (std::size_t stage = 0; stage < outcomes.residual.size(); ++stage) {
    detail::raise_two(longest.data(), next.data(), outcomes.residual[stage].data(), outcomes.reduction[stage],
                      outcomes.below[stage].data(), count);
  }
  return {longest, next};
}

TEST(VectorLoops, RaisesTheLongestTwo) {
  Random random(204);
  std::size_t tied = 0;
  for_sizes(kCounts, [&](std::size_t count) {
    const Outcomes outcomes(random, static_cast<std::size_t>(random.between(1, 7)), count);
    Values longest;
    Values next;
    for (std::size_t k = 0; k < count; ++k) {
      const Values paths = outcomes.paths(k);
      longest.push_back(paths[0]);
      next.push_back(paths[1]);
      tied += paths[0] == paths[1] ? 1U : 0U;
    }
    const auto [got_longest, got_next] = longest_two(outcomes);
    expect_same_bits(got_longest, guarded(longest));
    expect_same_bits(got_next, guarded(next));
  });
  EXPECT_GT(tied, 200U);
}

TEST(VectorLoops, WeighsAPathWithOneStageReplaced) {
  Random random(205);
  std::size_t fell = 0;
  std::size_t stood = 0;  // where the stage was the longest, or as long
  for_sizes(kColumns, [&](std::size_t count) {
    Outcomes outcomes(random, static_cast<std::size_t>(random.between(1, 6)), count);
    const Values weights = random_values(random, count);
    const auto [longest, next] = longest_two(outcomes);
    const std::size_t stage = random.below(outcomes.residual.size());
    const double from = outcomes.reduction[stage];
    const double to = from + random_value(random);
    outcomes.reduction[stage] = to;
    Values expected;
    for (std::size_t k = 0; k < count; ++k) {
      const double before = plain_path(outcomes.residual[stage][k], from, outcomes.below[stage][k]);
      expected.push_back(outcomes.paths(k)[0]);
      fell += expected[k] < longest[k] ? 1U : 0U;
      stood += before == longest[k] && expected[k] == longest[k] ? 1U : 0U;
    }
    const double got =
        detail::weighted_path(weights.data(), longest.data(), next.data(), outcomes.residual[stage].data(), {from, to},
                              outcomes.below[stage].data(), count);
    expect_same_bits({got}, {plain_sum(weights, expected)});
  });
  EXPECT_GT(fell, 500U);
  EXPECT_GT(stood, 200U);
}

TEST(VectorLoops, SumsInEightLanes) {
  Random random(206);
  std::size_t other_order = 0;  // whose bits are others
  for_sizes(kColumns, [&](std::size_t count) {
    const Values weights = random_values(random, count);
    const Values values = random_values(random, count);
    double one_by_one = 0.0;
    for (std::size_t k = 0; k < count; ++k) {
      one_by_one += weights[k] * values[k];
    }
    const double got = detail::weighted_sum(weights.data(), values.data(), count);
    expect_same_bits({got}, {plain_sum(weights, values)});
    other_order += got != one_by_one ? 1U : 0U;
  });
  EXPECT_EQ(detail::weighted_sum(nullptr, nullptr, 0), 0.0);
  EXPECT_GT(other_order, 100U);
}

TEST(VectorLoops, SpreadsPaths) {
  Random random(207);
  std::size_t none = 0;  // is left of a value
  for_sizes(kCounts, [&](std::size_t held) {
    const auto count = static_cast<std::size_t>(random.between(1, 6));
    const Values values = random_values(random, count);
    const double reduction = random_value(random);
    const Values first = random_values(random, held);
    Values expected;
    for (const double value : values) {
      for (const double path : first) {
        expected.push_back(std::max({path, value - reduction, 0.0}));
        none += value <= reduction ? 1U : 0U;
      }
    }
    Values path = first;
    path.resize(held * count, kGuard);
    path.push_back(kGuard);
    detail::spread_path(path.data(), held, values.data(), count, reduction);
    expect_same_bits(path, guarded(expected));
  });
  EXPECT_GT(none, 1000U);
}

TEST(VectorLoops, SpreadsProducts) {
  Random random(208);
  std::size_t compared = 0;
  for_sizes(kCounts, [&](std::size_t held) {
    const auto count = static_cast<std::size_t>(random.between(1, 6));
    const Values factors = random_values(random, count);
    const Values first = random_values(random, held);
    Values expected;
    for (const double factor : factors) {
      for (const double weight : first) {
        expected.push_back(weight * factor);
      }
    }
    Values weights = first;
    weights.resize(held * count, kGuard);
    weights.push_back(kGuard);
    detail::spread_products(weights.data(), held, factors.data(), count);
    expect_same_bits(weights, guarded(expected));
    compared += expected.size();
  });
  EXPECT_GT(compared, 10000U);
}

TEST(VectorLoops, MultipliesAndAdds) {
  Random random(209);
  std::size_t compared = 0;
  for_sizes(kCounts, [&](std::size_t count) {
    const Values left = random_values(random, count);
    const Values right = random_values(random, count);
    Values products;
    Values sums;
    for (std::size_t k = 0; k < count; ++k) {
      products.push_back(left[k] * right[k]);
      sums.push_back(left[k] + right[k]);
    }
    Values product(count + 1, kGuard);
    detail::multiply(product.data(), left.data(), right.data(), count);
    expect_same_bits(product, guarded(products));
    Values sum = guarded(left);
    detail::add(sum.data(), right.data(), count);
    expect_same_bits(sum, guarded(sums));
    compared += count;
  });
  EXPECT_GT(compared, 5000U);
}

TEST(VectorLoops, Orders) {
  Random random(210);
  std::size_t swapped = 0;
  std::size_t tied = 0;
  for_sizes(kCounts, [&](std::size_t count) {
    Values upper = guarded(random_values(random, count));
    Values lower = guarded(random_values(random, count));
    Values larger = upper;
    Values smaller = lower;
    for (std::size_t k = 0; k < count; ++k) {
      swapped += upper[k] < lower[k] ? 1U : 0U;
      tied += upper[k] == lower[k] ? 1U : 0U;
      if (upper[k] < lower[k]) {
        std::swap(larger[k], smaller[k]);
      }
    }
    detail::order(upper.data(), lower.data(), count);
    expect_same_bits(upper, larger);
    expect_same_bits(lower, smaller);
  });
  EXPECT_GT(swapped, 1000U);
  EXPECT_GT(tied, 100U);
}

constexpr std::uint64_t kTagBits = (std::uint64_t{1} << detail::kTags) - 1;

std::uint64_t tag_of(double sum) { return std::bit_cast<std::uint64_t>(sum) & kTagBits; }

TEST(VectorLoops, TagsSums) {
  Random random(211);
  std::size_t compared = 0;
  for_sizes(kCounts, [&](std::size_t count) {
    const Values left = random_values(random, count);
    const Values right = random_values(random, count);
    const std::size_t bit = random.below(detail::kTags);
    const std::uint64_t tag = std::uint64_t{1} << bit;
    Values expected;
    for (std::size_t k = 0; k < count; ++k) {
      const auto bits = std::bit_cast<std::uint64_t>(left[k] + right[k]);
      expected.push_back(std::bit_cast<double>(bits / (kTagBits + 1) * (kTagBits + 1) + tag));
    }
    Values sums(count + 1, kGuard);
    detail::add_tagged(sums.data(), left.data(), right.data(), tag, count);
    expect_same_bits(sums, guarded(expected));
    for (std::size_t k = 0; k < count; ++k) {
      ASSERT_EQ(tag_of(sums[k]), tag);
      ASSERT_NEAR(sums[k], left[k] + right[k], 1e-12);
      ++compared;
    }
    const std::size_t next = (bit + 1) % detail::kTags;  // of equal sums that with the larger tag is larger
    Values others(count);
    detail::add_tagged(others.data(), left.data(), right.data(), std::uint64_t{1} << next, count);
    for (std::size_t k = 0; k < count; ++k) {
      ASSERT_EQ(sums[k] < others[k], bit < next);
    }
  });
  EXPECT_GT(compared, 10000U);
}

/// Rows of tagged values that descend down each column.
Values descending_rows(Random& random, std::size_t ranks, std::size_t columns) {
  std::vector<Values> rows;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    rows.emplace_back(columns);
    const Values left = random_values(random, columns);
    const Values right = random_values(random, columns);
    detail::add_tagged(rows.back().data(), left.data(), right.data(), std::uint64_t{1} << rank, columns);
  }
  for (std::size_t k = 0; k < columns; ++k) {
    Values column;
    for (const Values& row : rows) {
      column.push_back(row[k]);
    }
    std::sort(column.begin(), column.end(), std::greater<>());
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rows[rank][k] = column[rank];
    }
  }
  Values out;
  for (const Values& row : rows) {
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

/// credit_falls() column by column.
void credit_plainly(Values& gains, const Values& lengths, std::size_t ranks, const Values& weights,
                    const Values& least) {
  const std::size_t columns = least.size();
  for (std::size_t k = 0; k < columns; ++k) {
    std::size_t set = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const double length = lengths[rank * columns + k];
      const double next = rank + 1 < ranks ? lengths[(rank + 1) * columns + k] : least[k];
      set += tag_of(length);
      gains[set] += weights[k] * (std::max(length, least[k]) - std::max(next, least[k]));
    }
  }
}

TEST(VectorLoops, CreditsFalls) {
  Random random(212);
  std::size_t credited = 0;
  std::size_t ended = 0;  // by least[k], above some row
  for_sizes(kColumns, [&](std::size_t columns) {
    const auto ranks = static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(detail::kTags)));
    const Values lengths = descending_rows(random, ranks, columns);
    const Values weights = random_values(random, columns);
    const Values least = random_values(random, columns);
    const Values before = random_values(random, std::size_t{1} << ranks);
    Values expected = before;
    credit_plainly(expected, lengths, ranks, weights, least);
    Values gains = guarded(before);
    detail::credit_falls(gains.data(), lengths.data(), ranks, weights.data(), least.data(), columns);
    ASSERT_EQ(gains.back(), kGuard);
    for (std::size_t set = 0; set < expected.size(); ++set) {
      ASSERT_NEAR(gains[set], expected[set], 1e-12 * (1.0 + expected[set])) << "set " << set;
      credited += expected[set] > before[set] + 1e-6 ? 1U : 0U;
    }
    for (std::size_t k = 0; k < columns; ++k) {
      ended += lengths[(ranks - 1) * columns + k] < least[k] ? 1U : 0U;
    }
  });
  EXPECT_GT(credited, 3000U);
  EXPECT_GT(ended, 1000U);
}

TEST(VectorLoops, SumsOverSubsets) {
  Random random(213);
  std::size_t summed = 0;
  for (std::size_t bits = 0; bits <= 8; ++bits) {
    for (int round = 0; round < kRounds; ++round) {
      const bool exact = round % 2 == 0;  // sums of quarters, in any order
      Values values(std::size_t{1} << bits);
      std::generate(values.begin(), values.end(), [&] { return exact ? random.quarters(100) : random.unit() * 100; });
      Values got = guarded(values);
      detail::sum_over_subsets(got.data(), values.size());
      ASSERT_EQ(got.back(), kGuard);
      for (std::size_t set = 0; set < values.size(); ++set) {
        double sum = 0.0;
        for (std::size_t part = 0; part <= set; ++part) {
          sum += (part & ~set) == 0 ? values[part] : 0.0;
        }
        ASSERT_NEAR(got[set], sum, exact ? 0.0 : 1e-12 * sum) << "set " << set << " of " << bits << " bits";
        ++summed;
      }
    }
  }
  EXPECT_GT(summed, 10000U);
}

TEST(VectorLoops, LeavesOfGainsWhatTheyCost) {
  Random random(214);
  std::size_t left = 0;
  std::size_t nothing = 0;
  for_sizes(kCounts, [&](std::size_t sets) {
    const Values gains = random_values(random, sets);
    const Values tokens = random_values(random, sets);
    const Values slots = random_values(random, sets);
    std::array<double, 4> token{};
    std::array<double, 4> slot{};
    for (std::size_t k = 0; k < 4; ++k) {
      token[k] = random.unit();
      slot[k] = random.quarters(1);
    }
    Values expected;
    for (std::size_t set = 0; set < sets; ++set) {
      for (std::size_t k = 0; k < 4; ++k) {
        const double cost = token[k] * tokens[set] + slot[k] * slots[set];
        expected.push_back(gains[set] > cost ? gains[set] - cost : 0.0);
        left += gains[set] > cost ? 1U : 0U;
        nothing += gains[set] < cost ? 1U : 0U;
      }
    }
    Values worth(4 * sets + 1, kGuard);
    detail::leave_of_gains(worth.data(), gains.data(), tokens.data(), slots.data(), sets, token, slot);
    expect_same_bits(worth, guarded(expected));
  });
  EXPECT_GT(left, 1000U);
  EXPECT_GT(nothing, 1000U);
}

/// The largest of the values of each set without some of the bits, or with all of them.
Values raised_plainly(const Values& values, std::size_t bits) {
  Values out = values;
  for (std::size_t set = 0; set < values.size() / 4; ++set) {
    for (std::size_t smaller = 0; smaller < set; ++smaller) {
      const bool reached = (smaller & ~set) == 0 && ((set ^ smaller) & ~bits) == 0;
      for (std::size_t k = 0; reached && k < 4; ++k) {
        out[4 * set + k] = std::max(out[4 * set + k], values[4 * smaller + k]);
      }
    }
  }
  return out;
}

TEST(VectorLoops, RaisesToSmallerSets) {
  Random random(215);
  std::size_t raised = 0;
  std::size_t kept = 0;  // though a smaller set's is larger, which leaves another bit out
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    for (std::size_t bits = 0; bits < sets; ++bits) {
      const Values values = random_values(random, 4 * sets);
      const Values expected = raised_plainly(values, bits);
      const Values by_all = raised_plainly(values, sets - 1);
      Values got = guarded(values);
      detail::raise_to_smaller_sets(got.data(), sets, bits);
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(got, guarded(expected))) << sets << " sets, bits " << bits;
      for (std::size_t k = 0; k < values.size(); ++k) {
        raised += expected[k] > values[k] ? 1U : 0U;
        kept += by_all[k] > expected[k] ? 1U : 0U;
      }
    }
  }
  EXPECT_GT(raised, 5000U);
  EXPECT_GT(kept, 3000U);
}

}  // namespace
}  // namespace topas::testing
