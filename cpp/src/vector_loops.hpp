// The innermost loops, compiled for several vector widths and chosen when the library is loaded. Every width gives the
// same bits: nothing is contracted, and sums run in eight lanes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace topas::detail {

/// path[k] = max(path[k], max(residual[k] - reduction, 0) + below[k]).
void raise_path(double* path, const double* residual, double reduction, const double* below, std::size_t count);

/// above[k] = max(above[k], values[k]).
void raise(double* above, const double* values, std::size_t count);

/// sum[k] += max(residual[k] - reduction, 0).
void add_lowered(double* sum, const double* residual, double reduction, std::size_t count);

/// Sum of weights[k] * max(before[k], after[k], max(residual[k] - reduction, 0) + below[k]) in eight lanes; `count` is
/// a multiple of 8.
[[nodiscard]] double weighted_path(const double* weights, const double* before, const double* after,
                                   const double* residual, double reduction, const double* below, std::size_t count);

/// Sum of weights[k] * values[k] in eight lanes; `count` is a multiple of 8.
[[nodiscard]] double weighted_sum(const double* weights, const double* values, std::size_t count);

/// From path[0 .. held) to as many for each value: path[digit * held + k] = max(path[k], values[digit] - reduction, 0).
void spread_path(double* path, std::size_t held, const double* values, std::size_t count, double reduction);

/// Likewise weights[digit * held + k] = weights[k] * factors[digit].
void spread_products(double* weights, std::size_t held, const double* factors, std::size_t count);

/// product[k] = left[k] * right[k].
void multiply(double* product, const double* left, const double* right, std::size_t count);

/// (upper[k], lower[k]) = (larger, smaller) of the two.
void order(double* upper, double* lower, std::size_t count);

/// sums[k] = left[k] + right[k] with a number below kTags in the lowest bits of its mantissa: sorting sums sorts
/// numbers.
inline constexpr std::uint64_t kTags = 16;
void add_tagged(double* sums, const double* left, const double* right, std::uint64_t tag, std::size_t count);

/// sets[k] |= the bit of values[k]'s tag.
void mark_tags(std::uint64_t* sets, const double* values, std::size_t count);

/// falls[k] = weights[k] * (max(above[k], least[k]) - max(below[k], least[k])).
void weighted_falls(double* falls, const double* weights, const double* above, const double* below, const double* least,
                    std::size_t count);

/// sum[k] += values[k].
void add(double* sum, const double* values, std::size_t count);

/// worth[set * 4 + k] = max(gains[set] - (token[k] * tokens[set] + slot[k] * slots[set]), 0).
void leave_of_gains(double* worth, const double* gains, const double* tokens, const double* slots, std::size_t sets,
                    const std::array<double, 4>& token, const std::array<double, 4>& slot);

/// values[set * width + k] = max(values[set * width + k], values[without * width + k]) for every set of `sets` that has
/// the bit; `without` is the set without it.
void raise_to_smaller_sets(double* values, std::size_t sets, std::size_t bit, std::size_t width);

}  // namespace topas::detail
