// The whole state at one scheduling event, as plain data (SPEC section 1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "topas/id.hpp"

namespace topas {

struct AgentState {
  Id id;
  std::int64_t prefix_tokens = 0;

  friend bool operator==(const AgentState&, const AgentState&) = default;
};

/// The history of one agent-stage pair.
struct ProfileState {
  Id id;
  std::vector<double> totals_s;  ///< totals of completed executions, at least one (the profiled one before any)
  double request_s = 0.0;        ///< mean service of one request

  friend bool operator==(const ProfileState&, const ProfileState&) = default;
};

struct StageState {
  Id agent;
  std::vector<std::uint32_t> after;  ///< indexes of predecessors in the same task
  Id profile;
  bool completed = false;  ///< completed or skipped
  double service_s = 0.0;  ///< e: service of its finished requests so far

  friend bool operator==(const StageState&, const StageState&) = default;
};

struct TaskState {
  Id id;
  double arrival = 0.0;
  std::vector<StageState> stages;

  friend bool operator==(const TaskState&, const TaskState&) = default;
};

struct RequestState {
  Id id;
  Id task;
  std::uint32_t stage = 0;
  Id agent;
  std::int64_t kv_tokens = 0;       ///< c: reservation
  std::int64_t input_tokens = 0;    ///< dynamic input, for RedoModel::prefill
  double expected_service_s = 0.0;  ///< d
  bool running = false;
  std::int64_t generated_tokens = 0;              ///< y
  double credit = 0.0;                            ///< lambda
  std::optional<double> age_factor_at_admission;  ///< g when admitted; empty: the credit is not aged

  friend bool operator==(const RequestState&, const RequestState&) = default;
};

struct Snapshot {
  double now = 0.0;
  std::optional<double> age_scale_s;  ///< H_age as estimated; the config's constant wins
  std::vector<AgentState> agents;
  std::vector<ProfileState> profiles;
  std::vector<TaskState> tasks;
  std::vector<RequestState> requests;
  std::vector<Id> resident;

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

}  // namespace topas
