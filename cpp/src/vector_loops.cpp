#include "vector_loops.hpp"

#include <algorithm>
#include <bit>

#include "lanes.hpp"

// Needs the loader's help (ifunc), which glibc has.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define TOPAS_EVERY_WIDTH __attribute__((target_clones("avx2", "default")))
#else
#define TOPAS_EVERY_WIDTH
#endif

namespace topas::detail {

TOPAS_EVERY_WIDTH void raise_path(double* __restrict path, const double* __restrict residual, double reduction,
                                  const double* __restrict below, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    path[k] = std::max(path[k], std::max(residual[k] - reduction, 0.0) + below[k]);
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

TOPAS_EVERY_WIDTH double weighted_path(const double* weights, const double* before, const double* after,
                                       const double* residual, double reduction, const double* below,
                                       std::size_t count) {
  Lanes lanes{};
  for (std::size_t k = 0; k < count; k += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const std::size_t at = k + lane;
      const double path = std::max(residual[at] - reduction, 0.0) + below[at];
      const double other = std::max(before[at], after[at]);
      lanes[lane] += weights[at] * std::max(other, path);
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
    sums[k] = std::bit_cast<double>((bits & ~(kTags - 1)) | tag);
  }
}

TOPAS_EVERY_WIDTH void mark_tags(std::uint64_t* __restrict sets, const double* __restrict values, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    sets[k] |= std::uint64_t{1} << (std::bit_cast<std::uint64_t>(values[k]) & (kTags - 1));
  }
}

TOPAS_EVERY_WIDTH void weighted_falls(double* __restrict falls, const double* __restrict weights,
                                      const double* __restrict above, const double* __restrict below,
                                      const double* __restrict least, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    falls[k] = weights[k] * (std::max(above[k], least[k]) - std::max(below[k], least[k]));
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

TOPAS_EVERY_WIDTH void raise_to_smaller_sets(double* values, std::size_t sets, std::size_t bit, std::size_t width) {
  const std::size_t block = bit * width;
  for (std::size_t begin = 0; begin < sets * width; begin += 2 * block) {
    const double* __restrict without = values + begin;
    double* __restrict with = values + begin + block;
    for (std::size_t k = 0; k < block; ++k) {
      with[k] = std::max(with[k], without[k]);
    }
  }
}

}  // namespace topas::detail
