// One-step rollout: the decision whose continuation is simulated best (SPEC section 8).
#pragma once

#include <cstdint>
#include <vector>

#include "instance.hpp"
#include "topas/decision.hpp"
#include "topas/snapshot.hpp"
#include "topas/workflow.hpp"

namespace topas::detail {

/// What of the waiting requests of an instance is admitted; members: the agents with a request afterwards.
struct RolledOut {
  std::vector<std::uint32_t> admit;    ///< into Instance::waiting, in order
  std::vector<std::uint32_t> members;  ///< ascending
};

/// Whether another decision is better than `base`, and which. `path_s`: of each of Instance::tasks the longest path of
/// its expected residuals. `graphs`: of each task of the snapshot.
[[nodiscard]] bool roll_out(const Snapshot& snapshot, const std::vector<const StageGraph*>& graphs,
                            const Instance& instance, const Decision& base, RolledOut& better);

}  // namespace topas::detail
