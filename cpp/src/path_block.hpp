// The expected longest path through one block of a task.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draws.hpp"
#include "topas/workflow.hpp"

namespace topas::detail {

/// Reused by all evaluations of a decision; holds no state between them.
class PathScratch {
 public:
  /// So many values, whatever they are.
  [[nodiscard]] double* values(std::size_t count) {
    if (values_.size() < count) {
      values_.resize(count);
    }
    return values_.data();
  }

 private:
  std::vector<double> values_;
};

class PathBlock {
 public:
  /// `stages` are the stages of the block in topological order, `outcomes` has a row for each of them, and `reducible`
  /// are the ones (as positions in `stages`) whose residual a hypothetical completion can lower.
  PathBlock(const StageGraph& graph, std::span<const std::uint32_t> stages, Outcomes outcomes,
            std::vector<std::uint32_t> reducible);

  /// Residuals of the block's stage at a place, by outcome; who changes some calls refresh() then.
  [[nodiscard]] double* residuals(std::size_t place) noexcept { return outcomes_.residual[place]; }
  void refresh();
  [[nodiscard]] std::span<const std::uint32_t> reducible() const noexcept { return reducible_; }
  [[nodiscard]] std::size_t outcomes() const noexcept { return outcomes_.weights.size(); }

  /// E[LP] of the block when the residual of `reducible()[i]` is lowered by `reduction[i]`, not below zero. Seconds.
  [[nodiscard]] double expected_path(std::span<const double> reduction, PathScratch& scratch) const;

  /// One reduction more, in the place of that of `reducible()[index]`.
  struct Alternative {
    std::uint32_t index = 0;
    double reduction = 0.0;
  };
  /// Whether every reducible stage has no predecessor in the block; then the next two can be asked.
  [[nodiscard]] bool only_sources() const noexcept { return only_sources_; }
  /// expected_path(), and what it would be with each alternative, to the bit: `paths[i]` for `alternatives[i]`.
  [[nodiscard]] double expected_paths(std::span<const double> reduction, std::span<const Alternative> alternatives,
                                      std::span<double> paths, PathScratch& scratch) const;

  /// So many stages have few enough subsets to look at all of them.
  static constexpr std::size_t kSubsetStages = 10;
  /// By how much E[LP] falls when the residuals of a subset of so few reducible stages are lowered by their
  /// `reduction`, for every subset: `gains[set]`, bit i for `reducible()[i]`. Seconds; agrees with expected_path() up
  /// to rounding.
  void gains_of_subsets(std::span<const double> reduction, std::vector<double>& gains, PathScratch& scratch) const;

 private:
  [[nodiscard]] double from_sources(std::span<const double> reduction, PathScratch& scratch) const;
  [[nodiscard]] double from_all(std::span<const double> reduction, PathScratch& scratch) const;
  void longest_tails(std::span<const double> reduction, double* tails) const;
  void prepare_sources();
  [[nodiscard]] const double* below(std::size_t index) const noexcept { return below_[below_at_[index]]; }

  Outcomes outcomes_;
  std::vector<std::vector<std::uint32_t>> next_;  // successors inside the block
  std::vector<std::uint32_t> reducible_;
  bool only_sources_;  // every reducible stage has no predecessor in the block
  Rows below_;         // the longest path behind a reducible source; the first row is of those that end the block
  std::vector<std::uint32_t> below_at_;  // of each reducible stage: its row
  Rows others_;                          // one row: the longest path from any other source
};

}  // namespace topas::detail
