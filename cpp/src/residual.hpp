// The residual service of a stage, given what it has had so far (SPEC section 2).
#pragma once

#include <span>
#include <vector>

namespace topas::detail {

/// One stage of a task as the expectation sees it.
struct StageOutlook {
  bool finished = false;
  std::span<const double> sorted_totals;  ///< of completed executions, ascending, not empty
  double service_s = 0.0;                 ///< e
  double request_s = 0.0;                 ///< d-bar
};

/// Equally likely residuals of an unfinished stage, ascending, into `out` (never empty): all totals before it has
/// started, the totals above e less e after, the point d-bar when none is above.
void residual_support(const StageOutlook& stage, std::vector<double>& out);

}  // namespace topas::detail
