// The expected longest of independent parallel stages, over all their joint outcomes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "path_block.hpp"

namespace topas::detail {

/// What PathBlock says of stages without edges between them whose outcomes are enumerated, to the same bits, without a
/// row of outcomes for each stage: the outcomes of the stages up to one are those of the stages before it, once for
/// each of its values, so a path over all of them is spread stage by stage and only the last one costs as much as there
/// are outcomes.
class ParallelBlock {
 public:
  /// `supports`: equally likely residuals of each stage, ascending. `reducible`: as in PathBlock, ascending.
  ParallelBlock(const std::vector<std::vector<double>>& supports, std::span<const std::uint32_t> reducible);

  [[nodiscard]] static constexpr bool only_sources() noexcept { return true; }
  /// As many as PathBlock would have, padded.
  [[nodiscard]] std::size_t outcomes() const noexcept { return weights_.size(); }

  /// The same bits as PathBlock::expected_path().
  [[nodiscard]] double expected_path(std::span<const double> reduction, PathScratch& scratch) const {
    return path_with(reduction, {kNone, 0.0}, scratch);
  }
  /// The same bits as PathBlock::expected_paths().
  [[nodiscard]] double expected_paths(std::span<const double> reduction,
                                      std::span<const PathBlock::Alternative> alternatives, std::span<double> paths,
                                      PathScratch& scratch) const;
  /// As PathBlock::gains_of_subsets(), up to rounding: E[max] is an integral over the product of the distributions.
  void gains_of_subsets(std::span<const double> reduction, std::vector<double>& gains, PathScratch& scratch) const;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Stage {
    std::uint32_t begin = 0;  ///< of its values
    std::uint32_t end = 0;
    std::uint32_t index = kNone;  ///< among the reducible ones
    [[nodiscard]] std::uint32_t size() const noexcept { return end - begin; }
  };

  [[nodiscard]] double path_with(std::span<const double> reduction, PathBlock::Alternative changed,
                                 PathScratch& scratch) const;
  [[nodiscard]] std::vector<double> steps(std::span<const double> reduction) const;
  void accumulate(const Stage& stage, double reduction, std::span<const double> steps, double* below) const noexcept;

  std::vector<Stage> stages_;
  std::vector<double> values_;   // of each stage, ascending
  std::vector<double> chances_;  // of each value
  std::vector<double> weights_;  // of each outcome, padded with zeros to a multiple of 8
  std::size_t count_ = 1;        // of outcomes
  std::size_t reducible_;
};

}  // namespace topas::detail
