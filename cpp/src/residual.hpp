// The residual service of a stage, given what it has had so far (SPEC section 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace topas::detail {

/// One stage of a task as the expectation sees it.
struct StageOutlook {
  bool finished = false;
  std::span<const double> sorted_totals;  ///< of completed executions, ascending, not empty
  double service_s = 0.0;                 ///< e
  double request_s = 0.0;                 ///< d-bar
  std::uint64_t totals_version = 0;       ///< changes with the totals, where they may change
};

/// What the residual of an unfinished stage depends on.
struct ResidualKey {
  std::uint64_t totals_version = 0;
  double service_s = 0.0;
  double point_s = 0.0;  ///< d-bar where it stands for the residual

  [[nodiscard]] bool operator==(const ResidualKey&) const = default;
};
[[nodiscard]] ResidualKey residual_key(const StageOutlook& stage) noexcept;

/// Equally likely residuals of an unfinished stage, ascending, into `out` (never empty): all totals before it has
/// started, the totals above e less e after, the point d-bar when none is above.
void residual_support(const StageOutlook& stage, std::vector<double>& out);

/// How many residuals residual_support() gives.
[[nodiscard]] std::size_t residual_support_size(const StageOutlook& stage) noexcept;

/// How many different ones.
[[nodiscard]] std::size_t distinct_residuals(const StageOutlook& stage) noexcept;

/// E[max(Z - reduction, 0)] of an unfinished stage, seconds: what residual_support() gives, without writing it down.
[[nodiscard]] double expected_residual(const StageOutlook& stage, double reduction) noexcept;

}  // namespace topas::detail
