#include "topas/workflow.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "text.hpp"
#include "topas/error.hpp"

namespace topas {

namespace {

using Adjacency = std::vector<std::vector<std::uint32_t>>;

std::vector<std::uint32_t> offsets(const Adjacency& lists) {
  std::vector<std::uint32_t> at{0};
  for (const auto& list : lists) {
    at.push_back(at.back() + static_cast<std::uint32_t>(list.size()));
  }
  return at;
}

std::vector<std::uint32_t> flatten(const Adjacency& lists) {
  std::vector<std::uint32_t> flat;
  for (const auto& list : lists) {
    flat.insert(flat.end(), list.begin(), list.end());
  }
  return flat;
}

void check_service(double value, const char* field, const Id& stage) {
  if (!std::isfinite(value) || value < 0.0) {
    throw WorkflowError(
        detail::text("stage ", to_string(stage), ": ", field, " must be finite and at least 0, got ", value));
  }
}

std::unordered_map<Id, std::uint32_t, IdHash> index_stages(const Id& name, const std::vector<StageSpec>& stages) {
  if (stages.empty()) {
    throw WorkflowError(detail::text("workflow ", to_string(name), " has no stage"));
  }
  std::unordered_map<Id, std::uint32_t, IdHash> index;
  for (const auto& stage : stages) {
    if (!index.emplace(stage.name, static_cast<std::uint32_t>(index.size())).second) {
      throw WorkflowError(detail::text("workflow ", to_string(name), ": duplicate stage ", to_string(stage.name)));
    }
    check_service(stage.service_s, "service_s", stage.name);
    check_service(stage.request_s, "request_s", stage.name);
  }
  return index;
}

StageGraph link_stages(const Id& name, const std::vector<StageSpec>& stages,
                       const std::unordered_map<Id, std::uint32_t, IdHash>& index) {
  Adjacency after(stages.size());
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const auto& predecessor : stages[stage].after) {
      const auto found = index.find(predecessor);
      if (found == index.end()) {
        throw WorkflowError(detail::text("workflow ", to_string(name), ": stage ", to_string(stages[stage].name),
                                         " comes after unknown stage ", to_string(predecessor)));
      }
      after[stage].push_back(found->second);
    }
  }
  return {after, [&stages](std::uint32_t stage) { return to_string(stages[stage].name); }};
}

double critical_path(const std::vector<StageSpec>& stages, const StageGraph& graph) {
  std::vector<double> tail(stages.size(), 0.0);
  double longest = 0.0;
  for (auto at = graph.order().rbegin(); at != graph.order().rend(); ++at) {
    double below = 0.0;
    for (const auto next : graph.successors(*at)) {
      below = std::max(below, tail[next]);
    }
    tail[*at] = stages[*at].service_s + below;
    longest = std::max(longest, tail[*at]);
  }
  return longest;
}

}  // namespace

StageGraph::StageGraph(const std::vector<std::vector<std::uint32_t>>& after,
                       const std::function<std::string(std::uint32_t)>& label) {
  Adjacency before = after;
  Adjacency next(after.size());
  for (std::uint32_t stage = 0; stage < before.size(); ++stage) {
    auto& list = before[stage];
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    for (const auto predecessor : list) {
      next[predecessor].push_back(stage);
    }
  }
  before_at_ = offsets(before);
  before_ = flatten(before);
  next_at_ = offsets(next);
  next_ = flatten(next);
  sort_topologically();
  if (order_.size() < after.size()) {
    std::string path;
    for (const auto stage : find_cycle()) {
      path += (path.empty() ? "" : " -> ") + label(stage);
    }
    throw WorkflowError(detail::text("stages form a cycle: ", path));
  }
}

void StageGraph::sort_topologically() {
  const auto count = static_cast<std::uint32_t>(before_at_.size() - 1);
  std::vector<std::uint32_t> open(count);
  order_.reserve(count);
  for (std::uint32_t stage = 0; stage < count; ++stage) {
    open[stage] = before_at_[stage + 1] - before_at_[stage];
    if (open[stage] == 0) {
      order_.push_back(stage);
    }
  }
  for (std::size_t done = 0; done < order_.size(); ++done) {
    for (const auto next : successors(order_[done])) {
      if (--open[next] == 0) {
        order_.push_back(next);
      }
    }
  }
}

std::vector<std::uint32_t> StageGraph::find_cycle() const {
  const std::size_t count = before_at_.size() - 1;
  std::vector<bool> sorted(count, false);
  for (const auto stage : order_) {
    sorted[stage] = true;
  }
  // Every unsorted stage has an unsorted predecessor, so walking back must come round.
  const auto first = std::find(sorted.begin(), sorted.end(), false) - sorted.begin();
  std::vector<std::uint32_t> walk{static_cast<std::uint32_t>(first)};
  std::vector<std::int64_t> seen_at(count, -1);
  while (seen_at[walk.back()] < 0) {
    seen_at[walk.back()] = static_cast<std::int64_t>(walk.size()) - 1;
    const auto before = predecessors(walk.back());
    walk.push_back(*std::find_if(before.begin(), before.end(), [&sorted](auto stage) { return !sorted[stage]; }));
  }
  std::vector<std::uint32_t> path(walk.begin() + seen_at[walk.back()], walk.end());
  std::reverse(path.begin(), path.end());
  return path;
}

Workflow::Workflow(Id name, std::vector<StageSpec> stages)
    : name_(std::move(name)),
      stages_(std::move(stages)),
      index_(index_stages(name_, stages_)),
      graph_(link_stages(name_, stages_, index_)),
      critical_path_s_(critical_path(stages_, graph_)) {}

std::uint32_t Workflow::index_of(const Id& stage) const {
  const auto found = index_.find(stage);
  if (found == index_.end()) {
    throw UnknownId(detail::text("workflow ", to_string(name_), " has no stage ", to_string(stage)));
  }
  return found->second;
}

}  // namespace topas
