// The tasks in the system as rollouts see them (SPEC section 8): sampled work, dense indexes.
#pragma once

#include <cstdint>
#include <vector>

#include "instance.hpp"
#include "topas/snapshot.hpp"
#include "topas/workflow.hpp"

namespace topas::detail {

/// Tasks come in order of arrival, then of their ids; those of their stages that are open, or have a request, follow
/// each other. Live requests are numbered by their ids.
struct RolloutModel {
  struct Agent {
    std::int64_t prefix_tokens = 0;
    double load_s = 0.0;               ///< of its prefix
    std::int64_t least_kv_tokens = 0;  ///< none of its requests reserves less
  };
  struct Stage {
    std::uint32_t task = 0;
    std::uint32_t agent = 0;
    bool ended = false;
    std::uint32_t open_before = 0;  ///< predecessors that have not ended
    std::uint32_t live = 0;         ///< requests
    std::int64_t kv_tokens = 0;     ///< reservation of a request to come
    Range successors{};             ///< into `successors`
  };
  struct Request {
    std::uint32_t stage = 0;
    std::int64_t kv_tokens = 0;
    bool running = false;
    double spent_s = 0.0;  ///< service so far
  };
  /// What is left of an open stage in one scenario.
  struct Work {
    std::uint32_t requests = 0;  ///< live ones too
    double request_s = 0.0;      ///< service of each
  };

  std::int64_t capacity_tokens = 0;
  std::int64_t running_limit = 0;  ///< 0: none
  double power = 1.0;
  std::vector<Agent> agents;
  std::vector<double> age_s;               ///< of each task
  std::vector<std::uint32_t> open_stages;  ///< of each task
  std::vector<Stage> stages;
  std::vector<std::uint32_t> successors;
  std::vector<Request> requests;
  std::vector<std::vector<Work>> scenarios;  ///< of each, the work of each stage
  std::vector<std::uint32_t> waiting;        ///< of each of Instance::waiting, its number
  std::vector<std::uint32_t> running;        ///< of each of Instance::running, its number

  /// How many requests a run of the scenario simulates.
  [[nodiscard]] std::int64_t requests_in(std::size_t scenario) const {
    std::int64_t out = 0;
    for (const auto& work : scenarios[scenario]) {
      out += work.requests;
    }
    return out;
  }
};

/// `graphs`: of each task of the snapshot.
[[nodiscard]] RolloutModel rollout_model(const Snapshot& snapshot, const std::vector<const StageGraph*>& graphs,
                                         const Instance& instance);

}  // namespace topas::detail
