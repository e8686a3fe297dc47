// What is known of the service of one agent-stage pair (SPEC section 2).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace topas::detail {

/// The latest `kWindow` values, and an order-independent view of them, which takes in what is new when it is asked for:
/// with thousands of windows an event then touches a line of memory, not all of a window.
class Window {
 public:
  static constexpr std::size_t kWindow = 256;

  void add(double value) {
    if (added_ == fresh_.size()) {
      settle();
    }
    fresh_[added_++] = value;
  }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return std::min(latest_.size() + added_, kWindow); }
  [[nodiscard]] std::span<const double> sorted() const {
    if (added_ > 0) {
      settle();
    }
    return sorted_;
  }
  [[nodiscard]] double mean() const {
    if (added_ > 0 || stale_) {
      tell_mean();
    }
    return mean_;
  }

 private:
  void settle() const;
  void tell_mean() const;

  std::array<double, 4> fresh_{};  // not yet among the following
  mutable std::size_t added_ = 0;  // of them
  mutable bool stale_ = false;
  mutable double mean_ = 0.0;           // once it is asked for
  mutable std::vector<double> latest_;  // a ring once it is full
  mutable std::vector<double> sorted_;
  mutable std::size_t oldest_ = 0;
};

/// Totals and request services of one stage of a workflow, and the points that stand for them before any is observed.
class Profile {
 public:
  Profile(double profiled_total_s, double profiled_request_s)
      : profiled_total_s_(profiled_total_s), profiled_request_s_(profiled_request_s) {}

  void record_request(double service_s);
  void record_total(double service_s);

  [[nodiscard]] std::span<const double> sorted_totals() const;
  /// Mean of sorted_totals().
  [[nodiscard]] double mean_total_s() const { return totals_.empty() ? profiled_total_s_ : totals_.mean(); }
  /// d-bar: mean observed service of one request, else the profiled one.
  [[nodiscard]] double request_s() const { return requests_.empty() ? profiled_request_s_ : requests_.mean(); }
  [[nodiscard]] bool has_requests() const noexcept { return !requests_.empty(); }
  [[nodiscard]] std::size_t samples() const noexcept { return totals_.size(); }
  /// Changes with sorted_totals().
  [[nodiscard]] std::uint64_t totals_version() const noexcept { return totals_version_; }
  /// Changes whenever anything above does.
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

 private:
  double profiled_total_s_;
  double profiled_request_s_;
  Window totals_;
  Window requests_;
  std::uint64_t totals_version_ = 0;
  std::uint64_t version_ = 0;
};

}  // namespace topas::detail
