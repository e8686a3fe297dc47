#include "task_model.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "path_blocks.hpp"
#include "text.hpp"
#include "topas/error.hpp"

namespace topas::detail {

namespace {

bool contains(CompletionSet set, std::uint32_t request) noexcept {
  return ((set[request / 64] >> (request % 64)) & 1U) != 0;
}

std::vector<std::vector<double>> block_supports(std::span<const StageOutlook> stages,
                                                std::span<const std::uint32_t> block) {
  std::vector<std::vector<double>> supports(block.size());
  for (std::size_t at = 0; at < block.size(); ++at) {
    if (stages[block[at]].finished) {
      supports[at].push_back(0.0);
    } else {
      residual_support(stages[block[at]], supports[at]);
    }
  }
  return supports;
}

}  // namespace

TaskModel::TaskModel(const Config& config, const Id& task, const StageGraph& graph, const PathBlocks& blocks,
                     std::span<const StageOutlook> stages, std::span<const RequestOutlook> requests, Scope scope)
    : requests_(requests.begin(), requests.end()), order_(requests.size()) {
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(), [this](auto a, auto b) {
    return requests_[a].stage != requests_[b].stage ? requests_[a].stage < requests_[b].stage : a < b;
  });
  const auto has_request = [this](std::uint32_t stage) {
    const Span found = requests_of(stage);
    return found.begin < found.end;
  };
  for (const auto& block : blocks) {
    if (scope == Scope::blocks_of_requests && std::none_of(block.begin(), block.end(), has_request)) {
      continue;
    }
    stages_.insert(stages_.end(), block.begin(), block.end());
    const StageOutlook& first = stages[block.front()];
    const auto limit = static_cast<std::size_t>(config.exact_limit);
    if (block.size() > 1 || (!first.finished && residual_support_size(first) > limit)) {
      add_part(config, task, graph, stages, block);
    } else if (!first.finished) {
      singles_.push_back({first, requests_of(block.front())});
    }
  }
}

/// The requests of a stage.
TaskModel::Span TaskModel::requests_of(std::uint32_t stage) const noexcept {
  const auto before = [this](std::uint32_t request, std::uint32_t wanted) { return requests_[request].stage < wanted; };
  const auto begin = std::lower_bound(order_.begin(), order_.end(), stage, before);
  const auto end = std::lower_bound(begin, order_.end(), stage + 1, before);
  return {static_cast<std::uint32_t>(begin - order_.begin()), static_cast<std::uint32_t>(end - order_.begin())};
}

void TaskModel::add_part(const Config& config, const Id& task, const StageGraph& graph,
                         std::span<const StageOutlook> stages, std::span<const std::uint32_t> block) {
  const auto supports = block_supports(stages, block);
  Outcomes outcomes = enumerate_outcomes(supports, static_cast<std::size_t>(config.exact_limit));
  if (outcomes.weights.empty()) {
    if (config.samples == 0) {
      throw CapacityError(text("task ", to_string(task), ": the residuals of its ", block.size(),
                               " parallel stages have more than exact_limit = ", config.exact_limit,
                               " joint outcomes, and samples = 0 forbids sampling"));
    }
    std::vector<std::uint64_t> streams;
    for (const auto stage : block) {
      streams.push_back(draw_stream(config.seed, stable_hash(task), stage));
    }
    outcomes = draw_outcomes(supports, streams, static_cast<std::size_t>(config.samples));
  }
  std::vector<std::uint32_t> reducible;  // places in the block
  std::vector<Span> of_reducible;
  for (std::uint32_t at = 0; at < block.size(); ++at) {
    if (const Span here = requests_of(block[at]); here.begin < here.end) {
      reducible.push_back(at);
      of_reducible.push_back(here);
    }
  }
  parts_.push_back({PathBlock(graph, block, std::move(outcomes), std::move(reducible)), std::move(of_reducible)});
}

double TaskModel::expected_path(CompletionSet completed, PathScratch& scratch) const {
  if (completed.size() > 1) {
    if (!std::equal(completed.begin(), completed.end(), last_set_.begin(), last_set_.end())) {
      last_value_ = evaluate(completed, scratch);
      last_set_.assign(completed.begin(), completed.end());
    }
    return last_value_;
  }
  const std::uint64_t key = completed.empty() ? 0 : completed.front();
  if (const double* known = remembered_.find(key)) {
    return *known;
  }
  const double value = evaluate(completed, scratch);
  remembered_.insert(key, value);
  return value;
}

/// What the completed requests of a stage take off its residual, in the order of their ids.
double TaskModel::reduction_of(Span requests, CompletionSet completed) const noexcept {
  double reduction = 0.0;
  for (auto at = requests.begin; at < requests.end; ++at) {
    if (contains(completed, order_[at])) {
      reduction += requests_[order_[at]].expected_service_s;
    }
  }
  return reduction;
}

double TaskModel::evaluate(CompletionSet completed, PathScratch& scratch) const {
  double path = 0.0;
  for (const Single& single : singles_) {
    path += expected_residual(single.outlook, reduction_of(single.requests, completed));
  }
  for (const Part& part : parts_) {
    reduction_.clear();
    for (const Span requests : part.requests) {
      reduction_.push_back(reduction_of(requests, completed));
    }
    path += part.block.expected_path(reduction_, scratch);
  }
  return path;
}

}  // namespace topas::detail
