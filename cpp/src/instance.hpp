// One decision's input, made dense: ids become indexes whose order is the order of the ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "task_model.hpp"
#include "topas/config.hpp"
#include "topas/id.hpp"

namespace topas::detail {

struct Range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  [[nodiscard]] std::uint32_t size() const noexcept { return end - begin; }
};

/// Ranges whose ends are counts become empty ones, each at the place where so many find room behind those before it.
inline void lay_out(std::span<Range> ranges) noexcept {
  std::uint32_t begin = 0;
  for (Range& range : ranges) {
    const std::uint32_t count = range.end;
    range = {begin, begin};
    begin += count;
  }
}

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// An agent with waiting or running requests.
struct AgentView {
  const Id* id = nullptr;
  std::int64_t prefix_tokens = 0;
  bool resident = false;
  std::int64_t next_stages = 0;  ///< n_a: stages about to become ready (SPEC section 3, J_reuse)
  // The rest is filled in by Instance::index().
  Range waiting{}, running{};         ///< into Instance::waiting and Instance::running
  std::int64_t least_waiting_kv = 0;  ///< smallest reservation among the waiting requests
  std::int64_t running_kv = 0;
  double backlog = 1.0;  ///< f: what the services of its requests are multiplied by (docs/specification.md, section 7)
  double reuse = 0.0;    ///< share of J_reuse when it is in R', unweighted seconds times beta
  double redo = 0.0;     ///< J_redo when its running requests are preempted
  double revoke = 0.0;   ///< J_revoke likewise
  bool firm = false;     ///< it must be in R': a request of it must not be preempted, or room was kept for one
};

struct RequestView {
  const Id* id = nullptr;
  std::uint32_t agent = 0;
  std::uint32_t task = 0;
  std::uint32_t bit = 0;  ///< place in the task's completion sets
  std::int64_t kv_tokens = 0;
  double redo = 0.0;            ///< running only
  double revoke = 0.0;          ///< running only
  double service_s = 0.0;       ///< d
  bool firm = false;            ///< running only: must not be preempted
  double fall_s = kUnknown;     ///< what completing it alone takes off the path of its task, where that is known
  double* keep_fall = nullptr;  ///< where to keep it for the next decision, if anywhere
};

/// By how much the path of a task falls when the requests of a set, of bits, complete; unknown of none.
struct Fall {
  std::uint64_t set = 0;
  double seconds = 0.0;
};

/// A waiting request that is no candidate, since room is kept for an earlier one (`reserve_limit`).
struct HeldBack {
  const Id* id = nullptr;
  const Id* agent = nullptr;
  std::int64_t kv_tokens = 0;
};

struct TaskView {
  const Id* id = nullptr;
  double arrival = 0.0;
  double age_factor = 1.0;           ///< g
  const TaskModel* model = nullptr;  ///< none where gains are services; what follows is read without it
  std::uint32_t words = 0;           ///< of a completion set
  std::uint32_t outcomes = 0;        ///< that the gains of all sets are told from; 0: they cannot be told
  Fall fall{};                       ///< of a set of requests, where one is known
  Fall* keep_fall = nullptr;         ///< where to keep one for the next decision, if anywhere
  double urgency = 1.0;              ///< u
  bool overdue = false;              ///< nothing overtakes its requests
  double path_s = 0.0;               ///< longest path of its expected residuals, where anything goes by it
  // The rest is filled in by Instance::index().
  std::uint32_t first_word = 0;  ///< into buffers of completion sets
  Range waiting{};               ///< into Instance::waiting_of_tasks
  Range running{};               ///< into Instance::running_of_tasks

  /// Gains come from this model.
  void take(const TaskModel& told) {
    model = &told;
    words = static_cast<std::uint32_t>(told.words());
    outcomes = told.outcomes();
  }
  /// g * u: what its gains are multiplied by.
  [[nodiscard]] double scale() const noexcept { return age_factor * urgency; }
};

inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 2;

/// Fill in `config`, `agents`, `tasks`, `waiting`, `running` and the idle residents, then call index().
struct Instance {
  const Config* config = nullptr;
  std::vector<AgentView> agents;          ///< ascending ids
  std::vector<TaskView> tasks;            ///< any order
  std::vector<RequestView> waiting;       ///< by (agent, id)
  std::vector<RequestView> running;       ///< by (agent, id)
  std::vector<HeldBack> held_back;        ///< by (agent, id)
  std::int64_t idle_resident_tokens = 0;  ///< prefixes of resident agents that have no request
  std::vector<const Id*> idle_residents;

  // Filled in by index().
  std::vector<std::uint32_t> waiting_of_tasks;  ///< indexes into `waiting`, grouped by task
  std::vector<std::uint32_t> running_of_tasks;  ///< indexes into `running`, grouped by task
  std::vector<std::uint32_t> waiting_tasks;     ///< those with waiting requests, in the order of `waiting`
  std::uint32_t words = 0;                      ///< of all completion sets together
  std::int64_t resident_tokens = 0;             ///< of all resident prefixes, idle ones too
  std::int64_t firm_agents = 0;                 ///< those that must stay

  void index();
  /// Those of `waiting_tasks`, in the order of their first waiting request.
  void list_waiting_tasks();
  /// Weighs the requests of each agent by how much room they all would take; preemptions are charged.
  void weigh_backlogs();
  /// Back to an empty one, which keeps its room.
  void clear() noexcept;
  /// Whether a request gains the same whatever else is served.
  [[nodiscard]] bool gains_are_services() const noexcept { return config->gain_model == GainModel::service; }
  /// w * f: what admitting a request gains where gains are services.
  [[nodiscard]] double worth(const RequestView& request) const noexcept {
    return tasks[request.task].scale() * request.service_s * agents[request.agent].backlog;
  }
  [[nodiscard]] double seconds_per_token_moved() const noexcept {
    return config->kv_bytes_per_token / config->swap_bytes_per_s;
  }
  /// How many requests may be admitted when so many running ones are kept; negative: too many are.
  [[nodiscard]] std::int64_t slots_beside(std::int64_t kept) const noexcept {
    const std::int64_t cap = config->action_cap > 0 ? config->action_cap : kUnlimited;
    return config->max_running_requests > 0 ? std::min(cap, config->max_running_requests - kept) : cap;
  }
  /// Whether a request comes before another one in the order of arrival: of their tasks, then by id.
  [[nodiscard]] bool comes_before(const RequestView& a, const RequestView& b) const {
    const double arrival = tasks[a.task].arrival;
    const double other = tasks[b.task].arrival;
    return arrival != other ? arrival < other : *a.id < *b.id;
  }
  /// Whether the request can never be served: prefix and reservation exceed the capacity.
  [[nodiscard]] bool never_fits(const RequestView& request) const noexcept {
    return agents[request.agent].prefix_tokens + request.kv_tokens > config->kv_capacity_tokens;
  }
};

/// g = 1 + rho * max(now - arrival, 0) / H_age; 1 when ageing is off or its scale unknown.
[[nodiscard]] double age_factor(const Config& config, double age_scale_s, double now, double arrival) noexcept;

/// A task as decisions weigh it: `path_s` is the longest path of its expected residuals, seconds. Its model is
/// left to the caller.
[[nodiscard]] TaskView view_of_task(const Config& config, const Id& id, double arrival, double age_scale_s, double now,
                                    double path_s) noexcept;

/// What preempting a running request costs and whether it may be, into its view; service_s is set.
void charge_preemption(const Config& config, const TaskView& task, std::int64_t input_tokens,
                       std::int64_t generated_tokens, double credit, double age_factor_at_admission, RequestView& view);

/// What preempting a running request costs (SPEC section 3): work to be done again, weighted.
[[nodiscard]] double redo_cost(const Config& config, std::int64_t input_tokens, std::int64_t generated_tokens) noexcept;

/// What its stored credit is revoked at (SPEC sections 3 and 6).
[[nodiscard]] double revoke_cost(const Config& config, double credit, double age_factor_now,
                                 double age_factor_at_admission) noexcept;

}  // namespace topas::detail
