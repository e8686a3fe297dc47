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

/// The same of the longest and the next longest path; equal ones count twice.
void raise_two(double* longest, double* next, const double* residual, double reduction, const double* below,
               std::size_t count);

/// Of a path of length max(residual[k] - reduction.from, 0) + below[k] that is one of those that longest[k] and next[k]
/// come from: the sum of weights[k] times the longest with reduction.to in its place, in eight lanes; `count` is a
/// multiple of 8.
struct Replaced {
  double from = 0.0;
  double to = 0.0;
};
[[nodiscard]] double weighted_path(const double* weights, const double* longest, const double* next,
                                   const double* residual, Replaced reduction, const double* below, std::size_t count);

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

/// sums[k] = left[k] + right[k] with `tag`, one of kTags bits, for the lowest bits of its mantissa: sorting sums sorts
/// tags.
inline constexpr std::size_t kTags = 10;
void add_tagged(double* sums, const double* left, const double* right, std::uint64_t tag, std::size_t count);

/// `lengths` has `ranks` rows of tagged values that descend down each column: where the maximum of a column and
/// least[k] falls from one row's value to the next one's, or behind the last to least[k], gains[set] += weights[k]
/// times that fall, for the set of the tags down to that row.
void credit_falls(double* gains, const double* lengths, std::size_t ranks, const double* weights, const double* least,
                  std::size_t columns);

/// From a value of each of `sets` sets to the sum over its subsets.
void sum_over_subsets(double* values, std::size_t sets);

/// sum[k] += values[k].
void add(double* sum, const double* values, std::size_t count);

/// worth[set * 4 + k] = max(gains[set] - (token[k] * tokens[set] + slot[k] * slots[set]), 0).
void leave_of_gains(double* worth, const double* gains, const double* tokens, const double* slots, std::size_t sets,
                    const std::array<double, 4>& token, const std::array<double, 4>& slot);

/// Raises the four values of each of `sets` sets to the largest of the sets that it leaves without some of `bits`.
void raise_to_smaller_sets(double* values, std::size_t sets, std::size_t bits);

}  // namespace topas::detail
