// Workflows: stages of agents in a DAG, checked when they are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "topas/id.hpp"

namespace topas {

/// One stage as the user gives it.
struct StageSpec {
  Id name;
  Id agent;
  std::vector<Id> after;   ///< predecessors; a double one counts once
  double service_s = 0.0;  ///< profiled total LLM service of the stage, all its requests
  double request_s = 0.0;  ///< profiled service of one request
};

/// Adjacency of a DAG of stages 0..size-1, both ways, and one topological order. Immutable.
class StageGraph {
 public:
  /// `after[stage]` lists predecessors, each below the number of stages; a double one counts once. Throws WorkflowError
  /// with the path of a cycle, stages as `label` names them.
  StageGraph(const std::vector<std::vector<std::uint32_t>>& after,
             const std::function<std::string(std::uint32_t)>& label);

  [[nodiscard]] std::size_t size() const noexcept { return order_.size(); }
  [[nodiscard]] std::span<const std::uint32_t> order() const noexcept { return order_; }
  [[nodiscard]] std::span<const std::uint32_t> predecessors(std::uint32_t stage) const noexcept {
    return {before_.data() + before_at_[stage], before_.data() + before_at_[stage + 1]};
  }
  [[nodiscard]] std::span<const std::uint32_t> successors(std::uint32_t stage) const noexcept {
    return {next_.data() + next_at_[stage], next_.data() + next_at_[stage + 1]};
  }

 private:
  void sort_topologically();
  [[nodiscard]] std::vector<std::uint32_t> find_cycle() const;

  std::vector<std::uint32_t> before_at_, before_, next_at_, next_, order_;
};

/// A checked workflow. Immutable.
class Workflow {
 public:
  /// Throws WorkflowError: no stage, a duplicate stage, an unknown predecessor, a cycle, a bad service.
  Workflow(Id name, std::vector<StageSpec> stages);

  [[nodiscard]] const Id& name() const noexcept { return name_; }
  [[nodiscard]] const std::vector<StageSpec>& stages() const noexcept { return stages_; }
  [[nodiscard]] const StageGraph& graph() const noexcept { return graph_; }
  /// Index of a stage; throws UnknownId.
  [[nodiscard]] std::uint32_t index_of(const Id& stage) const;
  /// Longest path of the profiled totals, seconds.
  [[nodiscard]] double critical_path_s() const noexcept { return critical_path_s_; }

 private:
  Id name_;
  std::vector<StageSpec> stages_;
  std::unordered_map<Id, std::uint32_t, IdHash> index_;
  StageGraph graph_;
  double critical_path_s_;
};

}  // namespace topas
