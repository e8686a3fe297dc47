#include "path_block.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <utility>

#include "vector_loops.hpp"

namespace topas::detail {

namespace {

/// longest[k] = the largest of the stages' values[k], none below zero; zero without a stage.
template <class ValuesOf>
void longest_of(double* longest, const std::vector<std::uint32_t>& stages, const ValuesOf& values_of,
                std::size_t columns) {
  if (stages.empty()) {
    std::fill_n(longest, columns, 0.0);
    return;
  }
  std::copy_n(values_of(stages.front()), columns, longest);
  for (std::size_t at = 1; at < stages.size(); ++at) {
    raise(longest, values_of(stages[at]), columns);
  }
}

static_assert(PathBlock::kSubsetStages <= kTags);

/// Sorts the columns of so many rows, the largest values first (merge exchange: Knuth, volume 3, algorithm 5.2.2M).
void sort_columns(double* values, std::size_t rows, std::size_t columns) {
  const std::size_t most = std::bit_ceil(rows) / 2;
  for (std::size_t step = most; step > 0; step /= 2) {
    std::size_t bit = 0;
    std::size_t apart = step;
    for (std::size_t reach = most; reach >= step; reach /= 2) {
      for (std::size_t row = 0; row + apart < rows; ++row) {
        if ((row & step) == bit) {
          order(values + row * columns, values + (row + apart) * columns, columns);
        }
      }
      apart = reach - step;
      bit = step;
    }
  }
}

}  // namespace

PathBlock::PathBlock(const StageGraph& graph, std::span<const std::uint32_t> stages, Outcomes outcomes,
                     std::vector<std::uint32_t> reducible)
    : outcomes_(std::move(outcomes)), next_(stages.size()), reducible_(std::move(reducible)) {
  constexpr auto kOutside = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> position(graph.size(), kOutside);
  for (std::uint32_t at = 0; at < stages.size(); ++at) {
    position[stages[at]] = at;
  }
  std::vector<bool> source(stages.size(), true);
  for (std::uint32_t at = 0; at < stages.size(); ++at) {
    for (const auto next : graph.successors(stages[at])) {
      if (position[next] != kOutside) {
        next_[at].push_back(position[next]);
        source[position[next]] = false;
      }
    }
  }
  only_sources_ = std::all_of(reducible_.begin(), reducible_.end(), [&source](auto at) { return source[at]; });
  refresh();
}

void PathBlock::refresh() {
  if (only_sources_) {
    prepare_sources();
  }
}

/// Tails of every stage (paper, section IV-B: in reverse topological order): its residual and the longest tail behind;
/// `tails` has room for a row for each.
void PathBlock::longest_tails(std::span<const double> reduction, double* tails) const {
  const std::size_t columns = outcomes_.residual.columns();
  std::vector<double> lower(next_.size(), 0.0);
  for (std::size_t index = 0; index < reduction.size(); ++index) {
    lower[reducible_[index]] = reduction[index];
  }
  for (std::size_t at = next_.size(); at-- > 0;) {
    double* tail = tails + at * columns;
    longest_of(tail, next_[at], [&](std::uint32_t next) { return tails + next * columns; }, columns);
    add_lowered(tail, outcomes_.residual[at], lower[at], columns);
  }
}

void PathBlock::prepare_sources() {
  const std::size_t columns = outcomes_.residual.columns();
  std::uint32_t rows = 1;
  below_at_.clear();
  for (const auto at : reducible_) {
    below_at_.push_back(next_[at].empty() ? 0 : rows++);
  }
  const bool parallel = std::all_of(next_.begin(), next_.end(), [](const auto& next) { return next.empty(); });
  // NOLINTBEGIN(modernize-avoid-c-arrays): a vector would fill it with zeros first
  std::unique_ptr<double[]> tails;
  if (!parallel) {
    tails = std::make_unique_for_overwrite<double[]>(next_.size() * columns);
    // NOLINTEND(modernize-avoid-c-arrays)
    longest_tails({}, tails.get());
  }
  const auto tail_of = [&](std::uint32_t at) -> const double* {
    return parallel ? outcomes_.residual[at] : tails.get() + at * columns;  // of parallel stages: their residuals
  };
  below_.resize(rows, columns);
  others_.resize(1, columns);
  std::fill_n(below_[0], columns, 0.0);
  for (std::size_t index = 0; index < reducible_.size(); ++index) {
    if (below_at_[index] != 0) {
      longest_of(below_[below_at_[index]], next_[reducible_[index]], tail_of, columns);
    }
  }
  std::vector<std::uint32_t> others;
  for (std::uint32_t at = 0; at < next_.size(); ++at) {
    if (std::find(reducible_.begin(), reducible_.end(), at) == reducible_.end()) {
      // Also stages that are not sources: their tails are never longer than a source's before them, reducible or not.
      others.push_back(at);
    }
  }
  longest_of(others_[0], others, tail_of, columns);
}

double PathBlock::expected_path(std::span<const double> reduction, PathScratch& scratch) const {
  return only_sources_ ? from_sources(reduction, scratch) : from_all(reduction, scratch);
}

double PathBlock::from_sources(std::span<const double> reduction, PathScratch& scratch) const {
  const std::size_t columns = outcomes_.residual.columns();
  double* path = scratch.values(columns);
  std::copy_n(others_[0], columns, path);
  for (std::size_t index = 0; index < reducible_.size(); ++index) {
    raise_path(path, outcomes_.residual[reducible_[index]], reduction[index], below(index), columns);
  }
  return weighted_sum(outcomes_.weights.data(), path, columns) / outcomes_.total_weight;
}

/// Without a source the path is the longest one, or the next longest where its own is that.
double PathBlock::expected_paths(std::span<const double> reduction, std::span<const Alternative> alternatives,
                                 std::span<double> paths, PathScratch& scratch) const {
  const std::size_t columns = outcomes_.residual.columns();
  const double* weights = outcomes_.weights.data();
  double* longest = scratch.values(2 * columns);
  double* next = longest + columns;
  std::copy_n(others_[0], columns, longest);
  std::fill_n(next, columns, 0.0);
  for (std::size_t index = 0; index < reducible_.size(); ++index) {
    raise_two(longest, next, outcomes_.residual[reducible_[index]], reduction[index], below(index), columns);
  }
  for (std::size_t at = 0; at < alternatives.size(); ++at) {
    const auto [index, lowered] = alternatives[at];
    paths[at] = weighted_path(weights, longest, next, outcomes_.residual[reducible_[index]],
                              {reduction[index], lowered}, below(index), columns) /
                outcomes_.total_weight;
  }
  return weighted_sum(weights, longest, columns) / outcomes_.total_weight;
}

/// In one outcome the path falls from one source's length to the next longest's once all longer sources are lowered,
/// and never below what lowering all of them leaves.
void PathBlock::gains_of_subsets(std::span<const double> reduction, std::vector<double>& gains,
                                 PathScratch& scratch) const {
  const std::size_t columns = outcomes_.residual.columns();
  const std::size_t ranks = reducible_.size();
  double* lengths = scratch.values((ranks + 1) * columns);
  double* least = lengths + ranks * columns;
  std::copy_n(others_[0], columns, least);
  for (std::size_t index = 0; index < ranks; ++index) {
    const double* residual = outcomes_.residual[reducible_[index]];
    raise_path(least, residual, reduction[index], below(index), columns);
    add_tagged(lengths + index * columns, residual, below(index), std::uint64_t{1} << index, columns);
  }
  sort_columns(lengths, ranks, columns);
  gains.assign(std::size_t{1} << ranks, 0.0);
  credit_falls(gains.data(), lengths, ranks, outcomes_.weights.data(), least, columns);
  sum_over_subsets(gains.data(), gains.size());
  for (double& gain : gains) {
    gain /= outcomes_.total_weight;
  }
}

double PathBlock::from_all(std::span<const double> reduction, PathScratch& scratch) const {
  const std::size_t columns = outcomes_.residual.columns();
  double* path = scratch.values((next_.size() + 1) * columns);
  double* tails = path + columns;
  longest_tails(reduction, tails);
  std::copy_n(tails, columns, path);
  for (std::size_t at = 1; at < next_.size(); ++at) {
    raise(path, tails + at * columns, columns);
  }
  return weighted_sum(outcomes_.weights.data(), path, columns) / outcomes_.total_weight;
}

}  // namespace topas::detail
