// Sums in eight lanes, so that vector code of any width adds in the same order.
#pragma once

#include <array>
#include <cstddef>

namespace topas::detail {

using Lanes = std::array<double, 8>;

[[nodiscard]] inline double sum_of(const Lanes& lanes) noexcept {
  const double even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
  const double odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  return even + odd;
}

/// Sum of value_at(0), ..., value_at(count - 1).
template <class ValueAt>
[[nodiscard]] double sum_in_lanes(std::size_t count, const ValueAt& value_at) noexcept {
  Lanes lanes{};
  std::size_t at = 0;
  for (; at + lanes.size() <= count; at += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] += value_at(at + lane);
    }
  }
  for (std::size_t lane = 0; at + lane < count; ++lane) {
    lanes[lane] += value_at(at + lane);
  }
  return sum_of(lanes);
}

}  // namespace topas::detail
