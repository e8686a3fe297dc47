#include "instance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace topas::detail {

namespace {

/// Groups of equal keys: `out` receives the indexes of `requests` by task, and each task its range in `out`.
void group_by_task(const std::vector<RequestView>& requests, std::vector<TaskView>& tasks, Range TaskView::* range,
                   std::vector<std::uint32_t>& out) {
  for (auto& task : tasks) {
    task.*range = {};
  }
  for (const auto& request : requests) {
    ++(tasks[request.task].*range).end;
  }
  std::uint32_t begin = 0;
  for (auto& task : tasks) {
    const std::uint32_t size = (task.*range).end;
    task.*range = {begin, begin};
    begin += size;
  }
  out.resize(requests.size());
  for (std::uint32_t at = 0; at < requests.size(); ++at) {
    out[(tasks[requests[at].task].*range).end++] = at;
  }
}

void group_by_agent(const std::vector<RequestView>& requests, std::vector<AgentView>& agents,
                    Range AgentView::* range) {
  for (std::uint32_t at = 0; at < requests.size(); ++at) {
    Range& group = agents[requests[at].agent].*range;
    if (group.size() == 0) {
      group.begin = at;
    }
    group.end = at + 1;
  }
}

/// What the requests of a range reserve, of those that fit into so much room alone.
std::int64_t fitting_tokens(const std::vector<RequestView>& requests, Range range, std::int64_t room) {
  std::int64_t tokens = 0;
  for (auto at = range.begin; at < range.end; ++at) {
    tokens += requests[at].kv_tokens <= room ? requests[at].kv_tokens : 0;
  }
  return tokens;
}

}  // namespace

void Instance::index() {
  group_by_agent(waiting, agents, &AgentView::waiting);
  group_by_agent(running, agents, &AgentView::running);
  group_by_task(waiting, tasks, &TaskView::waiting, waiting_of_tasks);
  group_by_task(running, tasks, &TaskView::running, running_of_tasks);
  list_waiting_tasks();
  weigh_backlogs();
  words = 0;
  for (auto& task : tasks) {
    task.first_word = words;
    words += task.words;
  }
  resident_tokens = idle_resident_tokens;
  for (auto& agent : agents) {
    resident_tokens += agent.resident ? agent.prefix_tokens : 0;
    agent.reuse = config->reuse_weight * (static_cast<double>(agent.next_stages) *
                                          (seconds_per_token_moved() * static_cast<double>(agent.prefix_tokens)));
    agent.least_waiting_kv = std::numeric_limits<std::int64_t>::max();
    for (auto at = agent.waiting.begin; at < agent.waiting.end; ++at) {
      agent.least_waiting_kv = std::min(agent.least_waiting_kv, waiting[at].kv_tokens);
    }
    for (auto at = agent.running.begin; at < agent.running.end; ++at) {
      agent.running_kv += running[at].kv_tokens;
      agent.redo += running[at].redo;
      agent.revoke += running[at].revoke;
      agent.firm = agent.firm || running[at].firm;
    }
    firm_agents += agent.firm ? 1 : 0;
  }
}

void Instance::list_waiting_tasks() {
  std::vector<bool> listed(tasks.size(), false);
  for (const auto& request : waiting) {
    if (!listed[request.task]) {
      listed[request.task] = true;
      waiting_tasks.push_back(request.task);
    }
  }
}

void Instance::weigh_backlogs() {
  if (config->backlog_weight == 0.0 || !gains_are_services()) {
    return;
  }
  double greatest = 1.0;
  for (auto& agent : agents) {
    const std::int64_t room = config->kv_capacity_tokens - agent.prefix_tokens;
    const auto tokens = fitting_tokens(waiting, agent.waiting, room) + fitting_tokens(running, agent.running, room);
    if (tokens > 0) {
      agent.backlog = 1.0 + config->backlog_weight * (static_cast<double>(tokens) / static_cast<double>(room));
      greatest = std::max(greatest, agent.backlog);
    }
  }
  for (auto& request : running) {
    request.redo *= greatest;
    request.revoke *= agents[request.agent].backlog;
  }
}

void Instance::clear() noexcept {
  config = nullptr;
  agents.clear();
  tasks.clear();
  waiting.clear();
  running.clear();
  held_back.clear();
  idle_resident_tokens = 0;
  idle_residents.clear();
  waiting_of_tasks.clear();
  running_of_tasks.clear();
  waiting_tasks.clear();
  words = 0;
  resident_tokens = 0;
  firm_agents = 0;
}

double age_factor(const Config& config, double age_scale_s, double now, double arrival) noexcept {
  if (config.age_weight == 0.0 || age_scale_s <= 0.0) {
    return 1.0;
  }
  return 1.0 + config.age_weight * std::max(now - arrival, 0.0) / age_scale_s;
}

TaskView view_of_task(const Config& config, const Id& id, double arrival, double age_scale_s, double now,
                      double path_s) noexcept {
  TaskView view{&id, arrival, age_factor(config, age_scale_s, now, arrival)};
  view.path_s = path_s;
  if (age_scale_s > 0.0) {
    constexpr double kShortestPath = 1.0;
    view.urgency =
        config.urgency == 0.0 ? 1.0 : std::pow(age_scale_s / std::max(path_s, kShortestPath), config.urgency);
    view.overdue = config.overtake_limit > 0.0 && now - arrival > config.overtake_limit * age_scale_s;
  }
  return view;
}

void charge_preemption(const Config& config, const TaskView& task, std::int64_t input_tokens,
                       std::int64_t generated_tokens, double credit, double age_factor_at_admission,
                       RequestView& view) {
  view.redo = redo_cost(config, input_tokens, generated_tokens);
  if (config.gain_model == GainModel::service) {
    view.redo *= task.scale();
    view.revoke = task.scale() * view.service_s;
  } else {
    view.revoke = revoke_cost(config, credit, task.age_factor, age_factor_at_admission);
  }
  const double spent_s = config.decode_s_per_token * static_cast<double>(generated_tokens);
  view.firm = config.preempt_limit > 0.0 && spent_s > config.preempt_limit * view.service_s;
}

double redo_cost(const Config& config, std::int64_t input_tokens, std::int64_t generated_tokens) noexcept {
  switch (config.redo_model) {
    case RedoModel::decode:
      return config.redo_weight * (config.decode_s_per_token * static_cast<double>(generated_tokens));
    case RedoModel::prefill:
      return config.redo_weight * config.prefill_s(input_tokens + generated_tokens);
    case RedoModel::kept:
      break;
  }
  return 0.0;
}

double revoke_cost(const Config& config, double credit, double age_factor_now,
                   double age_factor_at_admission) noexcept {
  return config.age_credit ? credit * std::max(1.0, age_factor_now / age_factor_at_admission) : credit;
}

}  // namespace topas::detail
