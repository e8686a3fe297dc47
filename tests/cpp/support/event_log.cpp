#include "support/event_log.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace topas::testing {

std::vector<Decision> play(const Config& config, const std::vector<Step>& log) {
  Scheduler scheduler(config);
  std::vector<Decision> decisions;
  for (const auto& step : log) {
    step(scheduler, decisions);
  }
  return decisions;
}

std::vector<std::int64_t> gauges(const Usage& usage) {
  return {usage.agents,   usage.workflows, usage.tasks,   usage.waiting, usage.running,
          usage.resident, usage.kv_tokens, usage.credits, usage.samples};
}

namespace {

/// A step that only tells the scheduler something.
template <class Call>
Step event(Call&& call) {
  return [call = std::forward<Call>(call)](Scheduler& scheduler, std::vector<Decision>&) { call(scheduler); };
}

}  // namespace

Id Traffic::make_id(const char* kind) {
  ++number_;
  const std::int64_t number = (number_ * 37) % 1009 + (number_ / 1009) * 1009;  // not in order, never the same
  return options_.string_ids ? Id(kind + std::to_string(number)) : Id(number);
}

void Traffic::set_up() {
  for (std::int64_t at = 0; at < options_.agents; ++at) {
    agents_.emplace(make_id("agent"), random_.between(0, 30));
  }
  for (std::int64_t at = 0; at < options_.workflows; ++at) {
    Flow& flow = flows_.emplace_back();
    flow.name = make_id("flow");
    const auto size = static_cast<std::uint32_t>(random_.between(1, 6));
    flow.after = random_dag(random_, size, 0.4);
    flow.totals.resize(size);
    for (std::uint32_t stage = 0; stage < size; ++stage) {
      const auto agent = std::next(agents_.begin(), random_.between(0, options_.agents - 1));
      flow.stages.push_back({make_id("stage"), agent->first, {}, random_.quarters(8), random_.quarters(4)});
    }
    for (std::uint32_t stage = 0; stage < size; ++stage) {
      for (const auto before : flow.after[stage]) {
        flow.stages[stage].after.push_back(flow.stages[before].name);
      }
    }
  }
}

std::vector<Step> Traffic::registrations(bool backwards) const {
  std::vector<Step> agents;
  for (const auto& [id, tokens] : agents_) {
    agents.push_back(event([id = id, tokens = tokens](Scheduler& to) { to.register_agent(id, tokens); }));
  }
  std::vector<Step> flows;
  for (const auto& flow : flows_) {
    flows.push_back(event([flow](Scheduler& to) { to.register_workflow(Workflow(flow.name, flow.stages)); }));
  }
  if (backwards) {
    std::reverse(agents.begin(), agents.end());
    std::reverse(flows.begin(), flows.end());
  }
  agents.insert(agents.end(), flows.begin(), flows.end());
  return agents;
}

Step Traffic::decide() const {
  return [now = now_](Scheduler& scheduler, std::vector<Decision>& decisions) {
    decisions.push_back(scheduler.decide(now));
  };
}

Step Traffic::commit() {
  return [](Scheduler& scheduler, std::vector<Decision>& decisions) { scheduler.commit(decisions.back()); };
}

void Traffic::committed(const Decision& decision) {
  for (const auto& id : decision.preempt) {
    requests_.at(id).running = false;
  }
  for (const auto& id : decision.admit) {
    requests_.at(id).running = true;
  }
  resident_ = {decision.resident.begin(), decision.resident.end()};
}

Step Traffic::next() {
  if (random_.chance(0.7)) {
    now_ += random_.quarters(2);
  }
  using Maker = Choice (Traffic::*)();
  static constexpr Maker kMakers[] = {&Traffic::arrive,         &Traffic::arrive,     &Traffic::make_ready,
                                      &Traffic::make_ready,     &Traffic::make_ready, &Traffic::progress,
                                      &Traffic::complete,       &Traffic::complete,   &Traffic::complete_stage,
                                      &Traffic::complete_stage, &Traffic::abort,      &Traffic::fail_start,
                                      &Traffic::skip_stage,     &Traffic::evict,      &Traffic::change_prefix,
                                      &Traffic::end_task,       &Traffic::start,      &Traffic::load};
  for (;;) {
    if (auto made = (this->*kMakers[random_.below(std::size(kMakers))])(); made.has_value()) {
      return *made;
    }
    if (tasks_.empty()) {
      return *arrive();
    }
  }
}

std::optional<Id> Traffic::pick_request(bool running) {
  std::vector<Id> ids;
  for (const auto& [id, request] : requests_) {
    if (request.running == running) {
      ids.push_back(id);
    }
  }
  return ids.empty() ? std::nullopt : std::optional(random_.pick(ids));
}

std::optional<Id> Traffic::pick_task() {
  if (tasks_.empty()) {
    return std::nullopt;
  }
  return std::next(tasks_.begin(), random_.between(0, static_cast<std::int64_t>(tasks_.size()) - 1))->first;
}

std::int64_t Traffic::live(const Place& place) const {
  return std::count_if(requests_.begin(), requests_.end(), [&place](const auto& entry) {
    return entry.second.task == place.task && entry.second.stage == place.stage;
  });
}

/// Stages that are not closed; only those whose predecessors are, or that have no live request.
std::vector<Traffic::Place> Traffic::open_stages(bool ready, bool idle) const {
  std::vector<Place> out;
  for (const auto& [id, task] : tasks_) {
    for (std::uint32_t stage = 0; stage < task.stages.size(); ++stage) {
      const auto& before = flows_[task.flow].after[stage];
      const auto done = [&stages = task.stages](auto other) { return stages[other].closed; };
      if (!task.stages[stage].closed && (!ready || std::all_of(before.begin(), before.end(), done)) &&
          (!idle || live({id, stage}) == 0)) {
        out.push_back({id, stage});
      }
    }
  }
  return out;
}

const Id& Traffic::agent_of(const Request& request) const {
  return flows_[tasks_.at(request.task).flow].stages[request.stage].agent;
}

void Traffic::erase_task(const Id& task) {
  const Id gone = task;
  std::erase_if(requests_, [&gone](const auto& entry) { return entry.second.task == gone; });
  tasks_.erase(gone);
}

/// A stage that only skipped stages lead to is skipped too.
void Traffic::skip_orphans(Task& task) {
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t stage = 0; stage < task.stages.size(); ++stage) {
      const auto& before = flows_[task.flow].after[stage];
      const auto skipped = [&task](auto other) { return task.stages[other].skipped; };
      if (!task.stages[stage].closed && !before.empty() && std::all_of(before.begin(), before.end(), skipped)) {
        task.stages[stage].closed = task.stages[stage].skipped = true;
        changed = true;
      }
    }
  }
}

void Traffic::close(const Place& place, bool skipped) {
  Task& task = tasks_.at(place.task);
  Stage& stage = task.stages[place.stage];
  stage.closed = true;
  stage.skipped = skipped;
  if (!skipped && stage.finished > 0) {
    ++flows_[task.flow].totals[place.stage];
  }
  if (skipped) {
    skip_orphans(task);
  }
  if (std::all_of(task.stages.begin(), task.stages.end(), [](const auto& other) { return other.closed; })) {
    erase_task(place.task);
  }
}

Traffic::Choice Traffic::arrive() {
  if (tasks_.size() >= options_.tasks) {
    return std::nullopt;
  }
  const Id task = make_id("task");
  const std::size_t flow = random_.below(flows_.size());
  tasks_[task] = {flow, std::vector<Stage>(flows_[flow].stages.size())};
  const std::optional<double> since = random_.chance(0.2) ? std::optional(now_ - random_.quarters(9)) : std::nullopt;
  return event(
      [now = now_, task, name = flows_[flow].name, since](Scheduler& to) { to.task_arrived(now, task, name, since); });
}

Traffic::Choice Traffic::make_ready() {
  const auto places = open_stages(true, false);
  if (places.empty() || requests_.size() > 14) {
    return std::nullopt;
  }
  const Place place = random_.pick(places);
  const Id request = make_id("request");
  const std::int64_t input = random_.between(0, 20);
  const std::int64_t output = random_.between(input == 0 ? 1 : 0, 20);
  requests_[request] = {place.task, place.stage, input, input + output, false};
  const Id stage = flows_[tasks_.at(place.task).flow].stages[place.stage].name;
  return event([now = now_, request, task = place.task, stage, input, output](Scheduler& to) {
    to.request_ready(now, request, task, stage, input, output);
  });
}

Traffic::Choice Traffic::progress() {
  const auto request = pick_request(true);
  if (!request.has_value()) {
    return std::nullopt;
  }
  return event([now = now_, id = *request, tokens = random_.between(0, 40)](Scheduler& to) {
    to.request_progress(now, id, tokens);
  });
}

Traffic::Choice Traffic::complete() {
  const auto request = pick_request(true);
  if (!request.has_value()) {
    return std::nullopt;
  }
  const Request done = requests_.at(*request);
  ++tasks_.at(done.task).stages[done.stage].finished;
  requests_.erase(*request);
  return event([now = now_, id = *request, service = random_.quarters(6)](Scheduler& to) {
    to.request_completed(now, id, service);
  });
}

Traffic::Choice Traffic::abort() {
  const auto request = pick_request(random_.chance(0.5));
  if (!request.has_value()) {
    return std::nullopt;
  }
  requests_.erase(*request);
  return event([now = now_, id = *request](Scheduler& to) { to.request_aborted(now, id); });
}

Traffic::Choice Traffic::fail_start() {
  const auto request = pick_request(true);
  if (!request.has_value()) {
    return std::nullopt;
  }
  requests_.at(*request).running = false;
  return event([now = now_, id = *request](Scheduler& to) { to.request_start_failed(now, id); });
}

Traffic::Choice Traffic::start() {
  const auto request = pick_request(false);
  if (!request.has_value()) {
    return std::nullopt;
  }
  auto& started = requests_.at(*request);
  started.running = true;
  resident_.insert(agent_of(started));
  return event([now = now_, id = *request](Scheduler& to) { to.request_started(now, id); });
}

Traffic::Choice Traffic::complete_stage() {
  const auto places = open_stages(true, true);
  if (places.empty()) {
    return std::nullopt;
  }
  const Place place = random_.pick(places);
  const Id stage = flows_[tasks_.at(place.task).flow].stages[place.stage].name;
  close(place, false);
  return event([now = now_, task = place.task, stage](Scheduler& to) { to.stage_completed(now, task, stage); });
}

Traffic::Choice Traffic::skip_stage() {
  const auto places = open_stages(false, true);
  if (places.empty()) {
    return std::nullopt;
  }
  const Place place = random_.pick(places);
  const Id stage = flows_[tasks_.at(place.task).flow].stages[place.stage].name;
  close(place, true);
  return event([now = now_, task = place.task, stage](Scheduler& to) { to.stage_skipped(now, task, stage); });
}

Traffic::Choice Traffic::evict() {
  std::vector<Id> idle(resident_.begin(), resident_.end());
  for (const auto& [id, request] : requests_) {
    if (request.running) {
      std::erase(idle, agent_of(request));
    }
  }
  if (idle.empty()) {
    return std::nullopt;
  }
  const Id agent = random_.pick(idle);
  resident_.erase(agent);
  return event([now = now_, agent](Scheduler& to) { to.prefix_evicted(now, agent); });
}

Traffic::Choice Traffic::load() {
  std::vector<Id> gone;
  for (const auto& [agent, tokens] : agents_) {
    if (!resident_.contains(agent)) {
      gone.push_back(agent);
    }
  }
  if (gone.empty()) {
    return std::nullopt;
  }
  const Id agent = random_.pick(gone);
  resident_.insert(agent);
  return event([now = now_, agent](Scheduler& to) { to.prefix_loaded(now, agent); });
}

/// What moves from the requests to the prefix leaves each of them something.
Traffic::Choice Traffic::change_prefix() {
  const auto agent = std::next(agents_.begin(), random_.between(0, options_.agents - 1));
  std::int64_t most = 10;
  for (const auto& [id, request] : requests_) {
    if (agent_of(request) == agent->first) {
      most = std::min({most, request.input_tokens, request.kv_tokens - 1});
    }
  }
  const std::int64_t moved = random_.between(-std::min<std::int64_t>(agent->second, 3), most);
  for (auto& [id, request] : requests_) {
    if (agent_of(request) == agent->first) {
      request.input_tokens -= moved;
      request.kv_tokens -= moved;
    }
  }
  agent->second += moved;
  return event(
      [now = now_, id = agent->first, tokens = agent->second](Scheduler& to) { to.prefix_changed(now, id, tokens); });
}

Traffic::Choice Traffic::end_task() {
  const auto task = random_.chance(0.3) ? pick_task() : std::nullopt;
  if (!task.has_value()) {
    return std::nullopt;
  }
  erase_task(*task);
  const bool finished = random_.chance(0.5);
  return event([now = now_, id = *task, finished](Scheduler& to) {
    finished ? to.task_finished(now, id) : to.task_cancelled(now, id);
  });
}

std::vector<Step> Traffic::drain() {
  std::vector<Step> out;
  while (!tasks_.empty()) {
    const Id task = tasks_.begin()->first;
    erase_task(task);
    out.push_back(event([now = now_, task](Scheduler& to) { to.task_finished(now, task); }));
  }
  return out;
}

Usage Traffic::expected() const {
  Usage out;
  out.agents = static_cast<std::int64_t>(agents_.size());
  out.workflows = static_cast<std::int64_t>(flows_.size());
  out.tasks = static_cast<std::int64_t>(tasks_.size());
  out.resident = static_cast<std::int64_t>(resident_.size());
  for (const auto& agent : resident_) {
    out.kv_tokens += agents_.at(agent);
  }
  for (const auto& [id, request] : requests_) {
    ++(request.running ? out.running : out.waiting);
    out.kv_tokens += request.running ? request.kv_tokens : 0;
  }
  out.credits = out.running;
  for (const auto& flow : flows_) {
    for (const auto total : flow.totals) {
      out.samples += std::min<std::int64_t>(total, 256);
    }
  }
  return out;
}

}  // namespace topas::testing
