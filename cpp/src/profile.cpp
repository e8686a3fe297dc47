#include "profile.hpp"

#include <algorithm>
#include <numeric>

namespace topas::detail {

void Window::add(double value) {
  if (latest_.size() < kWindow) {
    latest_.push_back(value);
  } else {
    sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), latest_[oldest_]));
    latest_[oldest_] = value;
    oldest_ = (oldest_ + 1) % kWindow;
  }
  sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), value), value);
  // Summed anew in ascending order: no drift, and the order of arrival does not matter.
  mean_ = std::accumulate(sorted_.begin(), sorted_.end(), 0.0) / static_cast<double>(sorted_.size());
}

void Profile::record_request(double service_s) {
  requests_.add(service_s);
  ++version_;
}

void Profile::record_total(double service_s) {
  totals_.add(service_s);
  ++totals_version_;
  ++version_;
}

std::span<const double> Profile::sorted_totals() const noexcept {
  return totals_.empty() ? std::span<const double>(&profiled_total_s_, 1) : totals_.sorted();
}

}  // namespace topas::detail
