#include "path_block.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "lanes.hpp"

namespace topas::detail {

namespace {

double lowered(double residual, double reduction) noexcept { return std::max(residual - reduction, 0.0); }

}  // namespace

PathBlock::PathBlock(const StageGraph& graph, std::span<const std::uint32_t> stages, Outcomes outcomes,
                     std::vector<std::uint32_t> reducible)
    : outcomes_(std::move(outcomes)), next_(stages.size()), reducible_(std::move(reducible)) {
  std::unordered_map<std::uint32_t, std::uint32_t> position;
  for (std::uint32_t at = 0; at < stages.size(); ++at) {
    position.emplace(stages[at], at);
  }
  std::vector<bool> source(stages.size(), true);
  for (std::uint32_t at = 0; at < stages.size(); ++at) {
    for (const auto next : graph.successors(stages[at])) {
      if (const auto found = position.find(next); found != position.end()) {
        next_[at].push_back(found->second);
        source[found->second] = false;
      }
    }
  }
  only_sources_ = std::all_of(reducible_.begin(), reducible_.end(), [&source](auto at) { return source[at]; });
  if (only_sources_) {
    prepare_sources();
  }
}

/// Tails of every stage (paper, section IV-B: in reverse topological order): its residual and the longest tail behind.
void PathBlock::longest_tails(std::span<const double> reduction, Rows& tails) const {
  std::vector<double> lower(next_.size(), 0.0);
  for (std::size_t index = 0; index < reduction.size(); ++index) {
    lower[reducible_[index]] = reduction[index];
  }
  for (std::size_t at = next_.size(); at-- > 0;) {
    double* tail = tails[at];
    for (const auto next : next_[at]) {
      const double* behind = tails[next];
      for (std::size_t k = 0; k < tails.columns(); ++k) {
        tail[k] = std::max(tail[k], behind[k]);
      }
    }
    const double* residual = outcomes_.residual[at];
    for (std::size_t k = 0; k < tails.columns(); ++k) {
      tail[k] += lowered(residual[k], lower[at]);
    }
  }
}

void PathBlock::prepare_sources() {
  const std::size_t columns = outcomes_.residual.columns();
  Rows tails(next_.size(), columns);
  longest_tails({}, tails);
  below_ = Rows(reducible_.size(), columns);
  others_ = Rows(1, columns);
  for (std::size_t index = 0; index < reducible_.size(); ++index) {
    for (const auto next : next_[reducible_[index]]) {
      std::transform(tails[next], tails[next] + columns, below_[index], below_[index],
                     [](double left, double right) { return std::max(left, right); });
    }
  }
  for (std::uint32_t at = 0; at < next_.size(); ++at) {
    if (std::find(reducible_.begin(), reducible_.end(), at) == reducible_.end()) {
      // Also stages that are not sources: their tails are never longer than a source's before them, reducible or not.
      std::transform(tails[at], tails[at] + columns, others_[0], others_[0],
                     [](double left, double right) { return std::max(left, right); });
    }
  }
}

double PathBlock::expected_path(std::span<const double> reduction, PathScratch& scratch) const {
  return only_sources_ ? from_sources(reduction, scratch) : from_all(reduction, scratch);
}

double PathBlock::from_sources(std::span<const double> reduction, PathScratch& scratch) const {
  const std::size_t columns = outcomes_.residual.columns();
  scratch.assign(others_[0], others_[0] + columns);
  double* path = scratch.data();
  for (std::size_t index = 0; index < reducible_.size(); ++index) {
    const double* residual = outcomes_.residual[reducible_[index]];
    const double* below = below_[index];
    const double lower = reduction[index];
    for (std::size_t k = 0; k < columns; ++k) {
      path[k] = std::max(path[k], lowered(residual[k], lower) + below[k]);
    }
  }
  return mean(path);
}

double PathBlock::from_all(std::span<const double> reduction, PathScratch& scratch) const {
  const std::size_t columns = outcomes_.residual.columns();
  Rows tails(next_.size(), columns);
  longest_tails(reduction, tails);
  scratch.assign(columns, 0.0);
  for (std::size_t at = 0; at < next_.size(); ++at) {
    for (std::size_t k = 0; k < columns; ++k) {
      scratch[k] = std::max(scratch[k], tails[at][k]);
    }
  }
  return mean(scratch.data());
}

double PathBlock::mean(const double* values) const noexcept {
  Lanes lanes{};
  for (std::size_t k = 0; k < outcomes_.weights.size(); k += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] += outcomes_.weights[k + lane] * values[k + lane];
    }
  }
  return sum_of(lanes) / outcomes_.total_weight;
}

}  // namespace topas::detail
