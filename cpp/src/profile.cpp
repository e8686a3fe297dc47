#include "profile.hpp"

#include <algorithm>

#include "lanes.hpp"

namespace topas::detail {

namespace {

double mean_of(std::span<const double> values) noexcept {
  const double sum = sum_in_lanes(values.size(), [&values](std::size_t at) { return values[at]; });
  return sum / static_cast<double>(values.size());
}

/// Puts `value` in the place of `old`, one of the ascending `values`; they stay ascending.
void replace_sorted(std::vector<double>& values, double old, double value) noexcept {
  const auto place = std::lower_bound(values.begin(), values.end(), old);
  if (value < old) {
    const auto target = std::upper_bound(values.begin(), place, value);
    std::move_backward(target, place, place + 1);
    *target = value;
  } else {
    const auto target = std::upper_bound(place, values.end(), value);
    std::move(place + 1, target, place);
    *(target - 1) = value;
  }
}

}  // namespace

void Window::settle() const {
  for (std::size_t at = 0; at < added_; ++at) {
    const double value = fresh_[at];
    if (latest_.size() < kWindow) {
      latest_.push_back(value);
      sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), value), value);
    } else {
      replace_sorted(sorted_, latest_[oldest_], value);
      latest_[oldest_] = value;
      oldest_ = (oldest_ + 1) % kWindow;
    }
    stale_ = true;
  }
  added_ = 0;
}

/// Anew, of the sorted values: no drift, and the order of arrival does not matter.
void Window::tell_mean() const {
  settle();
  mean_ = mean_of(sorted_);
  stale_ = false;
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

std::span<const double> Profile::sorted_totals() const {
  return totals_.empty() ? std::span<const double>(&profiled_total_s_, 1) : totals_.sorted();
}

}  // namespace topas::detail
