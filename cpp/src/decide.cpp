// The pure door: a snapshot becomes an instance.
#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "instance.hpp"
#include "longest_path.hpp"
#include "reservation.hpp"
#include "residual.hpp"
#include "rollout.hpp"
#include "snapshot_check.hpp"
#include "solve.hpp"
#include "text.hpp"
#include "topas/decision.hpp"
#include "topas/error.hpp"

namespace topas {

namespace {

using detail::Instance;
using detail::RequestOutlook;
using detail::RequestView;
using detail::StageOutlook;
using detail::TaskModel;

double age_scale(const Snapshot& snapshot, const Config& config) {
  if (config.age_scale_s.has_value()) {
    return *config.age_scale_s;
  }
  if (!snapshot.age_scale_s.has_value() && config.uses_age_scale()) {
    throw ConfigError(detail::text("age_scale_s: needed for a single decision when age_weight (", config.age_weight,
                                   "), urgency (", config.urgency, "), overtake_limit (", config.overtake_limit,
                                   ") or reserve_limit (", config.reserve_limit, ") is above 0"));
  }
  return snapshot.age_scale_s.value_or(0.0);
}

StageGraph graph_of(const TaskState& task) {
  std::vector<std::vector<std::uint32_t>> after;
  after.reserve(task.stages.size());
  for (const auto& stage : task.stages) {
    after.push_back(stage.after);
  }
  try {
    return {after, [](std::uint32_t stage) { return std::to_string(stage); }};
  } catch (const WorkflowError& error) {
    throw SnapshotError(detail::text("task ", to_string(task.id), ": ", error.what()));
  }
}

/// The profiles of a snapshot, by id, totals ascending.
class ProfileTable {
 public:
  explicit ProfileTable(const Snapshot& snapshot) {
    for (const auto& profile : snapshot.profiles) {
      Entry& entry = entries_[profile.id];
      entry = {profile.totals_s, profile.request_s};
      std::sort(entry.totals_s.begin(), entry.totals_s.end());
    }
  }

  [[nodiscard]] std::vector<StageOutlook> outlooks(const TaskState& task) const {
    std::vector<StageOutlook> out;
    out.reserve(task.stages.size());
    for (const auto& stage : task.stages) {
      const Entry& entry = entries_.at(stage.profile);
      out.push_back({stage.completed, entry.totals_s, stage.service_s, entry.request_s});
    }
    return out;
  }

 private:
  struct Entry {
    std::vector<double> totals_s;
    double request_s = 0.0;
  };
  std::unordered_map<Id, Entry, IdHash> entries_;
};

void sort_by_id(std::vector<const RequestState*>& requests) {
  std::sort(requests.begin(), requests.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
}

std::vector<RequestOutlook> outlooks(const std::vector<const RequestState*>& requests) {
  std::vector<RequestOutlook> out;
  out.reserve(requests.size());
  for (const auto* request : requests) {
    out.push_back({request->stage, request->expected_service_s});
  }
  return out;
}

/// Owns what an Instance of a snapshot points to.
class SnapshotInstance {
 public:
  SnapshotInstance(const Snapshot& snapshot, const Config& config);

  [[nodiscard]] const Instance& instance() const noexcept { return instance_; }
  /// Of each task of the snapshot.
  [[nodiscard]] std::vector<const StageGraph*> graphs() const {
    std::vector<const StageGraph*> out;
    out.reserve(tasks_.size());
    for (const auto& task : tasks_) {
      out.push_back(&task.graph);
    }
    return out;
  }

 private:
  struct Task {
    const TaskState* state;
    StageGraph graph;
    std::vector<const RequestState*> requests;  // ascending id
  };

  void add_tasks();
  void add_agents();
  void add_requests();
  void count_next_stages();
  [[nodiscard]] RequestView view_of(const RequestState& request) const;

  const Snapshot& snapshot_;
  const Config& config_;
  double age_scale_s_;
  Instance instance_;
  ProfileTable profiles_;
  std::vector<Task> tasks_;
  std::unordered_map<Id, std::uint32_t, IdHash> task_at_;
  std::unordered_map<Id, std::uint32_t, IdHash> agent_at_;
  std::unordered_map<Id, std::uint32_t, IdHash> bit_of_;
  std::deque<TaskModel> models_;
};

SnapshotInstance::SnapshotInstance(const Snapshot& snapshot, const Config& config)
    : snapshot_(snapshot), config_(config), age_scale_s_(age_scale(snapshot, config)), profiles_(snapshot) {
  instance_.config = &config_;
  add_tasks();
  add_agents();
  add_requests();
  count_next_stages();
  detail::reserve_for_earliest(instance_, snapshot_.now, age_scale_s_);
  instance_.index();
}

void SnapshotInstance::add_tasks() {
  for (const auto& task : snapshot_.tasks) {
    task_at_[task.id] = static_cast<std::uint32_t>(tasks_.size());
    tasks_.push_back({&task, graph_of(task), {}});
  }
  for (const auto& request : snapshot_.requests) {
    tasks_[task_at_.at(request.task)].requests.push_back(&request);
  }
  for (auto& task : tasks_) {
    sort_by_id(task.requests);
    for (std::uint32_t bit = 0; bit < task.requests.size(); ++bit) {
      bit_of_[task.requests[bit]->id] = bit;
    }
    const auto stages = profiles_.outlooks(*task.state);
    const TaskModel* model = nullptr;
    if (config_.gain_model == GainModel::path) {
      model = &models_.emplace_back(config_, task.state->id, task.graph, stages, outlooks(task.requests),
                                    TaskModel::Scope::blocks_of_requests);
    }
    double path_s = 0.0;
    if (config_.uses_path()) {
      std::vector<double> ends;
      path_s = detail::longest_path(task.graph, ends, [&stages](std::uint32_t at) {
        return stages[at].finished ? 0.0 : detail::expected_residual(stages[at], 0.0);
      });
    }
    detail::TaskView view =
        detail::view_of_task(config_, task.state->id, task.state->arrival, age_scale_s_, snapshot_.now, path_s);
    if (model != nullptr) {
      view.take(*model);
    }
    instance_.tasks.push_back(view);
  }
}

void SnapshotInstance::add_agents() {
  std::map<Id, bool> active;  // ascending ids, as an Instance wants them
  for (const auto& request : snapshot_.requests) {
    active.emplace(request.agent, false);
  }
  std::unordered_map<Id, std::int64_t, IdHash> prefix_tokens;
  for (const auto& agent : snapshot_.agents) {
    prefix_tokens[agent.id] = agent.prefix_tokens;
  }
  for (const auto& id : snapshot_.resident) {
    if (const auto found = active.find(id); found != active.end()) {
      found->second = true;
    } else {
      instance_.idle_resident_tokens += prefix_tokens.at(id);
      instance_.idle_residents.push_back(&id);
    }
  }
  for (const auto& [id, resident] : active) {
    const auto at = static_cast<std::uint32_t>(instance_.agents.size());
    const auto entry = agent_at_.emplace(id, at).first;  // a stable home for the id
    instance_.agents.push_back({&entry->first, prefix_tokens.at(id), resident});
  }
}

RequestView SnapshotInstance::view_of(const RequestState& request) const {
  RequestView view{&request.id, agent_at_.at(request.agent), task_at_.at(request.task), bit_of_.at(request.id),
                   request.kv_tokens};
  view.service_s = request.expected_service_s;
  if (request.running) {
    const detail::TaskView& task = instance_.tasks[view.task];
    detail::charge_preemption(config_, task, request.input_tokens, request.generated_tokens, request.credit,
                              request.age_factor_at_admission.value_or(task.age_factor), view);
  }
  return view;
}

void SnapshotInstance::add_requests() {
  for (const auto& request : snapshot_.requests) {
    (request.running ? instance_.running : instance_.waiting).push_back(view_of(request));
  }
  const auto by_agent_and_id = [](const RequestView& a, const RequestView& b) {
    return a.agent != b.agent ? a.agent < b.agent : *a.id < *b.id;
  };
  std::sort(instance_.waiting.begin(), instance_.waiting.end(), by_agent_and_id);
  std::sort(instance_.running.begin(), instance_.running.end(), by_agent_and_id);
}

/// n_a: stages that are not completed, run nothing and wait for exactly one unfinished predecessor, which is running.
void SnapshotInstance::count_next_stages() {
  for (const auto& task : tasks_) {
    const auto& stages = task.state->stages;
    std::vector<bool> runs(stages.size(), false);
    for (const auto* request : task.requests) {
      runs[request->stage] = runs[request->stage] || request->running;
    }
    for (std::uint32_t stage = 0; stage < stages.size(); ++stage) {
      const auto agent = agent_at_.find(stages[stage].agent);
      if (stages[stage].completed || runs[stage] || agent == agent_at_.end()) {
        continue;
      }
      const auto before = task.graph.predecessors(stage);
      const auto open = [&stages](auto predecessor) { return !stages[predecessor].completed; };
      if (std::count_if(before.begin(), before.end(), open) == 1 &&
          runs[*std::find_if(before.begin(), before.end(), open)]) {
        ++instance_.agents[agent->second].next_stages;
      }
    }
  }
}

}  // namespace

Decision decide(const Snapshot& snapshot, const Config& config) {
  config.validate();
  detail::check(snapshot);
  const SnapshotInstance input(snapshot, config);
  Decision out = detail::solve(input.instance());
  detail::RolledOut better;
  if (config.rollout_scenarios > 0 && detail::roll_out(snapshot, input.graphs(), input.instance(), out, better)) {
    Decision other = detail::admitting(input.instance(), better.members, better.admit);
    other.evaluated_sets = out.evaluated_sets;
    other.pruned_sets = out.pruned_sets;
    out = std::move(other);
  }
  out.now = snapshot.now;
  return out;
}

Explanation explain(const Snapshot& snapshot, const Config& config, std::size_t top) {
  config.validate();
  detail::check(snapshot);
  const SnapshotInstance input(snapshot, config);
  Explanation out = detail::solve_and_explain(input.instance(), top);
  out.decision.now = snapshot.now;
  return out;
}

double expected_longest_path(const Snapshot& snapshot, const Config& config, const Id& task,
                             const std::vector<Id>& completions) {
  config.validate();
  detail::check(snapshot);
  const auto found = std::find_if(snapshot.tasks.begin(), snapshot.tasks.end(),
                                  [&task](const TaskState& state) { return state.id == task; });
  if (found == snapshot.tasks.end()) {
    throw UnknownId(detail::text("task ", to_string(task), " is not in the snapshot"));
  }
  std::vector<const RequestState*> requests;
  for (const auto& request : snapshot.requests) {
    if (request.task == task) {
      requests.push_back(&request);
    }
  }
  sort_by_id(requests);
  const ProfileTable profiles(snapshot);  // the model points into it
  const TaskModel model(config, task, graph_of(*found), profiles.outlooks(*found), outlooks(requests),
                        TaskModel::Scope::whole_path);
  std::vector<std::uint64_t> completed(model.words(), 0);
  for (const auto& id : completions) {
    const auto request =
        std::find_if(requests.begin(), requests.end(), [&id](const auto* state) { return state->id == id; });
    if (request == requests.end()) {
      throw UnknownId(detail::text("task ", to_string(task), " has no request ", to_string(id)));
    }
    const auto bit = static_cast<std::size_t>(request - requests.begin());
    completed[bit / 64] |= std::uint64_t{1} << (bit % 64);
  }
  detail::PathScratch scratch;
  return model.expected_path(completed, scratch);
}

}  // namespace topas
