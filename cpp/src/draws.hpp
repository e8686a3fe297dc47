// The outcomes that an expectation ranges over: all of them with their weights, or stratified draws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace topas::detail {

/// Rows of doubles, one for each stage, in one buffer; every row is padded with zeros to a multiple of 8.
class Rows {
 public:
  Rows() = default;
  /// Zeros.
  Rows(std::size_t rows, std::size_t columns) { resize(rows, columns); }

  /// To so many rows of whatever values.
  void resize(std::size_t rows, std::size_t columns) {
    columns_ = (columns + 7) / 8 * 8;
    values_.resize(rows * columns_);
  }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] double* operator[](std::size_t row) noexcept { return values_.data() + row * columns_; }
  [[nodiscard]] const double* operator[](std::size_t row) const noexcept { return values_.data() + row * columns_; }

 private:
  std::size_t columns_ = 0;
  std::vector<double> values_;
};

/// Joint residuals of the stages of a block.
struct Outcomes {
  Rows residual;                ///< a row for each stage
  std::vector<double> weights;  ///< padded with zeros: probabilities, or 1 for each draw
  double total_weight = 1.0;    ///< 1, or the number of draws
};

/// The distinct values of a support, ascending, and the probability of each, behind those that are there.
void append_distinct(const std::vector<double>& support, std::vector<double>& values, std::vector<double>& chances);

/// Every joint outcome, when there are at most `limit` of them; else no weights at all.
[[nodiscard]] Outcomes enumerate_outcomes(const std::vector<std::vector<double>>& supports, std::size_t limit);

/// The draws of one stage, whatever its distribution: stratified, one out of each of `count` strata, in an order of
/// their own. Where in the distribution they fall is found once and kept.
class StageDraws {
 public:
  /// `stream`: seeds them.
  StageDraws(std::uint64_t stream, std::size_t count) : stream_(stream), count_(count) {}

  /// The draws out of equally likely values, ascending, into `row`.
  void draw(const std::vector<double>& support, double* row);
  [[nodiscard]] bool same_as(std::uint64_t stream, std::size_t count) const noexcept {
    return stream_ == stream && count_ == count;
  }

 private:
  void find_places();

  std::uint64_t stream_;
  std::size_t count_;
  std::vector<double> places_;  // of each draw, in strata; empty until they are needed
};

/// So many equally likely outcomes, all zero.
[[nodiscard]] Outcomes equal_outcomes(std::size_t stages, std::size_t count);

/// Seed of the draws of one stage of a task: a pure function of its arguments.
[[nodiscard]] std::uint64_t draw_stream(std::uint64_t seed, std::uint64_t task_hash, std::uint32_t stage) noexcept;

}  // namespace topas::detail
