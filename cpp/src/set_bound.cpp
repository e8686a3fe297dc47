#include "set_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace topas::detail {

namespace {

constexpr double kSlack = 1e-9;      // of the score: far above what ties
constexpr double kRounding = 1e-12;  // of all summands

}  // namespace

SetBound::Sums& SetBound::Sums::operator+=(const Sums& other) noexcept {
  tokens += other.tokens;
  cover_tokens += other.cover_tokens;
  kept += other.kept;
  uncovered += other.uncovered;
  incoming += other.incoming;
  moved_tokens += other.moved_tokens;
  fixed += other.fixed;
  for (std::size_t at = 0; at < kPrices; ++at) {
    worth[at] += other.worth[at];
  }
  return *this;
}

SetBound::Sums& SetBound::Sums::operator-=(const Sums& other) noexcept {
  tokens -= other.tokens;
  cover_tokens -= other.cover_tokens;
  kept -= other.kept;
  uncovered -= other.uncovered;
  incoming -= other.incoming;
  moved_tokens -= other.moved_tokens;
  fixed -= other.fixed;
  for (std::size_t at = 0; at < kPrices; ++at) {
    worth[at] -= other.worth[at];
  }
  return *this;
}

SetBound::SetBound(const Instance& instance, const GreedyPack& pack)
    : instance_(instance),
      pack_(pack),
      capacity_(instance.config->kv_capacity_tokens),
      prices_(choose_prices(instance, pack)) {
  agents_.reserve(instance.agents.size());
  for (const AgentView& agent : instance.agents) {
    Sums& sums = agents_.emplace_back();
    const bool covered = agent.running.size() > 0;
    const std::int64_t least = std::min(agent.least_waiting_kv, capacity_ + 1);  // infeasible in any case
    sums.tokens = agent.prefix_tokens + agent.running_kv;
    sums.cover_tokens = covered ? 0 : least;
    sums.kept = agent.running.size();
    sums.uncovered = covered ? 0 : 1;
    sums.incoming = agent.resident || covered ? 0 : 1;
    sums.moved_tokens = agent.resident ? -agent.prefix_tokens : sums.incoming * agent.prefix_tokens;
    sums.fixed = agent.reuse + agent.redo + agent.revoke;
    preempted_ += agent.redo + agent.revoke;
  }
  add_worth();
  for (const Sums& sums : agents_) {
    size_ += sums.fixed + *std::max_element(sums.worth.begin(), sums.worth.end());
  }
}

/// What the waiting requests of each agent are worth at each price.
void SetBound::add_worth() {
  for (std::uint32_t at = 0; at < instance_.waiting.size(); ++at) {
    const RequestView& request = instance_.waiting[at];
    if (pack_.has_siblings(instance_.tasks[request.task])) {
      continue;
    }
    const double gain = pack_.most_gain(at);
    const auto tokens = static_cast<double>(request.kv_tokens);
    auto& worth = agents_[request.agent].worth;
    for (std::size_t price = 0; price < kPrices; ++price) {
      worth[price] += std::max(gain - prices_[price].token * tokens - prices_[price].slot, 0.0);
    }
  }
  for (const auto task : instance_.waiting_tasks) {
    if (pack_.has_siblings(instance_.tasks[task])) {
      add_siblings(task);
    }
  }
}

/// Requests of one task together gain no more than all of them do.
void SetBound::add_siblings(std::uint32_t task) {
  const Range range = instance_.tasks[task].waiting;
  const double together = pack_.most_gain_of(task);
  for (auto at = range.begin; at < range.end;) {
    const std::uint32_t agent = instance_.waiting[instance_.waiting_of_tasks[at]].agent;
    std::array<double, kPrices> alone{};
    auto least = std::numeric_limits<std::int64_t>::max();
    for (; at < range.end && instance_.waiting[instance_.waiting_of_tasks[at]].agent == agent; ++at) {
      const std::uint32_t request = instance_.waiting_of_tasks[at];
      const std::int64_t tokens = instance_.waiting[request].kv_tokens;
      least = std::min(least, tokens);
      for (std::size_t price = 0; price < kPrices; ++price) {
        const double taken = prices_[price].token * static_cast<double>(tokens) + prices_[price].slot;
        alone[price] += std::max(pack_.most_gain(request) - taken, 0.0);
      }
    }
    for (std::size_t price = 0; price < kPrices; ++price) {
      const double taken = prices_[price].token * static_cast<double>(least) + prices_[price].slot;
      agents_[agent].worth[price] += std::min(alone[price], std::max(together - taken, 0.0));
    }
  }
}

bool SetBound::feasible(const Sums& set) const noexcept {
  const std::int64_t cap = instance_.config->action_cap;
  const std::int64_t slots = instance_.slots_beside(set.kept);
  return !overflows(set) && slots >= set.uncovered && (cap == 0 || std::ssize(instance_.running) - set.kept <= cap);
}

double SetBound::upper(const Sums& set) const noexcept { return upper(set, set.worth, size_); }

std::size_t SetBound::few() const noexcept { return joint_.has_value() ? 1 : 4 + instance_.waiting_tasks.size(); }

void SetBound::start_from(std::span<const std::uint32_t> members) {
  if (!joint_.has_value()) {
    joint_.emplace(instance_, pack_, prices_, scratch_);
  }
  joint_->start_from(members);
}

double SetBound::tighter_upper(std::span<const std::uint32_t> toggled, const Sums& set) {
  return upper(set, joint_->with_toggled(toggled), size_ + joint_->size());
}

double SetBound::upper(const Sums& set, const Worth& worth, double size) const noexcept {
  const auto room = static_cast<double>(capacity_ - set.tokens);
  const std::int64_t slots = instance_.slots_beside(set.kept);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t at = 0; at < kPrices; ++at) {
    const double slot_price = prices_[at].slot == 0.0 ? 0.0 : prices_[at].slot * static_cast<double>(slots);
    least = std::min(least, worth[at] + prices_[at].token * room + slot_price);
  }
  const bool once = instance_.config->move_model == MoveModel::once;
  double move = 0.0;
  if (once || set.incoming > 0) {  // one is admitted for each that comes in, so at least one task waits
    const std::int64_t idle = once ? instance_.idle_resident_tokens : 0;
    const auto moved = static_cast<double>(instance_.resident_tokens - idle + set.moved_tokens);
    move = instance_.config->move_weight * instance_.seconds_per_token_moved() * moved;
  }
  const double summands = std::abs(least) + std::abs(set.fixed) + preempted_ + move;
  const double bound = least + set.fixed - preempted_ - move + kSlack * (1.0 + summands) + kRounding * size;
  return std::isnan(bound) ? std::numeric_limits<double>::infinity() : bound;
}

}  // namespace topas::detail
