#include "support/random_cases.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace topas::testing {

namespace {

std::vector<std::uint32_t> random_order(Random& random, std::uint32_t size) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t last = order.size(); last > 1; --last) {
    std::swap(order[last - 1], order[random.below(last)]);
  }
  return order;
}

Id make_id(const Shape& shape, const char* kind, std::int64_t number) {
  return shape.string_ids ? Id(kind + std::to_string(number)) : Id(number);
}

TaskState random_task(Random& random, const Shape& shape, Snapshot& out, std::int64_t number) {
  TaskState task{make_id(shape, "task", (number * 7) % 100), random.quarters(20), {}};
  const auto size = static_cast<std::uint32_t>(random.between(1, shape.stages));
  const Adjacency after = random_dag(random, size, 0.4);
  for (std::uint32_t stage = 0; stage < size; ++stage) {
    const Id profile = make_id(shape, "profile", static_cast<std::int64_t>(out.profiles.size()));
    out.profiles.push_back({profile, random_totals(random, 1, 3).front(), 0.25 + random.quarters(3)});
    const double served = random.chance(0.3) ? random.quarters(6) : 0.0;
    task.stages.push_back({random.pick(out.agents).id, after[stage], profile, false, served});
  }
  const StageGraph graph = graph_of(after);
  for (const auto stage : graph.order()) {
    const auto done = [&task](auto before) { return task.stages[before].completed; };
    task.stages[stage].completed = random.chance(0.3) && std::all_of(after[stage].begin(), after[stage].end(), done);
  }
  return task;
}

std::vector<std::uint32_t> ready_stages(const TaskState& task) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t stage = 0; stage < task.stages.size(); ++stage) {
    const auto& before = task.stages[stage].after;
    const auto done = [&task](auto other) { return task.stages[other].completed; };
    if (!task.stages[stage].completed && std::all_of(before.begin(), before.end(), done)) {
      out.push_back(stage);
    }
  }
  return out;
}

void run(Random& random, RequestState& request) {
  request.running = true;
  request.generated_tokens = random.between(0, 40);
  request.credit = random.quarters(4);
  if (random.chance(0.5)) {
    request.age_factor_at_admission = 1.0 + random.quarters(1);
  }
}

void add_request(Random& random, const Shape& shape, Snapshot& out, std::int64_t number) {
  const TaskState& task = random.pick(out.tasks);
  const auto ready = ready_stages(task);
  if (ready.empty()) {
    return;
  }
  const std::uint32_t stage = random.pick(ready);
  RequestState request = make_request(make_id(shape, "request", (number * 37) % 100), task.id, stage,
                                      task.stages[stage].agent, random.between(1, 40), random.quarters(4));
  request.input_tokens = request.kv_tokens / 2;
  if (random.chance(0.3)) {
    run(random, request);
  }
  out.requests.push_back(std::move(request));
}

}  // namespace

Adjacency random_dag(Random& random, std::uint32_t size, double edge_probability) {
  const auto order = random_order(random, size);
  Adjacency after(size);
  for (std::uint32_t late = 0; late < size; ++late) {
    for (std::uint32_t early = 0; early < late; ++early) {
      if (random.chance(edge_probability)) {
        after[order[late]].push_back(order[early]);
      }
    }
  }
  return after;
}

StageGraph graph_of(const Adjacency& after) {
  return {after, [](std::uint32_t stage) { return std::to_string(stage); }};
}

Stages::Stages(Totals totals) : totals_(std::move(totals)) {
  for (const auto& list : totals_) {
    outlooks_.push_back({false, list, 0.0, 0.5});
  }
}

Totals random_totals(Random& random, std::uint32_t count, std::int64_t most) {
  Totals out(count);
  for (auto& list : out) {
    list.resize(static_cast<std::size_t>(random.between(1, most)));
    std::generate(list.begin(), list.end(), [&random] { return random.quarters(8); });
    std::sort(list.begin(), list.end());
  }
  return out;
}

RequestState make_request(Id id, Id task, std::uint32_t stage, Id agent, std::int64_t kv_tokens, double service_s) {
  RequestState out;
  out.id = std::move(id);
  out.task = std::move(task);
  out.stage = stage;
  out.agent = std::move(agent);
  out.kv_tokens = kv_tokens;
  out.expected_service_s = service_s;
  return out;
}

Snapshot random_snapshot(Random& random, const Shape& shape) {
  Snapshot out;
  out.now = 20.0 + random.quarters(10);
  out.age_scale_s = 1.0 + random.quarters(10);
  for (std::int64_t agent = 0; agent < shape.agents; ++agent) {
    out.agents.push_back({make_id(shape, "agent", shape.agents - agent), random.between(0, 30)});
  }
  for (std::int64_t task = 0; task < shape.tasks; ++task) {
    out.tasks.push_back(random_task(random, shape, out, task));
  }
  for (std::int64_t request = 0; request < shape.requests; ++request) {
    add_request(random, shape, out, request);
  }
  for (const auto& agent : out.agents) {
    const auto needs = [&agent](const auto& request) { return request.running && request.agent == agent.id; };
    if (random.chance(0.3) || std::any_of(out.requests.begin(), out.requests.end(), needs)) {
      out.resident.push_back(agent.id);
    }
  }
  return out;
}

Config random_config(Random& random) {
  Config config = random.chance(0.5) ? Config::paper() : Config{};
  config.kv_capacity_tokens = random.between(60, 250);
  config.kv_bytes_per_token = 1.0;
  config.swap_bytes_per_s = 100.0;
  config.decode_s_per_token = 0.03;
  config.prefill_fixed_s = 0.05;
  config.prefill_s_per_token = 0.001;
  config.enumerate_max_agents = random.chance(0.5) ? 8 : 0;
  config.action_cap = random.chance(0.3) ? random.between(1, 4) : 0;
  config.max_running_requests = random.chance(0.3) ? random.between(2, 6) : 0;
  config.age_weight = random.chance(0.8) ? 1.0 : 0.0;
  config.reuse_weight = random.quarters(2);
  config.exact_limit = random.chance(0.5) ? 4096 : 2;
  config.samples = 21;
  config.seed = random.below(1000);
  config.redo_model = random.pick(std::vector{RedoModel::decode, RedoModel::prefill, RedoModel::kept});
  config.move_model = random.pick(std::vector{MoveModel::tasks, MoveModel::once});
  config.move_weight = random.quarters(8);
  config.work_conserving = random.chance(0.3);
  return config;
}

Config random_service_config(Random& random) {
  Config config = random_config(random);
  config.gain_model = GainModel::service;
  config.admit_order = AdmitOrder::arrival;
  config.overtake_limit = random.chance(0.6) ? 2.0 : 0.0;
  config.backlog_weight = random.chance(0.5) ? random.quarters(8) : 0.0;
  config.move_weight = random.chance(0.5) ? config.move_weight : 0.0;
  return config;
}

}  // namespace topas::testing
