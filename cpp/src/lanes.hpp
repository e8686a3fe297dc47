// Sums in eight lanes, so that vector code of any width adds in the same order.
#pragma once

#include <array>

namespace topas::detail {

using Lanes = std::array<double, 8>;

[[nodiscard]] inline double sum_of(const Lanes& lanes) noexcept {
  const double even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
  const double odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  return even + odd;
}

}  // namespace topas::detail
