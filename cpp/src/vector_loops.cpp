#include "vector_loops.hpp"

#include <algorithm>
#include <bit>

#include "lanes.hpp"

// Needs the loader's help (ifunc), which glibc has. A test that includes this file tells that it wants one width alone.
#ifndef TOPAS_EVERY_WIDTH
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define TOPAS_EVERY_WIDTH __attribute__((target_clones("avx2", "default")))
#else
#define TOPAS_EVERY_WIDTH
#endif
#endif

namespace topas::detail {

namespace {

constexpr std::uint64_t kAllTags = (std::uint64_t{1} << kTags) - 1;

/// credit_falls() of so many columns.
template <std::size_t kColumns>
[[gnu::always_inline]] inline void credit_falls_of(double* __restrict gains, const double* __restrict lengths,
                                                   std::size_t ranks, const double* __restrict weights,
                                                   const double* __restrict least, std::size_t stride) {
  std::array<double, kColumns> above;          // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::array<double, kColumns> falls;          // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::array<std::uint64_t, kColumns> longer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  for (std::size_t k = 0; k < kColumns; ++k) {
    above[k] = std::max(lengths[k], least[k]);
    longer[k] = 0;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double* __restrict length = lengths + rank * stride;
    const double* __restrict next = rank + 1 < ranks ? length + stride : least;
    for (std::size_t k = 0; k < kColumns; ++k) {
      longer[k] |= std::bit_cast<std::uint64_t>(length[k]) & kAllTags;
    }
    for (std::size_t k = 0; k < kColumns; ++k) {
      const double below = std::max(next[k], least[k]);
      falls[k] = weights[k] * (above[k] - below);
      above[k] = below;
    }
    for (std::size_t k = 0; k < kColumns; k += 4) {
      for (std::size_t lane = k; lane < k + 4; ++lane) {
        gains[longer[lane]] += falls[lane];
      }
    }
  }
}

/// raise_to_smaller_sets() by one bit.
[[gnu::always_inline]] inline void raise_by_one(double* values, std::size_t sets, std::size_t bit) {
  for (std::size_t begin = 0; begin < sets; begin += 2 * bit) {
    const double* __restrict without = values + 4 * begin;
    double* __restrict with = values + 4 * (begin + bit);
    for (std::size_t k = 0; k < 4 * bit; ++k) {
      with[k] = std::max(with[k], without[k]);
    }
  }
}

/// By two bits at once.
[[gnu::always_inline]] inline void raise_by_two(double* values, std::size_t sets, std::size_t low, std::size_t high) {
  for (std::size_t outer = 0; outer < sets; outer += 2 * high) {
    for (std::size_t inner = outer; inner < outer + high; inner += 2 * low) {
      const double* __restrict none = values + 4 * inner;
      double* __restrict lower = values + 4 * (inner + low);
      double* __restrict higher = values + 4 * (inner + high);
      double* __restrict both = values + 4 * (inner + high + low);
      for (std::size_t k = 0; k < 4 * low; ++k) {
        const double with_lower = std::max(lower[k], none[k]);
        const double with_higher = std::max(both[k], higher[k]);
        both[k] = std::max(with_higher, with_lower);
        lower[k] = with_lower;
        higher[k] = std::max(higher[k], none[k]);
      }
    }
  }
}

}  // namespace

TOPAS_EVERY_WIDTH void raise_path(double* __restrict path, const double* __restrict residual, double reduction,
                                  const double* __restrict below, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    path[k] = std::max(path[k], std::max(residual[k] - reduction, 0.0) + below[k]);
  }
}

TOPAS_EVERY_WIDTH void raise_two(double* __restrict longest, double* __restrict next, const double* __restrict residual,
                                 double reduction, const double* __restrict below, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    const double path = std::max(residual[k] - reduction, 0.0) + below[k];
    next[k] = std::max(next[k], std::min(longest[k], path));
    longest[k] = std::max(longest[k], path);
  }
}

TOPAS_EVERY_WIDTH void raise(double* __restrict above, const double* __restrict values, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    above[k] = std::max(above[k], values[k]);
  }
}

TOPAS_EVERY_WIDTH void add_lowered(double* __restrict sum, const double* __restrict residual, double reduction,
                                   std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    sum[k] += std::max(residual[k] - reduction, 0.0);
  }
}

TOPAS_EVERY_WIDTH double weighted_path(const double* weights, const double* longest, const double* next,
                                       const double* residual, Replaced reduction, const double* below,
                                       std::size_t count) {
  Lanes lanes{};
  for (std::size_t k = 0; k < count; k += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const std::size_t at = k + lane;
      const double before = std::max(residual[at] - reduction.from, 0.0) + below[at];
      const double after = std::max(residual[at] - reduction.to, 0.0) + below[at];
      const double first = longest[at];
      const double second = next[at];
      const double other = before < first ? first : second;
      lanes[lane] += weights[at] * std::max(other, after);
    }
  }
  return sum_of(lanes);
}

TOPAS_EVERY_WIDTH double weighted_sum(const double* weights, const double* values, std::size_t count) {
  Lanes lanes{};
  for (std::size_t k = 0; k < count; k += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] += weights[k + lane] * values[k + lane];
    }
  }
  return sum_of(lanes);
}

TOPAS_EVERY_WIDTH void spread_path(double* path, std::size_t held, const double* values, std::size_t count,
                                   double reduction) {
  for (std::size_t digit = 1; digit < count; ++digit) {
    const double value = std::max(values[digit] - reduction, 0.0);
    const double* __restrict from = path;
    double* __restrict to = path + digit * held;
    for (std::size_t k = 0; k < held; ++k) {
      to[k] = std::max(from[k], value);
    }
  }
  const double first = std::max(values[0] - reduction, 0.0);
  for (std::size_t k = 0; k < held; ++k) {
    path[k] = std::max(path[k], first);
  }
}

TOPAS_EVERY_WIDTH void spread_products(double* weights, std::size_t held, const double* factors, std::size_t count) {
  for (std::size_t digit = 1; digit < count; ++digit) {
    const double* __restrict from = weights;
    double* __restrict to = weights + digit * held;
    for (std::size_t k = 0; k < held; ++k) {
      to[k] = from[k] * factors[digit];
    }
  }
  for (std::size_t k = 0; k < held; ++k) {
    weights[k] *= factors[0];
  }
}

TOPAS_EVERY_WIDTH void multiply(double* __restrict product, const double* __restrict left,
                                const double* __restrict right, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    product[k] = left[k] * right[k];
  }
}

TOPAS_EVERY_WIDTH void order(double* __restrict upper, double* __restrict lower, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    const double larger = std::max(upper[k], lower[k]);
    lower[k] = std::min(upper[k], lower[k]);
    upper[k] = larger;
  }
}

TOPAS_EVERY_WIDTH void add_tagged(double* __restrict sums, const double* __restrict left,
                                  const double* __restrict right, std::uint64_t tag, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    const auto bits = std::bit_cast<std::uint64_t>(left[k] + right[k]);
    sums[k] = std::bit_cast<double>((bits & ~kAllTags) | tag);
  }
}

TOPAS_EVERY_WIDTH void credit_falls(double* gains, const double* lengths, std::size_t ranks, const double* weights,
                                    const double* least, std::size_t columns) {
  constexpr std::size_t kMany = 32;
  constexpr std::size_t kFew = 8;
  std::size_t at = 0;
  for (; at + kMany <= columns; at += kMany) {
    credit_falls_of<kMany>(gains, lengths + at, ranks, weights + at, least + at, columns);
  }
  for (; at < columns; at += kFew) {
    credit_falls_of<kFew>(gains, lengths + at, ranks, weights + at, least + at, columns);
  }
}

TOPAS_EVERY_WIDTH void sum_over_subsets(double* values, std::size_t sets) {
  const auto add_two_bits = [](double& none, double& lower, double& higher, double& both) {
    lower += none;
    both = (both + higher) + lower;
    higher += none;
  };
  std::size_t bit = 1;
  for (std::size_t begin = 0; begin + 4 <= sets; begin += 4) {
    double* first = values + begin;
    add_two_bits(first[0], first[1], first[2], first[3]);
    bit = 4;
  }
  for (; 2 * bit < sets; bit *= 4) {
    for (std::size_t begin = 0; begin < sets; begin += 4 * bit) {
      double* __restrict none = values + begin;
      double* __restrict lower = none + bit;
      double* __restrict higher = none + 2 * bit;
      double* __restrict both = none + 3 * bit;
      for (std::size_t k = 0; k < bit; ++k) {
        add_two_bits(none[k], lower[k], higher[k], both[k]);
      }
    }
  }
  for (std::size_t k = 0; bit < sets && k < bit; ++k) {  // an odd one is left
    values[bit + k] += values[k];
  }
}

TOPAS_EVERY_WIDTH void add(double* __restrict sum, const double* __restrict values, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    sum[k] += values[k];
  }
}

TOPAS_EVERY_WIDTH void leave_of_gains(double* __restrict worth, const double* __restrict gains,
                                      const double* __restrict tokens, const double* __restrict slots, std::size_t sets,
                                      const std::array<double, 4>& token, const std::array<double, 4>& slot) {
  const std::array<double, 4> each_token = token;
  const std::array<double, 4> each_slot = slot;
  for (std::size_t set = 0; set < sets; ++set) {
    for (std::size_t k = 0; k < 4; ++k) {
      worth[set * 4 + k] = std::max(gains[set] - (each_token[k] * tokens[set] + each_slot[k] * slots[set]), 0.0);
    }
  }
}

TOPAS_EVERY_WIDTH void raise_to_smaller_sets(double* values, std::size_t sets, std::size_t bits) {
  while (bits != 0) {
    const std::size_t low = bits & (~bits + 1);
    bits ^= low;
    const std::size_t high = bits & (~bits + 1);
    bits ^= high;
    if (high != 0) {
      raise_by_two(values, sets, low, high);
    } else {
      raise_by_one(values, sets, low);
    }
  }
}

}  // namespace topas::detail
