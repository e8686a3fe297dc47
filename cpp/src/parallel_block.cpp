#include "parallel_block.hpp"

#include <algorithm>
#include <bit>

#include "vector_loops.hpp"

namespace topas::detail {

namespace {

constexpr std::size_t padded(std::size_t count) noexcept { return (count + 7) / 8 * 8; }

double lowered(double residual, double reduction) noexcept { return std::max(residual - reduction, 0.0); }

}  // namespace

ParallelBlock::ParallelBlock(const std::vector<std::vector<double>>& supports, std::span<const std::uint32_t> reducible)
    : reducible_(reducible.size()) {
  stages_.reserve(supports.size());
  for (const auto& support : supports) {
    const auto begin = static_cast<std::uint32_t>(values_.size());
    append_distinct(support, values_, chances_);
    stages_.push_back({begin, static_cast<std::uint32_t>(values_.size())});
    count_ *= stages_.back().size();
  }
  for (std::uint32_t index = 0; index < reducible.size(); ++index) {
    stages_[reducible[index]].index = index;
  }
  weights_.resize(padded(count_));
  weights_.front() = 1.0;
  std::size_t held = 1;  // outcomes of the stages so far
  for (const Stage& stage : stages_) {
    spread_products(weights_.data(), held, chances_.data() + stage.begin, stage.size());
    held *= stage.size();
  }
}

/// The mean of the longest stage, one reduction replaced. A stage of one value lengthens all paths alike, and the order
/// in which stages lengthen them does not matter: those come first, while there is one path.
double ParallelBlock::path_with(std::span<const double> reduction, PathBlock::Alternative changed,
                                PathScratch& scratch) const {
  const auto reduction_of = [&](const Stage& stage) {
    if (stage.index == kNone) {
      return 0.0;
    }
    return stage.index == changed.index ? changed.reduction : reduction[stage.index];
  };
  double* path = scratch.values(weights_.size());
  path[0] = 0.0;
  for (const Stage& stage : stages_) {
    if (stage.size() == 1) {
      path[0] = std::max(path[0], lowered(values_[stage.begin], reduction_of(stage)));
    }
  }
  std::size_t held = 1;
  for (const Stage& stage : stages_) {
    if (stage.size() > 1) {
      spread_path(path, held, values_.data() + stage.begin, stage.size(), reduction_of(stage));
      held *= stage.size();
    }
  }
  std::fill(path + count_, path + weights_.size(), 0.0);
  return weighted_sum(weights_.data(), path, weights_.size());
}

double ParallelBlock::expected_paths(std::span<const double> reduction,
                                     std::span<const PathBlock::Alternative> alternatives, std::span<double> paths,
                                     PathScratch& scratch) const {
  for (std::size_t at = 0; at < alternatives.size(); ++at) {
    paths[at] = path_with(reduction, alternatives[at], scratch);
  }
  return expected_path(reduction, scratch);
}

/// Where any of the distributions, lowered or not, steps up; ascending, from zero.
std::vector<double> ParallelBlock::steps(std::span<const double> reduction) const {
  std::vector<double> out;
  out.reserve(2 * values_.size() + 1);
  out.push_back(0.0);
  out.insert(out.end(), values_.begin(), values_.end());
  for (const Stage& stage : stages_) {
    for (auto at = stage.begin; stage.index != kNone && at < stage.end; ++at) {
      out.push_back(lowered(values_[at], reduction[stage.index]));
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

/// below[k] *= the probability that the stage, lowered, is no longer than steps[k].
void ParallelBlock::accumulate(const Stage& stage, double reduction, std::span<const double> steps,
                               double* below) const noexcept {
  double sum = 0.0;
  auto at = stage.begin;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    for (; at < stage.end && lowered(values_[at], reduction) <= steps[k]; ++at) {
      sum += chances_[at];
    }
    below[k] *= sum;
  }
}

/// E[max] of a set is the integral of 1 less the product of the stages' distributions. Sets are counted in binary, and
/// of each the products of its higher stages serve the next ones that have the same.
void ParallelBlock::gains_of_subsets(std::span<const double> reduction, std::vector<double>& gains,
                                     PathScratch& scratch) const {
  const std::vector<double> grid = steps(reduction);
  const std::size_t columns = padded(grid.size());
  double* rows = scratch.values((3 * reducible_ + 1) * columns);
  std::fill_n(rows, (2 * reducible_ + 1) * columns, 0.0);
  double* products = rows + 2 * reducible_ * columns;  // row n: of the n highest reducible stages and all others
  for (std::size_t k = 0; k + 1 < grid.size(); ++k) {
    products[k] = grid[k + 1] - grid[k];
  }
  for (const Stage& stage : stages_) {
    if (stage.index == kNone) {
      accumulate(stage, 0.0, grid, products);
      continue;
    }
    double* plain = rows + std::size_t{2} * stage.index * columns;
    std::fill_n(plain, grid.size(), 1.0);
    std::fill_n(plain + columns, grid.size(), 1.0);
    accumulate(stage, 0.0, grid, plain);
    accumulate(stage, reduction[stage.index], grid, plain + columns);
  }
  const std::size_t sets = std::size_t{1} << reducible_;
  gains.assign(sets, 0.0);
  std::size_t changed = reducible_;  // the stages before it, to be multiplied anew
  for (std::size_t set = 0; set < sets && reducible_ > 0; ++set) {
    const auto factors = [&](std::size_t stage) { return rows + (2 * stage + ((set >> stage) & 1U)) * columns; };
    for (std::size_t stage = changed; stage-- > 1;) {
      const double* higher = products + (reducible_ - 1 - stage) * columns;
      multiply(products + (reducible_ - stage) * columns, higher, factors(stage), columns);
    }
    gains[set] = weighted_sum(products + (reducible_ - 1) * columns, factors(0), columns) - (set > 0 ? gains[0] : 0.0);
    changed = static_cast<std::size_t>(std::countr_one(set)) + 1;
  }
  gains[0] = 0.0;
}

}  // namespace topas::detail
