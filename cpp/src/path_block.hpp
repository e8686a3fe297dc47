// The expected longest path through one block of a task.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draws.hpp"
#include "topas/workflow.hpp"

namespace topas::detail {

/// Reused by all evaluations of a decision; holds no state between them.
using PathScratch = std::vector<double>;

class PathBlock {
 public:
  /// `stages` are the stages of the block in topological order, `outcomes` has a row for each of them, and `reducible`
  /// are the ones (as positions in `stages`) whose residual a hypothetical completion can lower.
  PathBlock(const StageGraph& graph, std::span<const std::uint32_t> stages, Outcomes outcomes,
            std::vector<std::uint32_t> reducible);

  [[nodiscard]] std::span<const std::uint32_t> reducible() const noexcept { return reducible_; }

  /// E[LP] of the block when the residual of `reducible()[i]` is lowered by `reduction[i]`, not below zero. Seconds.
  [[nodiscard]] double expected_path(std::span<const double> reduction, PathScratch& scratch) const;

 private:
  [[nodiscard]] double from_sources(std::span<const double> reduction, PathScratch& scratch) const;
  [[nodiscard]] double from_all(std::span<const double> reduction, PathScratch& scratch) const;
  [[nodiscard]] double mean(const double* values) const noexcept;
  void longest_tails(std::span<const double> reduction, Rows& tails) const;
  void prepare_sources();

  Outcomes outcomes_;
  std::vector<std::vector<std::uint32_t>> next_;  // successors inside the block
  std::vector<std::uint32_t> reducible_;
  bool only_sources_;  // every reducible stage has no predecessor in the block
  Rows below_;         // for a reducible source: the longest path behind it
  Rows others_;        // one row: the longest path from any other source
};

}  // namespace topas::detail
