// What a decision is, and the pure door into the core.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "topas/config.hpp"
#include "topas/snapshot.hpp"

namespace topas {

/// The five terms of the score, seconds (SPEC section 3). All but `admit` may not be negative.
struct Terms {
  double admit = 0.0;
  double reuse = 0.0;
  double move = 0.0;
  double redo = 0.0;
  double revoke = 0.0;

  [[nodiscard]] double score() const noexcept { return admit + reuse - move - redo - revoke; }

  friend bool operator==(const Terms&, const Terms&) = default;
};

/// The value that an admission was granted, kept until completion and revoked on preemption.
struct Credit {
  Id request;
  double value = 0.0;       ///< lambda = g * marginal
  double age_factor = 1.0;  ///< g

  friend bool operator==(const Credit&, const Credit&) = default;
};

struct Decision {
  double now = 0.0;
  std::uint64_t state_version = 0;  ///< of the Scheduler that made it; 0 from the pure door
  std::vector<Id> resident;         ///< R', ascending
  std::vector<Id> admit;            ///< A, in packing order
  std::vector<Id> preempt;          ///< P, ascending
  std::vector<Id> load;             ///< R' \ R_t, ascending
  std::vector<Id> drop;             ///< R_t \ R', ascending
  std::vector<Credit> credits;      ///< one for each of `admit`
  std::vector<Id> unschedulable;    ///< waiting requests that can never fit, ascending
  Terms terms;
  std::uint64_t evaluated_sets = 0;  ///< prefix sets that GreedyPack was run on
  std::uint64_t pruned_sets = 0;     ///< feasible ones left out: they could not be chosen, or the budget was used up

  [[nodiscard]] double score() const noexcept { return terms.score(); }

  friend bool operator==(const Decision&, const Decision&) = default;
};

/// One evaluated prefix set with its best allocation.
struct CandidateState {
  std::vector<Id> resident;
  std::vector<Id> admit;
  std::vector<Id> preempt;
  Terms terms;
};

enum class WaitReason : std::uint8_t {
  never_fits,       ///< prefix + reservation exceed the capacity
  prefix_not_kept,  ///< its agent is not in the chosen set
  no_slot,          ///< action cap or running limit reached
  no_room,          ///< its reservation does not fit beside the chosen state
  not_worth,        ///< it fits, but the allocation without it scores higher
  held_back,        ///< room is kept for a request that has waited much longer (`reserve_limit`)
  standstill,       ///< no state is feasible: more is running than the limits allow
};

/// Why a waiting request was left waiting.
struct LeftWaiting {
  Id request;
  Id agent;
  WaitReason reason = WaitReason::no_room;
  std::int64_t needs_tokens = 0;  ///< its reservation, with the prefix where that is not resident
  std::int64_t free_tokens = 0;   ///< free in the chosen state
  double gain = 0.0;              ///< g * marginal after the chosen admissions, seconds
  bool has_alternative = false;   ///< for prefix_not_kept: some evaluated set admits it
  double alternative_score = 0.0;
};

struct Explanation {
  Decision decision;
  std::vector<CandidateState> candidates;  ///< best first, the chosen one, not yet filled, at the front
  std::vector<LeftWaiting> left_waiting;   ///< by request id
};

/// The decision of SPEC for a state. Pure. Throws ConfigError, SnapshotError or (with samples = 0) CapacityError.
[[nodiscard]] Decision decide(const Snapshot& snapshot, const Config& config);

/// The same decision with its `top` best candidates and the reason for each request left waiting.
[[nodiscard]] Explanation explain(const Snapshot& snapshot, const Config& config, std::size_t top);

/// E[LP] of one task of the snapshot after the hypothetical completions of some of its requests, seconds (SPEC
/// section 2). Throws UnknownId for a task or a request that the snapshot does not have.
[[nodiscard]] double expected_longest_path(const Snapshot& snapshot, const Config& config, const Id& task,
                                           const std::vector<Id>& completions);

}  // namespace topas
