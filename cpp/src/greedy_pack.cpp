#include "greedy_pack.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "tie.hpp"

namespace topas::detail {

namespace {

constexpr std::size_t kUsual = 16;  // admissions: room for so many is made at once

}  // namespace

GreedyPack::GreedyPack(const Instance& instance)
    : instance_(instance),
      score_(instance),
      inside_(instance.agents.size(), 0),
      uncovered_(instance.agents.size(), 0),
      completions_(instance.words, 0),
      represented_(instance.tasks.size(), 0) {
  touched_.reserve(instance.running.size() + kUsual);
  admissions_.reserve(kUsual);
  emissions_.reserve(kUsual);
  rank_waiting();
  bound_gains();
  completions_.assign(kept_completions_.begin(), kept_completions_.end());
}

Allocation GreedyPack::pack(std::span<const std::uint32_t> members) {
  Allocation out;
  admissions_.clear();
  if (!start(members, out)) {
    return out;
  }
  score_.preempt_outside(inside_);
  clear_tasks();
  undo_preempted();
  open_order(members);
  first_ = 0;
  ended_ = false;
  list_loose();
  emissions_.clear();
  highest_ = -std::numeric_limits<double>::infinity();
  emit();
  for (auto choice = best_option(); choice.found; choice = best_option()) {
    admit(choice);
    emit();
  }
  choose_emission(out);
  return out;
}

/// Keeps and preempts, counts the room and the slots, reserves a slot and the smallest reservation for each agent
/// without a kept request; false: the set is infeasible.
bool GreedyPack::start(std::span<const std::uint32_t> members, Allocation& out) {
  const Config& config = *instance_.config;
  std::fill(inside_.begin(), inside_.end(), 0);
  std::fill(uncovered_.begin(), uncovered_.end(), 0);
  uncovered_count_ = uncovered_kv_ = 0;
  score_.clear();
  std::int64_t room = config.kv_capacity_tokens;
  std::int64_t firm = 0;
  for (const auto member : members) {
    const AgentView& agent = instance_.agents[member];
    inside_[member] = 1;
    score_.hold(agent);
    room -= agent.prefix_tokens + agent.running_kv;
    out.kept += agent.running.size();
    firm += agent.firm ? 1 : 0;
    if (agent.running.size() == 0) {
      uncovered_[member] = 1;
      ++uncovered_count_;
      uncovered_kv_ += std::min(agent.least_waiting_kv, config.kv_capacity_tokens + 1);  // infeasible in any case
    }
  }
  out.preempted = static_cast<std::uint32_t>(instance_.running.size()) - out.kept;
  room_ = first_room_ = room;
  slots_ = first_slots_ = instance_.slots_beside(out.kept);
  return uncovered_kv_ <= room && uncovered_count_ <= slots_ && firm == instance_.firm_agents &&
         (config.action_cap == 0 || std::cmp_less_equal(out.preempted, config.action_cap));
}

void GreedyPack::clear_tasks() {
  for (const auto task : touched_) {
    const TaskView& view = instance_.tasks[task];
    std::copy_n(kept_completions_.begin() + view.first_word, view.words, completions(view).begin());
    represented_[task] = 0;
  }
  touched_.clear();
}

void GreedyPack::complete(const RequestView& request) {
  if (!instance_.gains_are_services()) {
    set_bit(completions(instance_.tasks[request.task]), request.bit, true);
  }
  touched_.push_back(request.task);
}

/// The requests that are preempted do not count as completed; touches their tasks.
void GreedyPack::undo_preempted() {
  for (const auto agent : runners_) {
    const Range running = instance_.agents[agent].running;
    for (auto at = running.begin; inside_[agent] == 0 && at < running.end; ++at) {
      const RequestView& request = instance_.running[at];
      set_bit(completions(instance_.tasks[request.task]), request.bit, false);
      touched_.push_back(request.task);
    }
  }
}

/// Uncovered agents may take what is reserved for them beyond what others may.
void GreedyPack::open_order(std::span<const std::uint32_t> members) {
  order_.open(members);
  for (const auto member : members) {
    if (uncovered_[member] != 0) {
      order_.favour_or_not(member);
    }
  }
}

/// Requests beside preempted ones leave the order, where they stand as if these were kept; no other tasks are touched
/// yet.
void GreedyPack::list_loose() {
  loose_.clear();
  if (in_turn()) {
    return;  // each is looked at when it is its turn
  }
  for (const auto task : touched_) {
    if (instance_.tasks[task].waiting.size() > 0) {
      loosen_task(task);
    }
  }
}

/// E[LP] of a task after the completions so far.
double GreedyPack::path_of(const TaskView& task) { return task.model->expected_path(completions(task), scratch_); }

/// The same, before it is asked with each other request of the task; 0 where gains do not come from paths.
double GreedyPack::path_before_each(const TaskView& task) {
  return instance_.gains_are_services() ? 0.0 : task.model->expected_path_before_each(completions(task), scratch_);
}

Option GreedyPack::option_of(std::uint32_t request) {
  return option_of(request, path_before_each(instance_.tasks[instance_.waiting[request].task]));
}

/// The option of a request that gains so much.
Option GreedyPack::option_for(std::uint32_t request, double gain) const {
  return {request, gain, gain / static_cast<double>(instance_.waiting[request].kv_tokens)};
}

/// What completing a request as well takes off the path of its task, seconds; `before`: path_of() the task.
double GreedyPack::fall_with(const RequestView& request, double before) {
  const TaskView& task = instance_.tasks[request.task];
  const auto set = completions(task);
  set_bit(set, request.bit, true);
  const double after = path_of(task);
  set_bit(set, request.bit, false);
  return before - after;
}

/// The marginal of a request; `before`: path_of() its task.
Option GreedyPack::option_of(std::uint32_t request, double before) {
  const RequestView& view = instance_.waiting[request];
  return option_for(request, instance_.gains_are_services()
                                 ? instance_.worth(view)
                                 : instance_.tasks[view.task].scale() * fall_with(view, before));
}

/// Tokens that a request of the agent may take: what is left must still cover the other uncovered agents. Negative when
/// there is no slot. It never grows while a set is packed, so what does not fit once will not fit later.
std::int64_t GreedyPack::room_for(std::uint32_t agent) const noexcept {
  std::int64_t reserved_kv = uncovered_kv_;
  std::int64_t reserved_slots = uncovered_count_;
  if (uncovered_[agent] != 0) {
    reserved_kv -= instance_.agents[agent].least_waiting_kv;
    --reserved_slots;
  }
  return slots_ - reserved_slots >= 1 ? room_ - reserved_kv : -1;
}

bool GreedyPack::fits(const RequestView& request) const noexcept {
  return request.kv_tokens <= room_for(request.agent);
}

/// The first place from here on that is open and fits.
std::uint32_t GreedyPack::next_fitting(std::uint32_t place) const {
  const std::int64_t most = slots_ - uncovered_count_ < 1 ? -1 : room_ - uncovered_kv_;
  if (uncovered_count_ == 0) {
    return order_.next(place, most);
  }
  return order_.next(place, most, [this](const Ranked& ranked) { return ranked.kv_tokens <= room_for(ranked.agent); });
}

/// The next in order of arrival that fits.
GreedyPack::Choice GreedyPack::next_in_turn() {
  const auto fits_or_ends = [this](const Ranked& ranked) {
    if (ranked.kv_tokens <= room_for(ranked.agent)) {
      return true;
    }
    ended_ = instance_.tasks[instance_.waiting[ranked.option.request].task].overdue;
    return ended_;
  };
  constexpr auto kAny = std::numeric_limits<std::int64_t>::max();
  if (ended_) {
    first_ = order_.size();
  } else if (instance_.config->overtake_limit > 0.0) {
    first_ = order_.next(first_, kAny, fits_or_ends);
  } else {
    first_ = next_fitting(first_);
  }
  if (ended_ || first_ == order_.size()) {
    return {};
  }
  return {option_of(order_[first_].option.request), loose_.size(), true};
}

/// Whether a place has a density that ties with no later one's but its own.
bool GreedyPack::stands_alone(std::uint32_t place) const {
  const auto density = [this](std::uint32_t at) { return order_[at].option.density; };
  return place < order_.size() &&
         (order_[place].run_end == order_.size() || !tie(density(order_[place].run_end), density(place)));
}

/// The largest density among the options that fit, ties by precedes().
GreedyPack::Choice GreedyPack::best_option() {
  if (in_turn()) {
    return next_in_turn();
  }
  first_ = next_fitting(first_);
  if (loose_.empty() && stands_alone(first_)) {
    return {order_[first_].option, 0, true};
  }
  double largest = first_ < order_.size() ? order_[first_].option.density : -std::numeric_limits<double>::infinity();
  for (const Option& option : loose_) {
    if (option.density > largest && fits(instance_.waiting[option.request])) {
      largest = option.density;
    }
  }
  Choice best;
  consider_ranked(largest, best);
  for (std::size_t at = 0; at < loose_.size(); ++at) {
    if (tie(loose_[at].density, largest) && fits(instance_.waiting[loose_[at].request]) &&
        (!best.found || precedes(loose_[at], best.option))) {
      best = {loose_[at], at, true};
    }
  }
  return best;
}

/// Offers the ranked options that tie with the largest density and fit. Of those of exactly the same density the first
/// precedes the others.
void GreedyPack::consider_ranked(double largest, Choice& best) const {
  const auto ties = [this, largest](std::uint32_t place) {
    return place < order_.size() && tie(order_[place].option.density, largest);
  };
  for (auto place = first_; ties(place);) {
    const Ranked& ranked = order_[place];
    if (!best.found || precedes(ranked.option, best.option)) {
      best = {ranked.option, loose_.size(), true};
    }
    place = ties(ranked.run_end) ? next_fitting(ranked.run_end) : order_.size();
  }
}

/// Represented tasks first, then the earlier arrival, then the smaller id.
bool GreedyPack::precedes(const Option& left, const Option& right) const {
  const auto key = [this](const RequestView& request) {
    return std::tuple(represented_[request.task] == 0, instance_.tasks[request.task].arrival);
  };
  const RequestView& a = instance_.waiting[left.request];
  const RequestView& b = instance_.waiting[right.request];
  const auto key_a = key(a);
  const auto key_b = key(b);
  return key_a != key_b ? key_a < key_b : *a.id < *b.id;
}

void GreedyPack::admit(const Choice& choice) {
  const Option option = choice.option;
  const RequestView& request = instance_.waiting[option.request];
  score_.admit(request, option.gain);
  admissions_.push_back({option.request, option.gain});
  room_ -= request.kv_tokens;
  --slots_;
  if (uncovered_[request.agent] != 0) {
    uncovered_[request.agent] = 0;
    if (--uncovered_count_ > 0) {
      order_.favour_or_not(request.agent);
    }
    uncovered_kv_ -= instance_.agents[request.agent].least_waiting_kv;
  }
  if (choice.loose < loose_.size()) {
    loose_[choice.loose] = loose_.back();  // their order does not matter
    loose_.pop_back();
  } else {
    order_.close(option.request);
  }
  complete(request);
  ++represented_[request.task];
  if (instance_.tasks[request.task].waiting.size() > 1 &&
      !in_turn()) {  // else there are no others, or they wait for their turn
    loosen_task(request.task);
  }
}

/// New marginals for the other options of a task: they leave their order. What does not fit will not fit later.
void GreedyPack::loosen_task(std::uint32_t task) {
  const Range range = instance_.tasks[task].waiting;
  const double before = path_before_each(instance_.tasks[task]);
  for (Option& option : loose_) {
    if (instance_.waiting[option.request].task == task && fits(instance_.waiting[option.request])) {
      option = option_of(option.request, before);
    }
  }
  for (auto at = range.begin; at < range.end; ++at) {
    const std::uint32_t request = instance_.waiting_of_tasks[at];
    if (order_.close(request) && fits(instance_.waiting[request])) {
      loose_.push_back(option_of(request, before));
    }
  }
}

/// What is admitted so far is an allocation if each agent has a request.
void GreedyPack::emit() {
  if (uncovered_count_ == 0) {
    const Terms& terms = score_.terms();
    emissions_.push_back({static_cast<std::uint32_t>(admissions_.size()), terms.score(), terms.admit, terms.move});
    highest_ = std::max(highest_, emissions_.back().score);
  }
}

/// The highest score emitted; of those that tie with it, the fullest.
void GreedyPack::choose_emission(Allocation& out) const {
  if (emissions_.empty()) {
    return;
  }
  const auto best = std::find_if(emissions_.rbegin(), emissions_.rend(),
                                 [this](const Emission& emission) { return tie(emission.score, highest_); });
  out.feasible = true;
  out.score = best->score;
  out.admitted = best->admitted;
  out.terms = score_.terms();
  out.terms.admit = best->admit;
  out.terms.move = best->move;
}

double GreedyPack::density_left() const {
  constexpr auto kAny = std::numeric_limits<std::int64_t>::max();
  double densest = 0.0;
  for (auto place = order_.next(0, kAny); place < order_.size(); place = order_.next(place + 1, kAny)) {
    densest = std::max(densest, order_[place].option.density);
    if (!in_turn()) {
      break;  // it comes first
    }
  }
  for (const Option& option : loose_) {
    densest = std::max(densest, option.density);
  }
  return densest;
}

double GreedyPack::density_after(std::int64_t tokens) const noexcept {
  for (const Ranked& ranked : order_.all()) {
    tokens -= ranked.kv_tokens;
    if (tokens < 0) {
      return std::max(ranked.option.density, 0.0);
    }
  }
  return 0.0;
}

double GreedyPack::gain_after(std::uint32_t request, std::uint32_t admitted) {
  clear_tasks();
  undo_preempted();
  for (std::uint32_t at = 0; at < admitted; ++at) {
    complete(instance_.waiting[admissions_[at].request]);
  }
  return option_of(request).gain;
}

std::int64_t GreedyPack::room_after(std::uint32_t admitted) const {
  std::int64_t room = first_room_;
  for (std::uint32_t at = 0; at < admitted; ++at) {
    room -= instance_.waiting[admissions_[at].request].kv_tokens;
  }
  return room;
}

}  // namespace topas::detail
