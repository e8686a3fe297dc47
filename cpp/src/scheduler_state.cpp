#include "scheduler_state.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "text.hpp"

namespace topas {

using detail::Agent;
using detail::Changes;
using detail::Request;
using detail::StageStatus;
using detail::StoredCredit;
using detail::Task;
using detail::text;
using detail::WorkflowEntry;

namespace {

constexpr double kServiceWeight = 0.1;  // of the latest task in H_age

template <class Entry>
Entry& found(Entry* entry, const Id& id, const char* kind) {
  if (entry == nullptr) {
    throw UnknownId(text(kind, " ", to_string(id), " is not known"));
  }
  return *entry;
}

template <class Entry>
Entry& find(std::map<Id, Entry>& table, const Id& id, const char* kind) {
  const auto place = table.find(id);
  return found(place == table.end() ? nullptr : &place->second, id, kind);
}

/// The request of a decision, once in each commit.
Request* check_request(Request& request, bool running, std::uint64_t mark) {
  if (request.running != running || std::exchange(request.seen, mark) == mark) {
    throw StateError(text("commit: request ", to_string(request.id), " is not ", running ? "running" : "waiting"));
  }
  return &request;
}

Agent* check_agent(Agent& agent, bool resident, std::uint64_t mark) {
  if (agent.resident != resident || std::exchange(agent.seen, mark) == mark) {
    const char* wrong = resident ? "not" : "already";
    throw StateError(text("commit: the prefix of agent ", to_string(agent.id), " is ", wrong, " resident"));
  }
  return &agent;
}

}  // namespace

Agent& Scheduler::State::agent(const Id& id) { return find(agents, id, "agent"); }
WorkflowEntry& Scheduler::State::workflow(const Id& name) { return find(workflows, name, "workflow"); }
Task& Scheduler::State::task(const Id& id) const { return found(tasks.find(id), id, "task"); }
Request& Scheduler::State::request(const Id& id) const { return found(requests.find(id), id, "request"); }

void Scheduler::State::check_clock(double now) const {
  if (!std::isfinite(now)) {
    throw ArgumentError(text("now: must be finite, got ", now));
  }
  if (clock_set && now < clock) {
    throw StateError(text("now: the clock went back from ", clock, " to ", now));
  }
}

Changes Scheduler::State::changes_of(const Decision& decision) {
  const std::uint64_t mark = ++decisions;
  const auto find_request = [&](const Id& id, bool running) { return check_request(request(id), running, mark); };
  const auto find_agent = [&](const Id& id, bool resident) { return check_agent(agent(id), resident, mark); };
  Changes out;
  for (const auto& id : decision.preempt) {
    out.preempt.push_back(find_request(id, true));
  }
  for (const auto& credit : decision.credits) {
    out.admit.emplace_back(find_request(credit.request, false), StoredCredit{credit.value, credit.age_factor});
  }
  for (const auto& id : decision.drop) {
    out.drop.push_back(find_agent(id, true));
  }
  for (const auto& id : decision.load) {
    out.load.push_back(find_agent(id, false));
  }
  return out;
}

void Scheduler::State::touch(double now) {
  clock = now;
  clock_set = true;
  ++version;
}

double Scheduler::State::age_scale_s() const {
  if (config.age_scale_s.has_value()) {
    return *config.age_scale_s;
  }
  if (mean_task_service_s.has_value()) {
    return *mean_task_service_s;
  }
  double sum = 0.0;
  for (const auto& [name, entry] : workflows) {
    sum += entry.workflow.critical_path_s();
  }
  return workflows.empty() ? 0.0 : sum / static_cast<double>(workflows.size());
}

void Scheduler::State::insert(Request& request) {
  request.agent->waiting.insert(request);
  request.task->requests.insert(request);
  ++request.task->stages[request.stage].live;
  ++request.task->version;
}

void Scheduler::State::start(Request& request, const StoredCredit& credit) {
  request.agent->waiting.erase(request);
  request.agent->running.insert(request);
  request.running = true;
  request.credit = credit;
}

void Scheduler::State::stop(Request& request) {
  request.agent->running.erase(request);
  request.agent->waiting.insert(request);
  request.running = false;
  request.credit.reset();
}

void Scheduler::State::remove(Request& request) {
  Task& task = *request.task;
  auto& stage = task.stages[request.stage];
  (request.running ? request.agent->running : request.agent->waiting).erase(request);
  task.requests.erase(request);
  --stage.live;
  ++task.version;
  requests.erase(request);
}

void Scheduler::State::finish_stage(Task& task, std::uint32_t stage, StageStatus status) {
  task.stages[stage].status = status;
  --task.open;
  ++task.version;
  task.blocks.clear();
}

/// Skips the stages behind `from` that only skipped stages lead to.
void Scheduler::State::skip_orphans(Task& task, std::uint32_t from) {
  const StageGraph& graph = task.workflow->workflow.graph();
  std::vector<std::uint32_t> skipped{from};
  while (!skipped.empty()) {
    const std::uint32_t stage = skipped.back();
    skipped.pop_back();
    for (const auto next : graph.successors(stage)) {
      const auto before = graph.predecessors(next);
      const bool orphan = std::all_of(before.begin(), before.end(), [&task](auto predecessor) {
        return task.stages[predecessor].status == StageStatus::skipped;
      });
      if (orphan && task.stages[next].status == StageStatus::open) {
        finish_stage(task, next, StageStatus::skipped);
        skipped.push_back(next);
      }
    }
  }
}

void Scheduler::State::end_task(Task& task, bool completed) {
  while (!task.requests.empty()) {
    remove(*task.requests[task.requests.size() - 1].request);
  }
  if (completed && task.service_s > 0.0) {
    mean_task_service_s = mean_task_service_s.has_value()
                              ? (1.0 - kServiceWeight) * *mean_task_service_s + kServiceWeight * task.service_s
                              : task.service_s;
  }
  --task.workflow->tasks;
  tasks.erase(task);
}

}  // namespace topas
