#include "prefix_search.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "tie.hpp"

namespace topas::detail {

namespace {

constexpr double kInfeasible = -std::numeric_limits<double>::infinity();

void insert(PrefixSet& set, std::uint32_t agent) { set.insert(std::upper_bound(set.begin(), set.end(), agent), agent); }

}  // namespace

void Shortlist::offer(std::span<const std::uint32_t> members, const Allocation& allocation) {
  if (!allocation.feasible || (allocation.empty() && !only_empty_)) {
    return;
  }
  if (entries_.empty() || (only_empty_ && !allocation.empty())) {
    entries_.clear();
    highest_ = allocation.score;
    only_empty_ = allocation.empty();
  } else if (allocation.score > highest_) {
    keep_ties_of(allocation.score);
  } else if (!tie(allocation.score, highest_)) {
    return;
  }
  entries_.push_back({PrefixSet(members.begin(), members.end()), allocation});
}

void Shortlist::keep_ties_of(double highest) {
  highest_ = highest;
  std::erase_if(entries_, [highest](const Entry& entry) { return !tie(entry.allocation.score, highest); });
}

/// Fewer preemptions, then more admissions, then the lexicographically smaller set.
bool Shortlist::precedes(const Entry& left, const Entry& right) {
  const Allocation& a = left.allocation;
  const Allocation& b = right.allocation;
  if (a.preempted != b.preempted) {
    return a.preempted < b.preempted;
  }
  return a.admitted != b.admitted ? a.admitted > b.admitted : left.members < right.members;
}

const PrefixSet& Shortlist::choose() const {
  return std::min_element(entries_.begin(), entries_.end(), precedes)->members;
}

double Shortlist::bar() const noexcept { return only_empty_ ? kInfeasible : highest_; }

PrefixSearch::PrefixSearch(const Instance& instance, GreedyPack& pack, Visitor visit)
    : instance_(instance), pack_(pack), bound_(instance, pack), visit_(std::move(visit)) {
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    if (instance_.agents[agent].resident) {
      start_.push_back(agent);
    }
  }
}

std::optional<PrefixSet> PrefixSearch::run() {
  if (std::cmp_less_equal(instance_.agents.size(), instance_.config->enumerate_max_agents)) {
    enumerate();
  } else {
    search_greedily();
  }
  return shortlist_.empty() ? std::nullopt : std::optional(shortlist_.choose());
}

/// Phi of a feasible set: the best score emitted for it.
double PrefixSearch::evaluate(std::span<const std::uint32_t> members) {
  ++evaluated_;
  const Allocation allocation = pack_.pack(members);
  shortlist_.offer(members, allocation);
  if (visit_ && allocation.feasible) {
    visit_(members, allocation);
  }
  return allocation.feasible ? allocation.score : kInfeasible;
}

/// Evaluates a set if it may be chosen.
void PrefixSearch::consider(std::span<const std::uint32_t> members, const Sums& sums) {
  if (!bound_.feasible(sums)) {
    return;
  }
  if (is_spent() || is_needless(bound_.upper(sums), shortlist_.bar())) {
    ++pruned_;
    return;
  }
  evaluate(members);
}

bool PrefixSearch::is_needless(double upper, double bar) const { return !visit_ && upper < bar; }

/// Whether the budget is used up; the first feasible set is evaluated in any case.
bool PrefixSearch::is_spent() const {
  const auto budget = static_cast<std::uint64_t>(instance_.config->max_evaluations);
  return !visit_ && budget > 0 && evaluated_ >= budget && !shortlist_.empty();
}

PrefixSearch::Sums PrefixSearch::sums_of(std::span<const std::uint32_t> members) const {
  Sums sums;
  for (const auto member : members) {
    sums += bound_.of(member);
  }
  return sums;
}

/// Every subset; the present one first, since a good one leaves little to do.
void PrefixSearch::enumerate() {
  consider(start_, sums_of(start_));
  trial_.clear();
  enumerate(0, {});
}

/// The subsets that agree with trial_ on the agents before `agent`.
void PrefixSearch::enumerate(std::uint32_t agent, const Sums& sums) {
  if (bound_.overflows(sums)) {
    return;
  }
  if (agent == instance_.agents.size()) {
    if (trial_ != start_) {
      consider(trial_, sums);
    }
    return;
  }
  enumerate(agent + 1, sums);
  Sums larger = sums;
  larger += bound_.of(agent);
  trial_.push_back(agent);
  enumerate(agent + 1, larger);
  trial_.pop_back();
}

void PrefixSearch::search_greedily() {
  Climbed reached = climb(start_);
  if (reached.value == kInfeasible) {
    reached = climb({});
  }
  repair(start_);
  if (reached.set != start_) {
    repair(reached.set);
  }
}

/// Single additions while one improves; at the first stall the best pair, once, and single additions again.
PrefixSearch::Climbed PrefixSearch::climb(const PrefixSet& start) {
  Climbed at{start, sums_of(start), kInfeasible};
  if (bound_.feasible(at.sums) && !is_spent()) {
    at.value = evaluate(start);
  }
  const auto climb_singly = [this, &at] {
    do {
      list_singles(at);
    } while (add_best(at));
  };
  climb_singly();
  list_pairs(at);
  if (add_best(at)) {
    climb_singly();
  }
  return at;
}

void PrefixSearch::list_singles(const Climbed& from) {
  additions_.clear();
  list_outside(from.set);
  for (const auto agent : outside_) {
    list(from, {agent, agent});
  }
}

void PrefixSearch::list_pairs(const Climbed& from) {
  additions_.clear();
  list_outside(from.set);
  for (std::size_t first = 0; first < outside_.size(); ++first) {
    for (std::size_t second = first + 1; second < outside_.size(); ++second) {
      list(from, {outside_[first], outside_[second]});
    }
  }
}

/// Lists an addition that is feasible and may improve the set or be chosen.
void PrefixSearch::list(const Climbed& from, const Addition& addition) {
  const Sums sums = extended(from.sums, addition);
  if (!bound_.feasible(sums)) {
    return;
  }
  const double upper = bound_.upper(sums);
  if (is_needless(upper, std::min(from.value, shortlist_.bar()))) {
    ++pruned_;
    return;
  }
  additions_.push_back({addition.first, addition.second, upper, kInfeasible});
}

/// Makes the listed addition of highest Phi, the first of those that tie, if it improves. Those of the highest bounds
/// are tried first; what is bounded below the best so far need not be.
bool PrefixSearch::add_best(Climbed& from) {
  std::sort(additions_.begin(), additions_.end(), [](const Addition& a, const Addition& b) {
    return std::tuple(-a.upper, a.first, a.second) < std::tuple(-b.upper, b.first, b.second);
  });
  double highest = kInfeasible;
  for (auto at = additions_.begin(); at != additions_.end(); ++at) {
    const double bar = std::min(std::max(from.value, highest), shortlist_.bar());
    if (is_spent() || is_needless(at->upper, bar)) {
      pruned_ += static_cast<std::uint64_t>(additions_.end() - at);
      additions_.erase(at, additions_.end());
      break;
    }
    extend(from.set, *at);
    at->value = evaluate(trial_);
    highest = std::max(highest, at->value);
  }
  if (!beats(highest, from.value)) {
    return false;
  }
  const Addition* chosen = nullptr;
  for (const Addition& addition : additions_) {
    const bool first =
        chosen == nullptr || std::tie(addition.first, addition.second) < std::tie(chosen->first, chosen->second);
    if (tie(addition.value, highest) && first) {
      chosen = &addition;
    }
  }
  from.value = chosen->value;
  from.sums = extended(from.sums, *chosen);
  extend(from.set, *chosen);
  from.set = trial_;
  return true;
}

/// The set with the addition, in trial_.
void PrefixSearch::extend(const PrefixSet& set, const Addition& addition) {
  trial_ = set;
  insert(trial_, addition.first);
  if (addition.second != addition.first) {
    insert(trial_, addition.second);
  }
}

PrefixSearch::Sums PrefixSearch::extended(const Sums& sums, const Addition& addition) const {
  Sums out = sums;
  out += bound_.of(addition.first);
  if (addition.second != addition.first) {
    out += bound_.of(addition.second);
  }
  return out;
}

/// The agents that are not in the set, in outside_.
void PrefixSearch::list_outside(const PrefixSet& set) {
  outside_.clear();
  auto member = set.begin();
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    if (member != set.end() && *member == agent) {
      ++member;
    } else {
      outside_.push_back(agent);
    }
  }
}

/// Single drops and single swaps.
void PrefixSearch::repair(const PrefixSet& set) {
  list_outside(set);
  const Sums all = sums_of(set);
  PrefixSet rest;
  for (const auto agent : set) {
    rest.clear();
    std::copy_if(set.begin(), set.end(), std::back_inserter(rest), [agent](auto other) { return other != agent; });
    Sums sums = all;
    sums -= bound_.of(agent);
    consider(rest, sums);
    for (const auto other : outside_) {
      Sums swapped = sums;
      swapped += bound_.of(other);
      if (!bound_.feasible(swapped)) {
        continue;
      }
      trial_ = rest;
      insert(trial_, other);
      consider(trial_, swapped);
    }
  }
}

}  // namespace topas::detail
