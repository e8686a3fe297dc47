#include "residual.hpp"

#include <algorithm>

namespace topas::detail {

void residual_support(const StageOutlook& stage, std::vector<double>& out) {
  const auto totals = stage.sorted_totals;
  const double served = stage.service_s;
  if (served == 0.0) {
    out.assign(totals.begin(), totals.end());
    return;
  }
  out.clear();
  for (auto total = std::upper_bound(totals.begin(), totals.end(), served); total != totals.end(); ++total) {
    out.push_back(*total - served);
  }
  if (out.empty()) {
    out.push_back(stage.request_s);
  }
}

}  // namespace topas::detail
