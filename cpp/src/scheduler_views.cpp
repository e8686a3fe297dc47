// What the incremental door shows: decisions, snapshots, gauges.
#include <algorithm>

#include "longest_path.hpp"
#include "prefetch.hpp"
#include "reservation.hpp"
#include "residual.hpp"
#include "scheduler_state.hpp"
#include "solve.hpp"

namespace topas {

using detail::Agent;
using detail::Instance;
using detail::Request;
using detail::RequestView;
using detail::StageStatus;
using detail::Task;
using detail::TaskModel;

namespace {

/// Adds one to n_a of each stage that is about to become ready behind a running one (SPEC section 3).
void count_next_stages(const Request& running, std::uint64_t mark) {
  const Task& task = *running.task;
  if (task.stages[running.stage].seen == mark) {
    return;  // another running request of the stage has counted them
  }
  task.stages[running.stage].seen = mark;
  const StageGraph& graph = task.workflow->workflow.graph();
  for (const auto next : graph.successors(running.stage)) {
    const auto before = graph.predecessors(next);
    const auto open = [&task](auto stage) { return task.stages[stage].status == StageStatus::open; };
    const auto& stage = task.stages[next];
    // It has no requests of its own: those are refused while a predecessor is open.
    if (stage.status == StageStatus::open && std::count_if(before.begin(), before.end(), open) == 1) {
      ++task.workflow->agents[next]->next_stages;
    }
  }
}

/// n_a of every agent.
void count_next_stages(const std::map<Id, Agent>& agents, std::uint64_t mark) {
  for (const auto& [id, agent] : agents) {
    agent.next_stages = 0;
  }
  for (const auto& [id, agent] : agents) {
    for (const auto& [key, request] : agent.running) {
      count_next_stages(*request, mark);
    }
  }
}

/// Has the memory read that the requests behind a place in a list need: first they, then their tasks.
void prefetch_behind(const detail::RequestList<Request>& list, std::size_t at) noexcept {
  constexpr std::size_t kTasks = 4;
  constexpr std::size_t kRequests = 8;
  if (at + kRequests < list.size()) {
    detail::prefetch(list[at + kRequests].request);
  }
  if (at + kTasks < list.size()) {
    detail::prefetch(list[at + kTasks].request->task);
  }
}

}  // namespace

double Scheduler::State::expected_service_s(const Request& request) const {
  const auto& profile = request.task->workflow->profiles[request.stage];
  if (profile.has_requests()) {
    return profile.request_s();
  }
  return config.prefill_s(request.input_tokens) +
         config.decode_s_per_token * static_cast<double>(request.max_new_tokens);
}

/// Changes whenever the model of the task is stale: every summand only grows.
std::uint64_t Scheduler::State::stamp_of(const TaskModel& model, const Task& task) const {
  std::uint64_t stamp = task.version + config_version;
  for (const auto stage : model.stages()) {
    stamp += task.workflow->profiles[stage].version();
  }
  return stamp;
}

/// Brings what is remembered of a task up to date: nothing to do until an event touches it, a profile of its workflow,
/// or the settings. Thousands of tasks wait for that look, so it reads nothing but the task and one number of its
/// workflow.
void Scheduler::State::follow(const Task& task) const {
  const std::uint64_t stamp = task.version + config_version + task.workflow->version + 1;  // each only grows
  if (task.stamp == stamp) {
    return;
  }
  std::uint32_t bit = 0;
  for (const auto& [key, request] : task.requests) {
    request->bit = bit++;
    request->service_s = expected_service_s(*request);
  }
  if (config.gain_model == GainModel::path) {
    follow_model(task);
  }
  if (config.urgency > 0.0) {
    task.path_s = path_of(task);
  }
  task.stamp = stamp;
}

/// The model is kept until an event touches the task, a profile that it builds on, or the settings.
void Scheduler::State::follow_model(const Task& task) const {
  if (task.model.has_value() && task.model_stamp == stamp_of(*task.model, task)) {
    return;
  }
  task.fall = {};
  stage_outlooks.clear();
  for (std::size_t at = 0; at < task.stages.size(); ++at) {
    const auto& profile = task.workflow->profiles[at];
    stage_outlooks.push_back({task.stages[at].status != StageStatus::open, profile.sorted_totals(),
                              task.stages[at].service_s, profile.request_s(), profile.totals_version()});
  }
  request_outlooks.clear();
  for (const auto& [key, request] : task.requests) {
    request_outlooks.push_back({request->stage, request->service_s});
    request->fall_s = detail::kUnknown;
  }
  const std::uint64_t own = task.version + config_version;  // both only grow
  const bool followed =
      task.model.has_value() && task.model_own == own && task.model->refresh(config, stage_outlooks, request_outlooks);
  if (!followed) {
    if (task.blocks.empty()) {
      task.blocks = detail::path_blocks(task.workflow->workflow.graph(), stage_outlooks);
    }
    task.model =
        TaskModel(config, task.id, task.workflow->workflow.graph(), task.blocks, stage_outlooks, request_outlooks,
                  TaskModel::Scope::blocks_of_requests, task.model.has_value() ? &*task.model : nullptr);
    task.model_own = own;
  }
  task.model_stamp = stamp_of(*task.model, task);
  task.outcomes = task.model->outcomes();
}

/// Longest path of the expected residuals.
double Scheduler::State::path_of(const Task& task) const {
  return detail::longest_path(task.workflow->workflow.graph(), ends, [&](std::uint32_t at) {
    const auto& stage = task.stages[at];
    if (stage.status != StageStatus::open) {
      return 0.0;
    }
    const auto& profile = task.workflow->profiles[at];
    return stage.service_s == 0.0 ? profile.mean_total_s()
                                  : detail::expected_residual({false, profile.sorted_totals(), stage.service_s,
                                                               profile.request_s(), profile.totals_version()},
                                                              0.0);
  });
}

detail::TaskView Scheduler::State::view_of(const Task& task, double age_scale_s, double now) const {
  follow(task);
  detail::TaskView view =
      detail::view_of_task(config, task.id, task.arrival, age_scale_s, now, config.urgency > 0.0 ? task.path_s : 0.0);
  if (config.gain_model == GainModel::path && task.model.has_value()) {
    view.model = &*task.model;
    view.words = static_cast<std::uint32_t>((task.requests.size() + 63) / 64);
    view.outcomes = task.outcomes;
    view.fall = task.fall;
    view.keep_fall = &task.fall;
  }
  return view;
}

const Instance& Scheduler::State::view(double now) const {
  const std::uint64_t mark = ++decisions;
  const double scale = age_scale_s();
  instance.clear();
  instance.config = &config;
  const auto view_of_request = [&](const Request& request, std::uint32_t agent) {
    const Task& task = *request.task;
    if (task.seen != mark) {
      task.seen = mark;
      task.slot = static_cast<std::uint32_t>(instance.tasks.size());
      instance.tasks.push_back(view_of(task, scale, now));
    }
    RequestView view{&request.id, agent, task.slot, request.bit, request.kv_tokens};
    view.service_s = request.service_s;
    view.fall_s = request.fall_s;
    view.keep_fall = &request.fall_s;
    return view;
  };
  count_next_stages(agents, mark);
  for (const auto& [id, agent] : agents) {
    if (!agent.active()) {
      if (agent.resident) {
        instance.idle_resident_tokens += agent.prefix_tokens;
        instance.idle_residents.push_back(&id);
      }
      continue;
    }
    const auto index = static_cast<std::uint32_t>(instance.agents.size());
    instance.agents.push_back({&id, agent.prefix_tokens, agent.resident, agent.next_stages});
    for (std::size_t at = 0; at < agent.waiting.size(); ++at) {
      prefetch_behind(agent.waiting, at);
      instance.waiting.push_back(view_of_request(*agent.waiting[at].request, index));
    }
    for (const auto& [key, request] : agent.running) {
      RequestView view = view_of_request(*request, index);
      const auto credit = request->credit.value_or(detail::StoredCredit{});
      detail::charge_preemption(config, instance.tasks[view.task], request->input_tokens, request->generated_tokens,
                                credit.value, credit.age_factor, view);
      instance.running.push_back(view);
    }
  }
  detail::reserve_for_earliest(instance, now, scale);
  instance.index();
  return instance;
}

Decision Scheduler::decide(double now) const {
  state_->check_clock(now);
  Decision out;
  if (state_->config.rollout_scenarios > 0) {
    out = topas::decide(snapshot(now), state_->config);  // rollouts need all tasks, also those without a request
  } else {
    out = detail::solve(state_->view(now));
    out.now = now;
  }
  out.state_version = state_->version;
  return out;
}

Usage Scheduler::usage() const {
  Usage out;
  out.agents = static_cast<std::int64_t>(state_->agents.size());
  out.workflows = static_cast<std::int64_t>(state_->workflows.size());
  out.tasks = static_cast<std::int64_t>(state_->tasks.size());
  for (const auto& [id, agent] : state_->agents) {
    out.waiting += static_cast<std::int64_t>(agent.waiting.size());
    out.running += static_cast<std::int64_t>(agent.running.size());
    out.resident += agent.resident ? 1 : 0;
    out.kv_tokens += agent.resident ? agent.prefix_tokens : 0;
    for (const auto& [key, request] : agent.running) {
      out.kv_tokens += request->kv_tokens;
      out.credits += request->credit.has_value() ? 1 : 0;
    }
  }
  for (const auto& [name, entry] : state_->workflows) {
    for (const auto& profile : entry.profiles) {
      out.samples += static_cast<std::int64_t>(profile.samples());
    }
  }
  return out;
}

Snapshot Scheduler::snapshot(double now) const {
  state_->check_clock(now);
  Snapshot out;
  out.now = now;
  out.age_scale_s = state_->age_scale_s();
  for (const auto& [id, agent] : state_->agents) {
    out.agents.push_back({id, agent.prefix_tokens});
    if (agent.resident) {
      out.resident.push_back(id);
    }
  }
  std::map<Id, std::int64_t> first_profile;  // of each workflow
  for (const auto& [name, entry] : state_->workflows) {
    first_profile[name] = static_cast<std::int64_t>(out.profiles.size());
    for (const auto& profile : entry.profiles) {
      const auto totals = profile.sorted_totals();
      out.profiles.push_back({static_cast<std::int64_t>(out.profiles.size()),
                              std::vector<double>(totals.begin(), totals.end()), profile.request_s()});
    }
  }
  state_->tasks.for_each([&](const Task& task) {
    out.tasks.push_back({task.id, task.arrival, {}});
    const Workflow& workflow = task.workflow->workflow;
    for (std::uint32_t at = 0; at < task.stages.size(); ++at) {
      const auto before = workflow.graph().predecessors(at);
      const auto& stage = task.stages[at];
      out.tasks.back().stages.push_back({workflow.stages()[at].agent,
                                         {before.begin(), before.end()},
                                         first_profile.at(workflow.name()) + at,
                                         stage.status != StageStatus::open,
                                         stage.service_s});
    }
  });
  state_->requests.for_each([&](const Request& request) {
    const auto& credit = request.credit;
    out.requests.push_back({request.id, request.task->id, request.stage, request.agent->id, request.kv_tokens,
                            request.input_tokens, state_->expected_service_s(request), request.running,
                            request.generated_tokens, credit ? credit->value : 0.0,
                            credit ? std::optional(credit->age_factor) : std::nullopt});
  });
  const auto by_id = [](const auto& a, const auto& b) { return a.id < b.id; };
  std::sort(out.tasks.begin(), out.tasks.end(), by_id);
  std::sort(out.requests.begin(), out.requests.end(), by_id);
  return out;
}

}  // namespace topas
