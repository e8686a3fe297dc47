// The outcomes that an expectation ranges over: all of them with their weights, or stratified draws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace topas::detail {

/// Rows of doubles, one for each stage, in one buffer; every row is padded with zeros to a multiple of 8.
class Rows {
 public:
  Rows() = default;
  Rows(std::size_t rows, std::size_t columns) { reset(rows, columns); }

  /// To so many rows of zeros.
  void reset(std::size_t rows, std::size_t columns) {
    columns_ = (columns + 7) / 8 * 8;
    values_.assign(rows * columns_, 0.0);
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

/// Every joint outcome, when there are at most `limit` of them; else no weights at all.
[[nodiscard]] Outcomes enumerate_outcomes(const std::vector<std::vector<double>>& supports, std::size_t limit);

/// `count` draws, stratified for each stage on its own: every stage gets one draw out of each of `count` strata of its
/// distribution, in an order of its own. `streams[stage]` seeds the draws of a stage. `known[stage]`, where there is
/// one, are its draws: they are copied, and its support is not looked at.
[[nodiscard]] Outcomes draw_outcomes(const std::vector<std::vector<double>>& supports,
                                     std::span<const std::uint64_t> streams, std::size_t count);
/// The draws of one stage alone, into `row`.
void draw_row(const std::vector<double>& support, std::uint64_t stream, std::size_t count, double* row);

/// Seed of the draws of one stage of a task: a pure function of its arguments.
[[nodiscard]] std::uint64_t draw_stream(std::uint64_t seed, std::uint64_t task_hash, std::uint32_t stage) noexcept;

}  // namespace topas::detail
