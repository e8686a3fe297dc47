#include "rollout_candidates.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace topas::detail {

namespace {

using Order = std::vector<std::uint32_t>;  // of waiting requests

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

  [[nodiscard]] std::vector<RolloutCandidate> all() && { return std::move(all_); }

 private:
  void add_base(const Decision& base);
  void add_orders();
  void add_agents();
  void add(Order admit);
  template <class Wanted>
  [[nodiscard]] Order walk(const Order& order, const Wanted& wanted, bool strict) const;
  [[nodiscard]] Order walk(const Order& order, bool strict) const {
    return walk(order, [](std::uint32_t) { return true; }, strict);
  }

  const Instance& instance_;
  std::unordered_map<std::uint32_t, std::uint32_t> running_;  // requests of each agent that has any
  std::int64_t room_ = instance_.config->kv_capacity_tokens;  // beside what runs
  Order by_arrival_;
  std::vector<RolloutCandidate> all_;
  std::vector<Order> admitted_;  // by each of them, ascending
};

void Candidates::add_base(const Decision& base) {
  std::unordered_map<Id, std::uint32_t, IdHash> at;
  for (std::uint32_t index = 0; index < instance_.waiting.size(); ++index) {
    at[*instance_.waiting[index].id] = index;
  }
  RolloutCandidate out;
  for (const auto& id : base.admit) {
    out.admit.push_back(at.at(id));
  }
  for (std::uint32_t index = 0; index < instance_.running.size(); ++index) {
    if (std::binary_search(base.preempt.begin(), base.preempt.end(), *instance_.running[index].id)) {
      out.preempt.push_back(index);
    }
  }
  admitted_.push_back(out.admit);
  std::sort(admitted_.back().begin(), admitted_.back().end());
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
  std::sort(by_arrival_.begin(), by_arrival_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return instance_.comes_before(waiting[a], waiting[b]); });
  add(walk(by_arrival_, true));
  add(walk(by_arrival_, false));
  Order order = by_arrival_;
  // The overdue ones came first; they stay in front.
  const auto overdue = std::count_if(order.begin(), order.end(),
                                     [&](std::uint32_t at) { return instance_.tasks[waiting[at].task].overdue; });
  std::stable_partition(order.begin() + overdue, order.end(),
                        [&](std::uint32_t at) { return running_.contains(waiting[at].agent); });
  add(walk(order, false));
  order = by_arrival_;
  std::stable_sort(order.begin() + overdue, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return instance_.tasks[waiting[a].task].path_s < instance_.tasks[waiting[b].task].path_s;
  });
  add(walk(order, false));
  add({});
}

/// Each agent alone, and all but each, in order of arrival: what is left out may drain.
void Candidates::add_agents() {
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    if (instance_.agents[agent].waiting.size() == 0) {
      continue;
    }
    add(walk(by_arrival_, [agent](std::uint32_t other) { return other == agent; }, false));
    add(walk(by_arrival_, [agent](std::uint32_t other) { return other != agent; }, false));
  }
}

void Candidates::add(Order admit) {
  Order sorted = admit;
  std::sort(sorted.begin(), sorted.end());
  const auto is_same = [&](std::size_t at) { return all_[at].preempt.empty() && admitted_[at] == sorted; };
  for (std::size_t at = 0; at < all_.size(); ++at) {
    if (is_same(at)) {
      return;
    }
  }
  if (!admit.empty() || !instance_.running.empty()) {
    all_.push_back({std::move(admit), {}});
    admitted_.push_back(std::move(sorted));
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

}  // namespace

std::vector<RolloutCandidate> rollout_candidates(const Instance& instance, const Decision& base) {
  return Candidates(instance, base).all();
}

}  // namespace topas::detail
