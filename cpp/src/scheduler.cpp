// Registration, task and request events, commit. Each checks everything before it changes anything.
#include "topas/scheduler.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "limits.hpp"
#include "scheduler_state.hpp"
#include "text.hpp"

namespace topas {

using detail::kTokensLimit;
using detail::Request;
using detail::StageStatus;
using detail::Task;
using detail::text;

namespace {

void check_tokens(std::int64_t value, const char* name, std::int64_t least) {
  if (value < least || value > kTokensLimit) {
    throw ArgumentError(text(name, ": must be between ", least, " and 2**48, got ", value));
  }
}

void check_open(const Task& task, std::uint32_t stage, const Id& name) {
  if (task.stages[stage].status != StageStatus::open) {
    const char* how = task.stages[stage].status == StageStatus::completed ? "completed" : "skipped";
    throw StateError(text("stage ", to_string(name), " of task ", to_string(task.id), " is already ", how));
  }
}

void check_predecessors(const Task& task, std::uint32_t stage, const Id& name) {
  const Workflow& workflow = task.workflow->workflow;
  for (const auto predecessor : workflow.graph().predecessors(stage)) {
    if (task.stages[predecessor].status == StageStatus::open) {
      throw StateError(text("stage ", to_string(name), " of task ", to_string(task.id), " is not ready: send ",
                            "stage_completed or stage_skipped for ", to_string(workflow.stages()[predecessor].name),
                            " first"));
    }
  }
}

void check_idle(const Task& task, std::uint32_t stage, const Id& name) {
  if (task.stages[stage].live > 0) {
    throw StateError(text("stage ", to_string(name), " of task ", to_string(task.id), " still has ",
                          task.stages[stage].live, " live request(s): complete or abort them first"));
  }
}

void check_running(const Request& request, const char* event) {
  if (!request.running) {
    throw StateError(text(event, ": request ", to_string(request.id), " is waiting, not running"));
  }
}

}  // namespace

Scheduler::Scheduler(Config config) : state_(std::make_unique<State>(config)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

const Config& Scheduler::config() const noexcept { return state_->config; }
double Scheduler::age_scale_s() const { return state_->age_scale_s(); }

void Scheduler::reconfigure(Config config) {
  config.validate();
  state_->config = config;
  ++state_->config_version;
  ++state_->version;
}

void Scheduler::register_agent(const Id& agent, std::int64_t prefix_tokens) {
  check_tokens(prefix_tokens, "prefix_tokens", 0);
  const auto found = state_->agents.find(agent);
  if (found == state_->agents.end()) {
    state_->agents.emplace(agent, detail::Agent{agent, prefix_tokens});
  } else if (found->second.prefix_tokens != prefix_tokens) {
    if (found->second.active() || found->second.resident) {
      throw StateError(text("agent ", to_string(agent), " is in use: its prefix stays at ", found->second.prefix_tokens,
                            " tokens, not ", prefix_tokens));
    }
    found->second.prefix_tokens = prefix_tokens;
  }
  ++state_->version;
}

void Scheduler::unregister_agent(const Id& agent) {
  const detail::Agent& entry = state_->agent(agent);
  if (entry.stages > 0) {
    throw StateError(text("agent ", to_string(agent), " is in use by ", entry.stages,
                          " stage(s) of registered workflows: unregister those first"));
  }
  state_->agents.erase(agent);
  ++state_->version;
}

void Scheduler::register_workflow(Workflow workflow) {
  if (state_->workflows.contains(workflow.name())) {
    throw StateError(text("workflow ", to_string(workflow.name()), " is already registered"));
  }
  std::vector<detail::Agent*> agents;
  std::vector<detail::Profile> profiles;
  for (const auto& stage : workflow.stages()) {
    agents.push_back(&state_->agent(stage.agent));
    profiles.emplace_back(stage.service_s, stage.request_s);
  }
  for (auto* agent : agents) {
    ++agent->stages;
  }
  const Id name = workflow.name();
  state_->workflows.emplace(name,
                            detail::WorkflowEntry{std::move(workflow), std::move(profiles), std::move(agents), 0});
  ++state_->version;
}

void Scheduler::unregister_workflow(const Id& name) {
  const auto& entry = state_->workflow(name);
  if (entry.tasks > 0) {
    throw StateError(text("workflow ", to_string(name), " has ", entry.tasks, " live task(s)"));
  }
  for (auto* agent : entry.agents) {
    --agent->stages;
  }
  state_->workflows.erase(name);
  ++state_->version;
}

void Scheduler::task_arrived(double now, const Id& task, const Id& workflow, std::optional<double> since) {
  state_->check_clock(now);
  if (since.has_value() && !(std::isfinite(*since) && *since <= now)) {
    throw ArgumentError(text("since: must be finite and at most now = ", now, ", got ", *since));
  }
  auto& entry = state_->workflow(workflow);
  if (state_->tasks.find(task) != nullptr) {
    throw StateError(text("task ", to_string(task), " has already arrived"));
  }
  auto added = std::make_unique<Task>();
  added->id = task;
  added->arrival = since.value_or(now);
  added->workflow = &entry;
  added->stages.resize(entry.workflow.stages().size());
  added->open = added->stages.size();
  state_->tasks.insert(std::move(added));
  ++entry.tasks;
  state_->touch(now);
}

void Scheduler::task_cancelled(double now, const Id& task) {
  state_->check_clock(now);
  state_->end_task(state_->task(task), false);
  state_->touch(now);
}

void Scheduler::task_finished(double now, const Id& task) {
  state_->check_clock(now);
  state_->end_task(state_->task(task), true);
  state_->touch(now);
}

void Scheduler::request_ready(double now, const Id& request, const Id& task, const Id& stage, std::int64_t input_tokens,
                              std::int64_t max_new_tokens) {
  state_->check_clock(now);
  Task& owner = state_->task(task);
  const std::uint32_t index = owner.workflow->workflow.index_of(stage);
  check_tokens(input_tokens, "input_tokens", 0);
  check_tokens(max_new_tokens, "max_new_tokens", 0);
  check_tokens(input_tokens + max_new_tokens, "input_tokens + max_new_tokens", 1);
  check_open(owner, index, stage);
  check_predecessors(owner, index, stage);
  if (state_->requests.find(request) != nullptr) {
    throw StateError(text("request ", to_string(request), " is already waiting or running"));
  }
  auto added = std::make_unique<Request>();
  added->id = request;
  added->task = &owner;
  added->agent = owner.workflow->agents[index];
  added->stage = index;
  added->input_tokens = input_tokens;
  added->max_new_tokens = max_new_tokens;
  added->kv_tokens = input_tokens + max_new_tokens;
  state_->insert(state_->requests.insert(std::move(added)));
  state_->touch(now);
}

void Scheduler::request_progress(double now, const Id& request, std::int64_t generated_tokens) {
  state_->check_clock(now);
  Request& entry = state_->request(request);
  check_tokens(generated_tokens, "generated_tokens", 0);
  check_running(entry, "request_progress");
  entry.generated_tokens = generated_tokens;
  state_->touch(now);
}

void Scheduler::request_completed(double now, const Id& request, double service_s) {
  state_->check_clock(now);
  Request& entry = state_->request(request);
  if (!std::isfinite(service_s) || service_s < 0.0) {
    throw ArgumentError(text("service_s: must be finite and at least 0, got ", service_s));
  }
  check_running(entry, "request_completed");
  Task& task = *entry.task;
  auto& stage = task.stages[entry.stage];
  stage.service_s += service_s;
  ++stage.completed;
  task.service_s += service_s;
  task.workflow->profiles[entry.stage].record_request(service_s);
  ++task.workflow->version;
  state_->remove(entry);
  state_->touch(now);
}

void Scheduler::request_aborted(double now, const Id& request) {
  state_->check_clock(now);
  state_->remove(state_->request(request));
  state_->touch(now);
}

void Scheduler::request_start_failed(double now, const Id& request) {
  state_->check_clock(now);
  Request& entry = state_->request(request);
  check_running(entry, "request_start_failed");
  state_->stop(entry);
  state_->touch(now);
}

void Scheduler::request_started(double now, const Id& request) {
  state_->check_clock(now);
  Request& entry = state_->request(request);
  if (entry.running) {
    throw StateError(text("request_started: request ", to_string(entry.id), " is already running"));
  }
  state_->start(entry, {});
  entry.agent->resident = true;
  state_->touch(now);
}

void Scheduler::stage_completed(double now, const Id& task, const Id& stage) {
  state_->check_clock(now);
  Task& owner = state_->task(task);
  const std::uint32_t index = owner.workflow->workflow.index_of(stage);
  check_open(owner, index, stage);
  check_predecessors(owner, index, stage);
  check_idle(owner, index, stage);
  if (owner.stages[index].completed > 0) {
    owner.workflow->profiles[index].record_total(owner.stages[index].service_s);
    ++owner.workflow->version;
  }
  state_->finish_stage(owner, index, StageStatus::completed);
  if (owner.open == 0) {
    state_->end_task(owner, true);
  }
  state_->touch(now);
}

void Scheduler::stage_skipped(double now, const Id& task, const Id& stage) {
  state_->check_clock(now);
  Task& owner = state_->task(task);
  const std::uint32_t index = owner.workflow->workflow.index_of(stage);
  if (owner.stages[index].status == StageStatus::skipped) {
    return;  // already skipped, perhaps with the stage that alone leads to it
  }
  check_open(owner, index, stage);
  check_idle(owner, index, stage);
  state_->finish_stage(owner, index, StageStatus::skipped);
  state_->skip_orphans(owner, index);
  if (owner.open == 0) {
    state_->end_task(owner, true);
  }
  state_->touch(now);
}

void Scheduler::prefix_evicted(double now, const Id& agent) {
  state_->check_clock(now);
  auto& entry = state_->agent(agent);
  if (!entry.resident) {
    throw StateError(text("prefix_evicted: the prefix of agent ", to_string(agent), " is not resident"));
  }
  if (!entry.running.empty()) {
    throw StateError(
        text("prefix_evicted: agent ", to_string(agent), " has ", entry.running.size(), " running request(s)"));
  }
  entry.resident = false;
  state_->touch(now);
}

void Scheduler::prefix_loaded(double now, const Id& agent) {
  state_->check_clock(now);
  auto& entry = state_->agent(agent);
  if (entry.resident) {
    throw StateError(text("prefix_loaded: the prefix of agent ", to_string(agent), " is already resident"));
  }
  entry.resident = true;
  state_->touch(now);
}

void Scheduler::prefix_changed(double now, const Id& agent, std::int64_t prefix_tokens) {
  state_->check_clock(now);
  auto& entry = state_->agent(agent);
  check_tokens(prefix_tokens, "prefix_tokens", 0);
  const std::int64_t moved = prefix_tokens - entry.prefix_tokens;  // from the requests to the prefix
  const auto too_short = [moved](const auto& listed) { return listed.request->input_tokens < moved; };
  for (const auto* list : {&entry.waiting, &entry.running}) {
    const auto found = std::find_if(list->begin(), list->end(), too_short);
    if (found != list->end()) {
      throw StateError(text("prefix_changed: request ", to_string(found->request->id), " has ",
                            entry.prefix_tokens + found->request->input_tokens,
                            " input tokens in all, the prefix of agent ", to_string(agent), " cannot have ",
                            prefix_tokens));
    }
    const auto empty = [moved](const auto& listed) { return listed.request->kv_tokens <= moved; };
    if (std::any_of(list->begin(), list->end(), empty)) {
      throw StateError(text("prefix_changed: nothing would be left of a request of agent ", to_string(agent)));
    }
  }
  for (const auto* list : {&entry.waiting, &entry.running}) {
    for (const auto& [key, request] : *list) {
      request->input_tokens -= moved;
      request->kv_tokens -= moved;
      ++request->task->version;  // its expected service may build on its input
    }
  }
  entry.prefix_tokens = prefix_tokens;
  state_->touch(now);
}

void Scheduler::commit(const Decision& decision) {
  if (decision.state_version != state_->version) {
    throw StateError(text("commit: the state has changed since the decision was made (version ", decision.state_version,
                          ", now ", state_->version, ")"));
  }
  state_->check_clock(decision.now);
  const detail::Changes changes = state_->changes_of(decision);
  for (auto* request : changes.preempt) {
    state_->stop(*request);
  }
  for (const auto& [request, credit] : changes.admit) {
    state_->start(*request, credit);
  }
  for (auto* agent : changes.drop) {
    agent->resident = false;
  }
  for (auto* agent : changes.load) {
    agent->resident = true;
  }
  state_->touch(decision.now);
}

}  // namespace topas
