// When two values count as equal (SPEC section 4).
#pragma once

#include <algorithm>
#include <cmath>

namespace topas::detail {

/// An infinite value ties with itself only.
[[nodiscard]] inline bool tie(double left, double right) noexcept {
  const double distance = std::abs(left - right);
  return left == right ||
         (std::isfinite(distance) && distance <= 1e-12 * std::max({1.0, std::abs(left), std::abs(right)}));
}

/// Greater by more than a tie; -infinity is beaten by every other value.
[[nodiscard]] inline bool beats(double left, double right) noexcept { return left > right && !tie(left, right); }

}  // namespace topas::detail
