#include "residual.hpp"

#include <algorithm>

#include "lanes.hpp"

namespace topas::detail {

namespace {

/// The totals that leave a residual.
std::span<const double> totals_above(const StageOutlook& stage) noexcept {
  const auto totals = stage.sorted_totals;
  if (stage.service_s == 0.0) {
    return totals;
  }
  const auto first = std::upper_bound(totals.begin(), totals.end(), stage.service_s);
  return totals.subspan(static_cast<std::size_t>(first - totals.begin()));
}

}  // namespace

void residual_support(const StageOutlook& stage, std::vector<double>& out) {
  const auto totals = totals_above(stage);
  out.resize(totals.size());
  std::transform(totals.begin(), totals.end(), out.begin(), [&stage](double total) { return total - stage.service_s; });
  if (out.empty()) {
    out.push_back(stage.request_s);
  }
}

std::size_t residual_support_size(const StageOutlook& stage) noexcept {
  return std::max<std::size_t>(totals_above(stage).size(), 1);
}

std::size_t distinct_residuals(const StageOutlook& stage) noexcept {
  const auto totals = totals_above(stage);
  std::size_t count = 1;
  for (std::size_t at = 1; at < totals.size(); ++at) {
    count += totals[at] - stage.service_s != totals[at - 1] - stage.service_s ? 1U : 0U;
  }
  return count;
}

ResidualKey residual_key(const StageOutlook& stage) noexcept {
  return {stage.totals_version, stage.service_s, totals_above(stage).empty() ? stage.request_s : 0.0};
}

double expected_residual(const StageOutlook& stage, double reduction) noexcept {
  const auto totals = totals_above(stage);
  if (totals.empty()) {
    return std::max(stage.request_s - reduction, 0.0);
  }
  const double sum = sum_in_lanes(totals.size(), [&totals, &stage, reduction](std::size_t at) {
    return std::max(totals[at] - stage.service_s - reduction, 0.0);
  });
  return sum / static_cast<double>(totals.size());
}

}  // namespace topas::detail
