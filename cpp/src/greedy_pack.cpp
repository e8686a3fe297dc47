#include "greedy_pack.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "tie.hpp"

namespace topas::detail {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 2;
constexpr std::uint32_t kNoOption = std::numeric_limits<std::uint32_t>::max();

void set_bit(std::span<std::uint64_t> set, std::uint32_t bit, bool value) noexcept {
  const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
  set[bit / 64] = value ? set[bit / 64] | mask : set[bit / 64] & ~mask;
}

}  // namespace

GreedyPack::GreedyPack(const Instance& instance)
    : instance_(instance),
      score_(instance),
      inside_(instance.agents.size(), 0),
      uncovered_(instance.agents.size(), 0),
      completions_(instance.words, 0),
      represented_(instance.tasks.size(), 0),
      option_at_(instance.waiting.size(), kNoOption) {}

Allocation GreedyPack::pack(std::span<const std::uint32_t> members) {
  Allocation out;
  admissions_.clear();
  if (!start(members, out)) {
    return out;
  }
  score_.start(members, inside_);
  reset_completions();
  collect_options(members);
  emissions_.clear();
  if (uncovered_count_ == 0) {
    emissions_.push_back({0, score_.terms()});
  }
  for (auto option = best_option(); option < options_.size(); option = best_option()) {
    admit(option);
    if (uncovered_count_ == 0) {
      emissions_.push_back({static_cast<std::uint32_t>(admissions_.size()), score_.terms()});
    }
  }
  choose_emission(out);
  return out;
}

/// Keeps and preempts, counts the room and the slots; false: the set is infeasible.
bool GreedyPack::start(std::span<const std::uint32_t> members, Allocation& out) {
  const Config& config = *instance_.config;
  std::fill(inside_.begin(), inside_.end(), 0);
  std::int64_t room = config.kv_capacity_tokens;
  for (const auto member : members) {
    const AgentView& agent = instance_.agents[member];
    inside_[member] = 1;
    room -= agent.prefix_tokens + agent.running_kv;
    out.kept += agent.running.size();
  }
  out.preempted = static_cast<std::uint32_t>(instance_.running.size()) - out.kept;
  if (room < 0 || (config.action_cap > 0 && std::cmp_greater(out.preempted, config.action_cap))) {
    return false;
  }
  std::int64_t slots = config.action_cap > 0 ? config.action_cap : kUnlimited;
  if (config.max_running_requests > 0) {
    slots = std::min(slots, config.max_running_requests - static_cast<std::int64_t>(out.kept));
  }
  room_ = first_room_ = room;
  slots_ = first_slots_ = slots;
  return slots >= 0 && cover(members);
}

/// Reserves a slot and the smallest reservation for each agent without a kept request.
bool GreedyPack::cover(std::span<const std::uint32_t> members) {
  std::fill(uncovered_.begin(), uncovered_.end(), 0);
  uncovered_count_ = 0;
  uncovered_kv_ = 0;
  for (const auto member : members) {
    const AgentView& agent = instance_.agents[member];
    if (agent.running.size() > 0) {
      continue;
    }
    if (agent.waiting.size() == 0 || agent.least_waiting_kv > room_) {
      return false;
    }
    uncovered_[member] = 1;
    ++uncovered_count_;
    uncovered_kv_ += agent.least_waiting_kv;
  }
  return uncovered_count_ <= slots_ && uncovered_kv_ <= room_;
}

void GreedyPack::reset_completions() {
  std::fill(completions_.begin(), completions_.end(), 0);
  std::fill(represented_.begin(), represented_.end(), 0);
  if (!instance_.config->count_running) {
    return;
  }
  for (const RequestView& request : instance_.running) {
    if (inside_[request.agent] != 0) {
      set_bit(completions(instance_.tasks[request.task]), request.bit, true);
    }
  }
}

void GreedyPack::collect_options(std::span<const std::uint32_t> members) {
  for (const Option& option : options_) {
    option_at_[option.request] = kNoOption;
  }
  options_.clear();
  for (const auto member : members) {
    const Range waiting = instance_.agents[member].waiting;
    for (auto request = waiting.begin; request < waiting.end; ++request) {
      option_at_[request] = static_cast<std::uint32_t>(options_.size());
      options_.push_back(option_of(request));
    }
  }
}

GreedyPack::Option GreedyPack::option_of(std::uint32_t request) {
  const RequestView& view = instance_.waiting[request];
  const TaskView& task = instance_.tasks[view.task];
  const auto set = completions(task);
  const double before = task.model->expected_path(set, scratch_);
  set_bit(set, view.bit, true);
  const double after = task.model->expected_path(set, scratch_);
  set_bit(set, view.bit, false);
  const double gain = task.age_factor * (before - after);
  return {request, gain, gain / static_cast<double>(view.kv_tokens)};
}

/// Whether room and slots left after the request still cover the other uncovered agents.
bool GreedyPack::fits(const RequestView& request) const noexcept {
  std::int64_t reserved_kv = uncovered_kv_;
  std::int64_t reserved_slots = uncovered_count_;
  if (uncovered_[request.agent] != 0) {
    reserved_kv -= instance_.agents[request.agent].least_waiting_kv;
    --reserved_slots;
  }
  return request.kv_tokens <= room_ - reserved_kv && 1 <= slots_ - reserved_slots;
}

/// The largest density among the options that fit, ties by precedes(); past the end: none fits.
std::size_t GreedyPack::best_option() const {
  double largest = -std::numeric_limits<double>::infinity();
  for (const Option& option : options_) {
    if (option.density > largest && fits(instance_.waiting[option.request])) {
      largest = option.density;
    }
  }
  std::size_t best = options_.size();
  for (std::size_t at = 0; at < options_.size(); ++at) {
    if (tie(options_[at].density, largest) && fits(instance_.waiting[options_[at].request]) &&
        (best == options_.size() || precedes(options_[at], options_[best]))) {
      best = at;
    }
  }
  return best;
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

void GreedyPack::admit(std::size_t at) {
  const Option option = options_[at];
  const RequestView& request = instance_.waiting[option.request];
  score_.admit(request, option.gain);
  admissions_.push_back({option.request, option.gain});
  room_ -= request.kv_tokens;
  --slots_;
  if (uncovered_[request.agent] != 0) {
    uncovered_[request.agent] = 0;
    --uncovered_count_;
    uncovered_kv_ -= instance_.agents[request.agent].least_waiting_kv;
  }
  options_[at] = options_.back();
  option_at_[options_[at].request] = static_cast<std::uint32_t>(at);
  options_.pop_back();
  option_at_[option.request] = kNoOption;
  set_bit(completions(instance_.tasks[request.task]), request.bit, true);
  ++represented_[request.task];
  refresh_task(request.task);
}

/// New marginals for the other options of a task.
void GreedyPack::refresh_task(std::uint32_t task) {
  const Range range = instance_.tasks[task].waiting;
  for (auto at = range.begin; at < range.end; ++at) {
    const std::uint32_t request = instance_.waiting_of_tasks[at];
    if (option_at_[request] != kNoOption) {
      options_[option_at_[request]] = option_of(request);
    }
  }
}

/// The highest score emitted; of those that tie with it, the fullest.
void GreedyPack::choose_emission(Allocation& out) const {
  if (emissions_.empty()) {
    return;
  }
  double highest = -std::numeric_limits<double>::infinity();
  for (const Emission& emission : emissions_) {
    highest = std::max(highest, emission.terms.score());
  }
  const auto best = std::find_if(emissions_.rbegin(), emissions_.rend(),
                                 [highest](const Emission& emission) { return tie(emission.terms.score(), highest); });
  out.feasible = true;
  out.score = best->terms.score();
  out.admitted = best->admitted;
  out.terms = best->terms;
}

double GreedyPack::gain_after(std::uint32_t request, std::uint32_t admitted) {
  reset_completions();
  for (std::uint32_t at = 0; at < admitted; ++at) {
    const RequestView& view = instance_.waiting[admissions_[at].request];
    set_bit(completions(instance_.tasks[view.task]), view.bit, true);
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
