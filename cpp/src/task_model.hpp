// One task's expected remaining path as a function of the set of its hypothetically completed requests.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "path_block.hpp"
#include "residual.hpp"
#include "topas/config.hpp"
#include "topas/id.hpp"
#include "topas/workflow.hpp"

namespace topas::detail {

/// A request as the expectation sees it.
struct RequestOutlook {
  std::uint32_t stage = 0;
  double expected_service_s = 0.0;  ///< d
};

/// A set of the task's requests: bit i of word i / 64 stands for request i in ascending id order.
using CompletionSet = std::span<const std::uint64_t>;

/// Immutable but for what it remembers. Built from the state of one task; stale when an event touches the task or a
/// profile of one of its stages. Throws CapacityError when the settings forbid to sample what cannot be enumerated.
class TaskModel {
 public:
  /// Which part of the path to model: a decision only needs the blocks that its requests can shorten.
  enum class Scope : std::uint8_t { blocks_of_requests, whole_path };

  TaskModel(const Config& config, const Id& task, const StageGraph& graph, std::span<const StageOutlook> stages,
            std::span<const RequestOutlook> requests, Scope scope);

  /// E[LP(Z(H))] over the modelled blocks, seconds (SPEC section 2). Remembered for tasks of at most 64 requests.
  [[nodiscard]] double expected_path(CompletionSet completed, PathScratch& scratch) const;

  [[nodiscard]] std::size_t words() const noexcept { return (requests_.size() + 63) / 64; }

 private:
  struct Part {
    PathBlock block;
    std::vector<std::vector<std::uint32_t>> requests;  ///< of each reducible stage, ascending
  };

  void add_part(const Config& config, const Id& task, const StageGraph& graph, std::span<const StageOutlook> stages,
                std::span<const std::uint32_t> block);
  [[nodiscard]] double evaluate(CompletionSet completed, PathScratch& scratch) const;

  std::vector<RequestOutlook> requests_;
  std::vector<Part> parts_;
  mutable std::vector<double> reduction_;
  mutable std::unordered_map<std::uint64_t, double> remembered_;
};

}  // namespace topas::detail
