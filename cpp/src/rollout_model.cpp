#include "rollout_model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "draws.hpp"

namespace topas::detail {

namespace {

constexpr double kMostRequests = 16.0;  // of one stage in a scenario
constexpr double kLeastLeft = 0.1;      // of a request that has outlived its profile
constexpr double kNearest = 0.5;        // rounds up from here
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
using Index = std::unordered_map<Id, std::uint32_t, IdHash>;

class Builder {
 public:
  Builder(const Snapshot& snapshot, const std::vector<const StageGraph*>& graphs, const Instance& instance)
      : snapshot_(snapshot), graphs_(graphs), instance_(instance), config_(*instance.config) {}

  RolloutModel build() {
    model_.capacity_tokens = config_.kv_capacity_tokens;
    model_.running_limit = config_.max_running_requests;
    model_.power = config_.rollout_power;
    add_agents();
    count_live();
    add_tasks();
    add_requests();
    reserve_for_requests_to_come();
    sort_profiles();
    draw();
    return std::move(model_);
  }

 private:
  void add_agents();
  void count_live();
  void add_tasks();
  void add_stages(std::uint32_t at, const StageGraph& graph);
  void add_stage(std::uint32_t at, std::uint32_t stage, const StageGraph& graph);
  void add_requests();
  void reserve_for_requests_to_come();
  void draw();
  void draw_stage(std::uint32_t at, const TaskState& task, std::uint32_t stage);
  void sort_profiles();
  [[nodiscard]] static std::vector<double> support(const StageState& stage, const ProfileState& profile,
                                                   double spent_s);

  const Snapshot& snapshot_;
  const std::vector<const StageGraph*>& graphs_;
  const Instance& instance_;
  const Config& config_;
  RolloutModel model_;
  std::vector<ProfileState> profiles_;  // totals ascending
  Index profile_at_;
  Index agent_at_;
  Index task_at_;
  std::vector<std::uint32_t> order_;               // of the tasks
  std::vector<std::vector<std::uint32_t>> place_;  // of each task's stages in the model
  std::vector<std::vector<std::uint32_t>> live_;   // requests of each task's stages
  std::vector<double> spent_s_;                    // by running requests of each stage
};

void Builder::add_agents() {
  for (const auto& agent : snapshot_.agents) {
    agent_at_[agent.id] = static_cast<std::uint32_t>(model_.agents.size());
    const double load_s = instance_.seconds_per_token_moved() * static_cast<double>(agent.prefix_tokens);
    model_.agents.push_back({agent.prefix_tokens, load_s, 0});
  }
}

void Builder::count_live() {
  for (std::uint32_t at = 0; at < snapshot_.tasks.size(); ++at) {
    task_at_[snapshot_.tasks[at].id] = at;
    live_.emplace_back(snapshot_.tasks[at].stages.size(), 0U);
  }
  for (const auto& request : snapshot_.requests) {
    ++live_[task_at_.at(request.task)][request.stage];
  }
}

void Builder::add_tasks() {
  const auto& tasks = snapshot_.tasks;
  order_.resize(tasks.size());
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(), [&tasks](std::uint32_t a, std::uint32_t b) {
    return std::tie(tasks[a].arrival, tasks[a].id) < std::tie(tasks[b].arrival, tasks[b].id);
  });
  place_.resize(tasks.size());
  for (const auto at : order_) {
    add_stages(at, *graphs_[at]);
  }
}

void Builder::add_stages(std::uint32_t at, const StageGraph& graph) {
  const TaskState& task = snapshot_.tasks[at];
  auto& place = place_[at];
  auto next_place = static_cast<std::uint32_t>(model_.stages.size());
  std::uint32_t open = 0;
  for (std::uint32_t stage = 0; stage < task.stages.size(); ++stage) {
    const bool ended = task.stages[stage].completed;
    open += ended ? 0U : 1U;
    place.push_back(ended && live_[at][stage] == 0 ? kNone : next_place++);
  }
  for (std::uint32_t stage = 0; stage < task.stages.size(); ++stage) {
    if (place[stage] != kNone) {
      add_stage(at, stage, graph);
    }
  }
  model_.age_s.push_back(std::max(snapshot_.now - task.arrival, 0.0));
  model_.open_stages.push_back(open);
}

void Builder::add_stage(std::uint32_t at, std::uint32_t stage, const StageGraph& graph) {
  const TaskState& task = snapshot_.tasks[at];
  RolloutModel::Stage added;
  added.task = static_cast<std::uint32_t>(model_.age_s.size());
  added.agent = agent_at_.at(task.stages[stage].agent);
  added.ended = task.stages[stage].completed;
  added.live = live_[at][stage];
  for (const auto before : graph.predecessors(stage)) {
    added.open_before += task.stages[before].completed ? 0U : 1U;
  }
  added.successors.begin = static_cast<std::uint32_t>(model_.successors.size());
  for (const auto next : graph.successors(stage)) {
    if (place_[at][next] != kNone) {
      model_.successors.push_back(place_[at][next]);
    }
  }
  added.successors.end = static_cast<std::uint32_t>(model_.successors.size());
  model_.stages.push_back(added);
}

void Builder::add_requests() {
  std::vector<const RequestState*> sorted(snapshot_.requests.size());
  std::transform(snapshot_.requests.begin(), snapshot_.requests.end(), sorted.begin(),
                 [](const RequestState& request) { return &request; });
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  spent_s_.assign(model_.stages.size(), 0.0);
  Index number;
  for (const auto* request : sorted) {
    const std::uint32_t stage = place_[task_at_.at(request->task)][request->stage];
    const double spent_s =
        request->running ? config_.decode_s_per_token * static_cast<double>(request->generated_tokens) : 0.0;
    number[request->id] = static_cast<std::uint32_t>(model_.requests.size());
    model_.requests.push_back({stage, request->kv_tokens, request->running, spent_s});
    spent_s_[stage] += spent_s;
  }
  for (const auto& request : instance_.waiting) {
    model_.waiting.push_back(number.at(*request.id));
  }
  for (const auto& request : instance_.running) {
    model_.running.push_back(number.at(*request.id));
  }
}

/// The mean reservation of the agent's live requests, else of all.
void Builder::reserve_for_requests_to_come() {
  struct Sum {
    std::int64_t tokens = 0;
    std::int64_t requests = 0;
  };
  std::vector<Sum> of_agent(model_.agents.size());
  Sum all;
  for (const auto& request : model_.requests) {
    for (Sum* sum : {&of_agent[model_.stages[request.stage].agent], &all}) {
      sum->tokens += request.kv_tokens;
      ++sum->requests;
    }
  }
  for (auto& agent : model_.agents) {
    agent.least_kv_tokens = model_.capacity_tokens;
  }
  for (auto& stage : model_.stages) {
    const Sum& sum = of_agent[stage.agent].requests > 0 ? of_agent[stage.agent] : all;
    auto& agent = model_.agents[stage.agent];
    const std::int64_t room = std::max<std::int64_t>(model_.capacity_tokens - agent.prefix_tokens, 0);
    stage.kv_tokens = std::min(sum.requests > 0 ? sum.tokens / sum.requests : 0, room);
    agent.least_kv_tokens = std::min(agent.least_kv_tokens, stage.kv_tokens);
  }
  for (const auto& request : model_.requests) {
    auto& agent = model_.agents[model_.stages[request.stage].agent];
    agent.least_kv_tokens = std::min(agent.least_kv_tokens, request.kv_tokens);
  }
}

void Builder::sort_profiles() {
  profiles_ = snapshot_.profiles;
  for (std::uint32_t at = 0; at < profiles_.size(); ++at) {
    profile_at_[profiles_[at].id] = at;
    std::sort(profiles_[at].totals_s.begin(), profiles_[at].totals_s.end());
  }
}

void Builder::draw() {
  model_.scenarios.assign(static_cast<std::size_t>(config_.rollout_scenarios),
                          std::vector<RolloutModel::Work>(model_.stages.size()));
  for (const auto at : order_) {
    const TaskState& task = snapshot_.tasks[at];
    for (std::uint32_t stage = 0; stage < task.stages.size(); ++stage) {
      if (!task.stages[stage].completed) {
        draw_stage(place_[at][stage], task, stage);
      }
    }
  }
}

/// Equally likely values of what is left of a stage, ascending, given what its requests have had.
std::vector<double> Builder::support(const StageState& stage, const ProfileState& profile, double spent_s) {
  const double had_s = stage.service_s + spent_s;
  const auto& totals = profile.totals_s;
  std::vector<double> out(had_s == 0.0 ? totals.begin() : std::upper_bound(totals.begin(), totals.end(), had_s),
                          totals.end());
  for (double& left : out) {
    left -= stage.service_s;
  }
  if (out.empty()) {
    out.push_back(std::max(profile.request_s, spent_s + kLeastLeft * profile.request_s));
  }
  return out;
}

void Builder::draw_stage(std::uint32_t at, const TaskState& task, std::uint32_t stage) {
  const StageState& state = task.stages[stage];
  const ProfileState& profile = profiles_[profile_at_.at(state.profile)];
  const std::size_t count = model_.scenarios.size();
  std::vector<double> row(count);
  StageDraws draws(draw_stream(config_.seed, stable_hash(task.id), stage), count);
  draws.draw(support(state, profile, spent_s_[at]), row.data());
  const std::uint32_t live = std::max(model_.stages[at].live, 1U);
  for (std::size_t scenario = 0; scenario < count; ++scenario) {
    const double left_s = row[scenario];
    double requests = 1.0;
    if (profile.request_s > 0.0) {
      requests = std::floor(std::min(left_s / profile.request_s + kNearest, kMostRequests));
    }
    const std::uint32_t number = std::max(live, static_cast<std::uint32_t>(requests));
    model_.scenarios[scenario][at] = {number, left_s / static_cast<double>(number)};
  }
}

}  // namespace

RolloutModel rollout_model(const Snapshot& snapshot, const std::vector<const StageGraph*>& graphs,
                           const Instance& instance) {
  return Builder(snapshot, graphs, instance).build();
}

}  // namespace topas::detail
