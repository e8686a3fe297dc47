// What GreedyPack tells of the waiting requests before it packs a set: their order, and the most that they gain.
#include <algorithm>
#include <cmath>
#include <utility>

#include "greedy_pack.hpp"

namespace topas::detail {

/// Orders the waiting requests, the densest first, ties by precedes(); by arrival all tie. Those whose task has running
/// requests that count as completed stand where they do while all of these are kept.
void GreedyPack::rank_waiting() {
  std::vector<Ranked> ranked;
  ranked.reserve(instance_.waiting.size());
  const auto add = [this, &ranked](const Option& option) {
    const RequestView& request = instance_.waiting[option.request];
    ranked.push_back({option, instance_.tasks[request.task].arrival, request.agent, 0, request.kv_tokens});
  };
  std::vector<std::uint32_t> dependent;
  for (std::uint32_t at = 0; at < instance_.waiting.size(); ++at) {
    if (depends_on_running(instance_.waiting[at].task) && !in_turn()) {
      dependent.push_back(at);
    } else {
      add(option_alone(at));
    }
  }
  complete_running();
  for (const auto at : dependent) {
    add(option_of(at));
  }
  kept_completions_.assign(completions_.size(), 0);
  kept_completions_.swap(completions_);
  std::sort(ranked.begin(), ranked.end(), [this, by_arrival = in_turn()](const Ranked& a, const Ranked& b) {
    if (a.option.density != b.option.density && !by_arrival) {
      return a.option.density > b.option.density;
    }
    return a.arrival != b.arrival ? a.arrival < b.arrival : precedes(a.option, b.option);
  });
  order_.assign(std::move(ranked), instance_.agents.size(), instance_.waiting.size());
}

/// With count_running, the running requests count as hypothetically completed while they are kept (SPEC section 6).
void GreedyPack::complete_running() {
  if (!instance_.config->count_running || instance_.gains_are_services()) {
    return;
  }
  for (const RequestView& request : instance_.running) {
    set_bit(completions(instance_.tasks[request.task]), request.bit, true);
    if (runners_.empty() || runners_.back() != request.agent) {
      runners_.push_back(request.agent);  // they are by agent
    }
  }
}

/// The marginal of a request while nothing of its task is completed.
Option GreedyPack::option_alone(std::uint32_t request) {
  const RequestView& view = instance_.waiting[request];
  const TaskView& task = instance_.tasks[view.task];
  if (instance_.gains_are_services()) {
    return option_for(request, instance_.worth(view));
  }
  double fall_s = view.fall_s;
  if (std::isnan(fall_s)) {
    fall_s = fall_with(view, path_before_each(task));
    if (view.keep_fall != nullptr) {
      *view.keep_fall = fall_s;
    }
  }
  return option_for(request, task.scale() * fall_s);
}

/// Without siblings the marginal is the same in every set. With them it is at most what the request takes off its
/// stage, and what all of them take off the path.
void GreedyPack::bound_gains() {
  most_gain_.resize(instance_.waiting.size());
  most_gain_of_.resize(instance_.tasks.size());
  for (const Ranked& ranked : order_.all()) {
    most_gain_[ranked.option.request] = std::max(ranked.option.gain, 0.0);
  }
  for (std::uint32_t task = 0; task < instance_.tasks.size(); ++task) {
    const TaskView& view = instance_.tasks[task];
    if (!has_siblings(view)) {
      for (auto at = view.waiting.begin; at < view.waiting.end; ++at) {
        most_gain_of_[task] += most_gain_[instance_.waiting_of_tasks[at]];
      }
      continue;
    }
    const double together = most_gain_of_[task] = gain_of_all(view);
    for (auto at = view.waiting.begin; at < view.waiting.end; ++at) {
      const std::uint32_t request = instance_.waiting_of_tasks[at];
      const double alone = view.scale() * instance_.waiting[request].service_s;
      most_gain_[request] = std::min(alone, together);
    }
  }
}

/// What a task gains, aged, when all its requests complete that may count; no set is being packed.
double GreedyPack::gain_of_all(const TaskView& task) {
  const auto set = completions(task);
  for (auto at = task.waiting.begin; at < task.waiting.end; ++at) {
    set_bit(set, instance_.waiting[instance_.waiting_of_tasks[at]].bit, true);
  }
  for (auto at = task.running.begin; instance_.config->count_running && at < task.running.end; ++at) {
    set_bit(set, instance_.running[instance_.running_of_tasks[at]].bit, true);
  }
  Fall fall = task.fall;
  if (set.size() > 1 || fall.set != set.front()) {
    const double after = path_of(task);
    fall.set = set.front();
    std::fill(set.begin(), set.end(), 0);
    fall.seconds = path_of(task) - after;
    if (set.size() == 1 && task.keep_fall != nullptr) {
      *task.keep_fall = fall;
    }
  }
  std::fill(set.begin(), set.end(), 0);
  return std::max(task.scale() * fall.seconds, 0.0);
}

}  // namespace topas::detail
