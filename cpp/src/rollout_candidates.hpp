// The decisions that a rollout compares (SPEC section 8).
#pragma once

#include <cstdint>
#include <vector>

#include "instance.hpp"
#include "topas/decision.hpp"

namespace topas::detail {

/// A decision to be tried, by indexes into Instance::waiting and Instance::running.
struct RolloutCandidate {
  std::vector<std::uint32_t> admit;    ///< in order
  std::vector<std::uint32_t> preempt;  ///< ascending
};

/// Each once, the base first.
[[nodiscard]] std::vector<RolloutCandidate> rollout_candidates(const Instance& instance, const Decision& base);

}  // namespace topas::detail
