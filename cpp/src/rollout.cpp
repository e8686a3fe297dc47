#include "rollout.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "rollout_model.hpp"
#include "rollout_run.hpp"
#include "tie.hpp"

namespace topas::detail {

namespace {

constexpr std::array kBases{RolloutBase::strict, RolloutBase::arrival, RolloutBase::resident};
using Order = std::vector<std::uint32_t>;  // of waiting requests

/// A decision to be tried, by indexes into Instance::waiting and Instance::running.
struct Candidate {
  Order admit;
  std::vector<std::uint32_t> preempt;  ///< ascending

  [[nodiscard]] bool same_as(const Candidate& other) const {
    Order mine = admit;
    Order theirs = other.admit;
    std::sort(mine.begin(), mine.end());
    std::sort(theirs.begin(), theirs.end());
    return mine == theirs && preempt == other.preempt;
  }
};

/// Lists the candidates, each once, the base first.
class Candidates {
 public:
  Candidates(const Instance& instance, const Decision& base) : instance_(instance) {
    for (const auto& request : instance.running) {
      ++running_[request.agent];
      room_ -= request.kv_tokens;
    }
    for (const auto& [agent, count] : running_) {
      room_ -= instance.agents[agent].prefix_tokens;
    }
    add_base(base);
    add_orders();
    add_agents();
  }

  [[nodiscard]] const std::vector<Candidate>& all() const noexcept { return all_; }

 private:
  void add_base(const Decision& base);
  void add_orders();
  void add_agents();
  void add(Candidate candidate);
  template <class Wanted>
  [[nodiscard]] Order walk(const Order& order, const Wanted& wanted, bool strict) const;
  [[nodiscard]] Order walk(const Order& order, bool strict) const {
    return walk(order, [](std::uint32_t) { return true; }, strict);
  }

  const Instance& instance_;
  std::unordered_map<std::uint32_t, std::uint32_t> running_;  // requests of each agent that has any
  std::int64_t room_ = instance_.config->kv_capacity_tokens;  // beside what runs
  Order by_arrival_;
  std::vector<Candidate> all_;
};

void Candidates::add_base(const Decision& base) {
  std::unordered_map<Id, std::uint32_t, IdHash> at;
  for (std::uint32_t index = 0; index < instance_.waiting.size(); ++index) {
    at[*instance_.waiting[index].id] = index;
  }
  Candidate out;
  for (const auto& id : base.admit) {
    out.admit.push_back(at.at(id));
  }
  for (std::uint32_t index = 0; index < instance_.running.size(); ++index) {
    if (std::binary_search(base.preempt.begin(), base.preempt.end(), *instance_.running[index].id)) {
      out.preempt.push_back(index);
    }
  }
  all_.push_back(std::move(out));
}

/// In order of arrival, strictly and not; resident prefixes first; short paths first; nothing at all.
void Candidates::add_orders() {
  const auto& waiting = instance_.waiting;
  for (std::uint32_t index = 0; index < waiting.size(); ++index) {
    if (!instance_.never_fits(waiting[index])) {
      by_arrival_.push_back(index);
    }
  }
  std::sort(by_arrival_.begin(), by_arrival_.end(), [&](std::uint32_t a, std::uint32_t b) {
    const double came = instance_.tasks[waiting[a].task].arrival;
    const double other = instance_.tasks[waiting[b].task].arrival;
    return came != other ? came < other : *waiting[a].id < *waiting[b].id;
  });
  add({walk(by_arrival_, true), {}});
  add({walk(by_arrival_, false), {}});
  Order order = by_arrival_;
  // The overdue ones came first; they stay in front.
  const auto overdue = std::count_if(order.begin(), order.end(),
                                     [&](std::uint32_t at) { return instance_.tasks[waiting[at].task].overdue; });
  std::stable_partition(order.begin() + overdue, order.end(),
                        [&](std::uint32_t at) { return running_.contains(waiting[at].agent); });
  add({walk(order, false), {}});
  order = by_arrival_;
  std::stable_sort(order.begin() + overdue, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return instance_.tasks[waiting[a].task].path_s < instance_.tasks[waiting[b].task].path_s;
  });
  add({walk(order, false), {}});
  add({});
}

/// Each agent alone, and all but each, in order of arrival: what is left out may drain.
void Candidates::add_agents() {
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    if (instance_.agents[agent].waiting.size() == 0) {
      continue;
    }
    add({walk(by_arrival_, [agent](std::uint32_t other) { return other == agent; }, false), {}});
    add({walk(by_arrival_, [agent](std::uint32_t other) { return other != agent; }, false), {}});
  }
}

void Candidates::add(Candidate candidate) {
  const bool serves = !candidate.admit.empty() || !instance_.running.empty();
  const auto same = [&candidate](const Candidate& other) { return other.same_as(candidate); };
  if (serves && std::none_of(all_.begin(), all_.end(), same)) {
    all_.push_back(std::move(candidate));
  }
}

/// What of an order fits beside what runs; strictly: up to the first that does not.
template <class Wanted>
Order Candidates::walk(const Order& order, const Wanted& wanted, bool strict) const {
  std::int64_t room = room_;
  auto slots = instance_.slots_beside(static_cast<std::int64_t>(instance_.running.size()));
  std::vector<bool> there(instance_.agents.size(), false);
  for (const auto& [agent, count] : running_) {
    there[agent] = true;
  }
  Order out;
  for (const auto at : order) {
    const RequestView& request = instance_.waiting[at];
    const std::int64_t needs =
        request.kv_tokens + (there[request.agent] ? 0 : instance_.agents[request.agent].prefix_tokens);
    if (wanted(request.agent) && needs <= room && slots > 0) {
      room -= needs;
      --slots;
      there[request.agent] = true;
      out.push_back(at);
    } else if (strict || instance_.tasks[request.task].overdue) {
      break;
    }
  }
  return out;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Costs of one candidate by scenario, under the base policy that continues it best.
std::vector<double> costs_of(const RolloutModel& model, RolloutRun& run, const Candidate& candidate) {
  RolloutMove move;
  for (const auto at : candidate.admit) {
    move.admit.push_back(model.waiting[at]);
  }
  for (const auto at : candidate.preempt) {
    move.preempt.push_back(model.running[at]);
  }
  std::sort(move.preempt.begin(), move.preempt.end());
  std::vector<double> best;
  std::vector<double> costs(model.scenarios.size());
  for (const auto base : kBases) {
    for (std::size_t scenario = 0; scenario < costs.size(); ++scenario) {
      costs[scenario] = run.cost(move, base, scenario);
    }
    if (best.empty() || mean(costs) < mean(best)) {
      best = costs;
    }
  }
  return best;
}

/// Whether the costs are less by more than `margin` standard errors of the paired differences.
bool is_better(const std::vector<double>& costs, const std::vector<double>& base, double margin) {
  const auto count = static_cast<double>(costs.size());
  std::vector<double> gains(costs.size());
  for (std::size_t at = 0; at < costs.size(); ++at) {
    gains[at] = base[at] - costs[at];
  }
  const double gain = mean(gains);
  if (!beats(mean(base), mean(costs))) {
    return false;
  }
  double squares = 0.0;
  for (const double each : gains) {
    squares += (each - gain) * (each - gain);
  }
  const double error = count > 1.0 ? std::sqrt(squares / (count - 1.0) / count) : 0.0;
  return gain > margin * error;
}

}  // namespace

bool roll_out(const Snapshot& snapshot, const std::vector<const StageGraph*>& graphs, const Instance& instance,
              const Decision& base, RolledOut& better) {
  const Candidates candidates(instance, base);
  if (candidates.all().size() == 1) {
    return false;
  }
  const RolloutModel model = rollout_model(snapshot, graphs, instance);
  RolloutRun run(model);
  std::vector<std::vector<double>> costs;
  for (const auto& candidate : candidates.all()) {
    costs.push_back(costs_of(model, run, candidate));
  }
  const auto cheaper = [](const auto& a, const auto& b) { return mean(a) < mean(b); };
  const double least = mean(*std::min_element(costs.begin(), costs.end(), cheaper));
  const auto first = std::find_if(costs.begin(), costs.end(), [least](const auto& c) { return tie(mean(c), least); });
  const auto chosen = static_cast<std::size_t>(first - costs.begin());
  if (!is_better(costs[chosen], costs.front(), instance.config->rollout_margin)) {
    return false;
  }
  better.admit = candidates.all()[chosen].admit;
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    const bool admitted = std::any_of(better.admit.begin(), better.admit.end(),
                                      [&](std::uint32_t at) { return instance.waiting[at].agent == agent; });
    if (admitted || instance.agents[agent].running.size() > 0) {
      better.members.push_back(agent);
    }
  }
  return true;
}

}  // namespace topas::detail
