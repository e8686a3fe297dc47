// One task's expected remaining path as a function of the set of its hypothetically completed requests.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "parallel_block.hpp"
#include "path_block.hpp"
#include "path_blocks.hpp"
#include "residual.hpp"
#include "set_memo.hpp"
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

/// Immutable but for what it remembers. Built from the state of one task; stale when an event touches the task or the
/// profile of one of stages(); the totals that the outlooks span must outlive it. Throws CapacityError when the
/// settings forbid to sample what cannot be enumerated.
class TaskModel {
 public:
  /// Which part of the path to model: a decision only needs the blocks that its requests can shorten.
  enum class Scope : std::uint8_t { blocks_of_requests, whole_path };

  /// `requests` in ascending id order.
  TaskModel(const Config& config, const Id& task, const StageGraph& graph, std::span<const StageOutlook> stages,
            std::span<const RequestOutlook> requests, Scope scope)
      : TaskModel(config, task, graph, path_blocks(graph, stages), stages, requests, scope) {}
  /// With the blocks known: path_blocks(graph, stages). `previous`, a model of the same task, gives what it can.
  TaskModel(const Config& config, const Id& task, const StageGraph& graph, const PathBlocks& blocks,
            std::span<const StageOutlook> stages, std::span<const RequestOutlook> requests, Scope scope,
            TaskModel* previous = nullptr);

  /// Follows the profiles where nothing else has changed: neither the settings nor what the task itself has done.
  /// False: the model must be built anew. What has not changed is neither drawn nor forgotten.
  [[nodiscard]] bool refresh(const Config& config, std::span<const StageOutlook> stages,
                             std::span<const RequestOutlook> requests);

  /// E[LP(Z(H))] over the modelled blocks, seconds (SPEC section 2). Every value is remembered for tasks of at most 64
  /// requests, the last one for larger ones.
  [[nodiscard]] double expected_path(CompletionSet completed, PathScratch& scratch) const;

  /// The same, where what each further completion leaves is asked next: told together they cost less.
  [[nodiscard]] double expected_path_before_each(CompletionSet completed, PathScratch& scratch) const;

  /// By how much the path falls for every set of completed requests (of bits), seconds, up to rounding; empty when the
  /// model cannot tell them all at once: more than PathBlock::kSubsetStages requests, or several of one stage.
  [[nodiscard]] std::span<const double> gains_of_sets(PathScratch& scratch) const;
  [[nodiscard]] bool tells_sets() const;
  /// How many outcomes that looks at; 0 of a model that does not.
  [[nodiscard]] std::uint32_t outcomes() const;

  /// The stages whose residuals the model knows.
  [[nodiscard]] std::span<const std::uint32_t> stages() const noexcept { return stages_; }
  /// d of a request: no completion of it shortens the path by more.
  [[nodiscard]] double expected_service_s(std::uint32_t request) const noexcept {
    return requests_[request].expected_service_s;
  }
  [[nodiscard]] std::size_t words() const noexcept { return (requests_.size() + 63) / 64; }

 private:
  /// Places in order_.
  struct Span {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  /// A block of one stage, with the stage's requests.
  struct Single {
    std::uint32_t stage = 0;
    StageOutlook outlook;
    Span requests;
    ResidualKey key{};
  };
  /// A stage, and what its residual was made from.
  struct Residual {
    std::uint32_t stage = 0;
    ResidualKey key{};
    StageDraws draws;
  };
  /// A block of several stages, or of one whose distribution is too large to enumerate.
  struct Part {
    std::variant<PathBlock, ParallelBlock> block;
    std::vector<Span> requests;       ///< of each reducible stage
    std::vector<Residual> residuals;  ///< of each stage
    bool drawn = false;               ///< else enumerated
  };

  void add_part(const Config& config, const Id& task, const StageGraph& graph, std::span<const StageOutlook> stages,
                std::span<const std::uint32_t> block, TaskModel* previous);
  [[nodiscard]] StageDraws draws_of(std::uint64_t stream, std::size_t count);
  [[nodiscard]] static bool is_single(const Config& config, std::span<const StageOutlook> stages,
                                      std::span<const std::uint32_t> block) noexcept;
  [[nodiscard]] static bool refresh(const Config& config, std::span<const StageOutlook> stages, Part& part,
                                    bool& changed);
  [[nodiscard]] Span requests_of(std::uint32_t stage) const noexcept;
  [[nodiscard]] double reduction_of(Span requests, CompletionSet completed) const noexcept;
  [[nodiscard]] bool tells_each() const;
  [[nodiscard]] double evaluate(CompletionSet completed, PathScratch& scratch) const;

  std::vector<RequestOutlook> requests_;
  std::vector<std::uint32_t> order_;  // requests by stage, then by id
  std::vector<std::uint32_t> stages_;
  std::vector<Single> singles_;
  std::vector<Part> parts_;
  // Scratch, and what is remembered.
  mutable std::vector<double> reduction_;
  mutable std::vector<PathBlock::Alternative> alternatives_;
  mutable std::vector<std::uint64_t> larger_;
  mutable std::vector<double> paths_;
  mutable SetMemo remembered_;
  mutable std::vector<double> gains_of_sets_;    // empty until asked for
  mutable std::vector<std::uint64_t> last_set_;  // of a task of more than 64 requests
  mutable double last_value_ = 0.0;
};

}  // namespace topas::detail
