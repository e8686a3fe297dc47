#include "set_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace topas::detail {

namespace {

constexpr double kSlack = 1e-9;      // of the score: far above what ties
constexpr double kRounding = 1e-12;  // of all summands
// What counting jointly costs, about: sets of siblings that take as long as packing a prefix set, and outcomes of a
// sibling that take as long as a set of siblings.
constexpr std::size_t kSetsPerPack = 128;
constexpr std::size_t kOutcomesPerSet = 96;

}  // namespace

SetBound::SetBound(const Instance& instance, const GreedyPack& pack, double density)
    : instance_(instance),
      pack_(pack),
      capacity_(instance.config->kv_capacity_tokens),
      prices_(choose_prices(instance, pack, density)),
      moves_are_told_(instance.config->move_model == MoveModel::once &&
                      std::all_of(instance.agents.begin(), instance.agents.end(),
                                  [](const AgentView& agent) { return agent.resident || agent.running.size() == 0; })),
      apart_(instance.agents.size(), Worth{}) {
  agents_.reserve(instance.agents.size());
  for (const AgentView& agent : instance.agents) {
    agents_.push_back(sums_of(agent));
    preempted_ += agent.redo + agent.revoke;
  }
  for (const auto task : instance.waiting_tasks) {
    add_worth(task);
  }
  for (const Sums& sums : agents_) {
    size_ += sums.fixed + *std::max_element(sums.worth.begin(), sums.worth.end());
  }
}

/// All of an agent but its worth.
SetBound::Sums SetBound::sums_of(const AgentView& agent) const noexcept {
  Sums sums;
  const bool covered = agent.running.size() > 0;
  const std::int64_t least = std::min(agent.least_waiting_kv, capacity_ + 1);  // infeasible in any case
  sums.tokens = agent.prefix_tokens + agent.running_kv;
  sums.cover_tokens = covered ? 0 : least;
  sums.kept = agent.running.size();
  sums.uncovered = covered ? 0 : 1;
  sums.firm = agent.firm ? 1 : 0;
  sums.incoming = agent.resident || covered ? 0 : 1;
  sums.moved_tokens = agent.resident ? -agent.prefix_tokens : sums.incoming * agent.prefix_tokens;
  sums.fixed = agent.reuse + agent.redo + agent.revoke;
  return sums;
}

/// What the waiting requests of a task are worth, agent by agent.
void SetBound::add_worth(std::uint32_t task) {
  const TaskView& view = instance_.tasks[task];
  const bool jointly = JointWorth::counts(pack_, view);
  double sum = 0.0;
  for (auto at = view.waiting.begin; at < view.waiting.end;) {
    const std::uint32_t agent = instance_.waiting[instance_.waiting_of_tasks[at]].agent;
    const auto begin = at;
    while (at < view.waiting.end && instance_.waiting[instance_.waiting_of_tasks[at]].agent == agent) {
      ++at;
    }
    const Worth worth = worth_of({begin, at}, pack_.most_gain_of(task));
    for (std::size_t price = 0; price < kPrices; ++price) {
      agents_[agent].worth[price] += worth[price];
      apart_[agent][price] += jointly ? 0.0 : worth[price];
      sum += worth[price];
    }
  }
  if (jointly && sum > 0.0) {
    jointly_.push_back(task);
    const std::size_t siblings = view.waiting.size() + (instance_.config->count_running ? view.running.size() : 0);
    joint_work_ += (std::size_t{1} << siblings) + view.outcomes * siblings / kOutcomesPerSet;
  }
}

/// What waiting requests of one task and agent are worth: together they gain no more than all of the task's.
Worth SetBound::worth_of(Range waiting, double together) const noexcept {
  Worth out{};
  auto least = std::numeric_limits<std::int64_t>::max();
  for (auto at = waiting.begin; at < waiting.end; ++at) {
    const std::uint32_t request = instance_.waiting_of_tasks[at];
    const std::int64_t tokens = instance_.waiting[request].kv_tokens;
    least = std::min(least, tokens);
    for (std::size_t price = 0; price < kPrices; ++price) {
      out[price] += std::max(prices_.left_of(price, pack_.most_gain(request), static_cast<double>(tokens)), 0.0);
    }
  }
  for (std::size_t price = 0; price < kPrices; ++price) {
    const double most = std::max(prices_.left_of(price, together, static_cast<double>(least)), 0.0);
    out[price] = std::min(out[price], most);
  }
  return out;
}

SetBound::Sums SetBound::of(std::span<const std::uint32_t> members) const noexcept {
  Sums sums;
  for (const auto member : members) {
    sums += agents_[member];
  }
  return sums;
}

bool SetBound::feasible(const Sums& set) const noexcept {
  const std::int64_t cap = instance_.config->action_cap;
  const std::int64_t slots = instance_.slots_beside(set.kept);
  return !overflows(set) && slots >= set.uncovered && set.firm == instance_.firm_agents &&
         (cap == 0 || std::ssize(instance_.running) - set.kept <= cap);
}

double SetBound::upper(const Sums& set) const noexcept { return upper(set, set.worth, size_); }

std::size_t SetBound::few() const noexcept { return joint_ || walk_ ? 1 : 4 + joint_work_ / kSetsPerPack; }

void SetBound::start_from(std::span<const std::uint32_t> members) {
  base_ = of(members);
  inside_.assign(agents_.size(), 0);
  for (const auto member : members) {
    inside_[member] = 1;
  }
  if (foretells()) {
    if (!walk_) {
      walk_.emplace(instance_, pack_.order());
    }
    walk_->start_from(members);
    return;
  }
  if (!joint_) {
    joint_ = std::make_unique<JointWorth>(instance_, pack_, prices_, jointly_, std::move(apart_), scratch_);
  }
  joint_->start_from(members);
}

SetBound::Told SetBound::tighter(std::span<const std::uint32_t> toggled, double bar) {
  Sums set = base_;
  for (const auto agent : toggled) {
    if (inside_[agent] != 0) {
      set -= agents_[agent];
    } else {
      set += agents_[agent];
    }
  }
  return walk_ ? walked(*walk_, set, toggled, bar)
               : Told{upper(set, joint_->with_toggled(toggled), size_ + joint_->size())};
}

SetBound::Told SetBound::walked(ArrivalWalk& walk, const Sums& set, std::span<const std::uint32_t> toggled,
                                double bar) const {
  const ArrivalWalk::Room room{capacity_ - set.tokens - set.cover_tokens,
                               instance_.slots_beside(set.kept) - set.uncovered, set.uncovered};
  const double move = moving(set);
  const double others = set.fixed - preempted_ - move;
  // What gains less is bounded below the bar: its gains, one of the summands, are no more than all of these.
  const double summands = std::abs(bar) + std::abs(set.fixed) + preempted_ + move;
  const double enough = bar - others - kSlack * (1.0 + 2.0 * summands) - kRounding * size_;
  const auto gains = walk.gain_with_toggled(toggled, room, enough);
  if (!gains) {
    return {-std::numeric_limits<double>::infinity()};
  }
  Told told{with_charges(set, *gains, size_)};
  const bool leaves_something = set.kept + set.uncovered > 0;  // or it counts only while there is no other
  if (leaves_something && (moves_are_told_ || instance_.config->move_weight == 0.0)) {
    told.lower = 2.0 * (*gains + others) - told.upper;  // it is as far above what packing finds, at most, as below
  }
  return told;
}

double SetBound::upper(const Sums& set, const Worth& worth, double size) const noexcept {
  const auto room = static_cast<double>(capacity_ - set.tokens);
  const std::int64_t slots = instance_.slots_beside(set.kept);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t at = 0; at < kPrices; ++at) {
    const double all_slots = prices_.slot[at] == 0.0 ? 0.0 : prices_.slot[at] * static_cast<double>(slots);
    least = std::min(least, worth[at] + prices_.token[at] * room + all_slots);
  }
  return with_charges(set, least, size);
}

/// What moving prefixes costs at least; all of it where `moves_are_told_`.
double SetBound::moving(const Sums& set) const noexcept {
  const bool once = instance_.config->move_model == MoveModel::once;
  if (!once && set.incoming == 0) {
    return 0.0;
  }
  // One is admitted for each that comes in, so at least one task waits.
  const std::int64_t idle = once ? instance_.idle_resident_tokens : 0;
  const auto moved = static_cast<double>(instance_.resident_tokens - idle + set.moved_tokens);
  return instance_.config->move_weight * instance_.seconds_per_token_moved() * moved;
}

/// The score with so much gained, at least.
double SetBound::with_charges(const Sums& set, double gains, double size) const noexcept {
  const double move = moving(set);
  const double summands = std::abs(gains) + std::abs(set.fixed) + preempted_ + move;
  const double bound = gains + set.fixed - preempted_ - move + kSlack * (1.0 + summands) + kRounding * size;
  return std::isnan(bound) ? std::numeric_limits<double>::infinity() : bound;
}

}  // namespace topas::detail
