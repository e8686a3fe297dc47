#include "task_model.hpp"

#include <algorithm>
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

TaskModel::TaskModel(const Config& config, const Id& task, const StageGraph& graph,
                     std::span<const StageOutlook> stages, std::span<const RequestOutlook> requests, Scope scope)
    : requests_(requests.begin(), requests.end()) {
  std::vector<bool> wanted(stages.size(), scope == Scope::whole_path);
  for (const auto& request : requests_) {
    wanted[request.stage] = true;
  }
  for (const auto& block : path_blocks(graph, stages)) {
    if (std::any_of(block.begin(), block.end(), [&wanted](auto stage) { return wanted[stage]; })) {
      add_part(config, task, graph, stages, block);
    }
  }
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
  std::vector<std::uint32_t> reducible;
  std::vector<std::vector<std::uint32_t>> requests;
  for (std::uint32_t at = 0; at < block.size(); ++at) {
    std::vector<std::uint32_t> here;
    for (std::uint32_t request = 0; request < requests_.size(); ++request) {
      if (requests_[request].stage == block[at]) {
        here.push_back(request);
      }
    }
    if (!here.empty()) {
      reducible.push_back(at);
      requests.push_back(std::move(here));
    }
  }
  parts_.push_back({PathBlock(graph, block, std::move(outcomes), std::move(reducible)), std::move(requests)});
}

double TaskModel::expected_path(CompletionSet completed, PathScratch& scratch) const {
  if (completed.size() > 1) {
    return evaluate(completed, scratch);
  }
  const std::uint64_t key = completed.empty() ? 0 : completed.front();
  if (const auto known = remembered_.find(key); known != remembered_.end()) {
    return known->second;
  }
  const double value = evaluate(completed, scratch);
  remembered_.emplace(key, value);
  return value;
}

double TaskModel::evaluate(CompletionSet completed, PathScratch& scratch) const {
  double path = 0.0;
  for (const auto& part : parts_) {
    reduction_.clear();
    for (const auto& requests : part.requests) {
      double reduction = 0.0;
      for (const auto request : requests) {
        reduction += contains(completed, request) ? requests_[request].expected_service_s : 0.0;
      }
      reduction_.push_back(reduction);
    }
    path += part.block.expected_path(reduction_, scratch);
  }
  return path;
}

}  // namespace topas::detail
