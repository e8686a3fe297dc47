#include "prefix_search.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
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

PrefixSearch::PrefixSearch(const Instance& instance, GreedyPack& pack, Visitor visit)
    : instance_(instance), pack_(pack), visit_(std::move(visit)) {}

std::optional<PrefixSet> PrefixSearch::run() {
  if (std::cmp_less_equal(instance_.agents.size(), instance_.config->enumerate_max_agents)) {
    enumerate();
  } else {
    search_greedily();
  }
  return shortlist_.empty() ? std::nullopt : std::optional(shortlist_.choose());
}

/// Phi of a set: the best score emitted for it, -infinity when it is infeasible.
double PrefixSearch::evaluate(std::span<const std::uint32_t> members) {
  ++evaluated_;
  const Allocation allocation = pack_.pack(members);
  shortlist_.offer(members, allocation);
  if (visit_ && allocation.feasible) {
    visit_(members, allocation);
  }
  return allocation.feasible ? allocation.score : kInfeasible;
}

void PrefixSearch::enumerate() {
  const auto count = static_cast<std::uint32_t>(instance_.agents.size());
  for (std::uint64_t subset = 0; subset < (std::uint64_t{1} << count); ++subset) {
    trial_.clear();
    for (std::uint32_t agent = 0; agent < count; ++agent) {
      if (((subset >> agent) & 1U) != 0) {
        trial_.push_back(agent);
      }
    }
    evaluate(trial_);
  }
}

void PrefixSearch::search_greedily() {
  PrefixSet start;
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    if (instance_.agents[agent].resident) {
      start.push_back(agent);
    }
  }
  Climbed reached = climb(start);
  if (reached.value == kInfeasible) {
    reached = climb({});
  }
  repair(start);
  if (reached.set != start) {
    repair(reached.set);
  }
}

/// Single additions while one improves; at the first stall the best pair, once, and single additions again.
PrefixSearch::Climbed PrefixSearch::climb(const PrefixSet& start) {
  Climbed at{start, evaluate(start)};
  while (add_best(at, singles(at.set))) {
  }
  if (add_best(at, pairs(at.set))) {
    while (add_best(at, singles(at.set))) {
    }
  }
  return at;
}

/// Makes the addition of highest Phi, the first of those that tie, if it improves.
bool PrefixSearch::add_best(Climbed& from, std::span<const Addition> additions) {
  std::vector<double> values;
  values.reserve(additions.size());
  for (const Addition& addition : additions) {
    extend(from.set, addition);
    values.push_back(evaluate(trial_));
  }
  const auto highest = std::max_element(values.begin(), values.end());
  if (highest == values.end() || !beats(*highest, from.value)) {
    return false;
  }
  const auto chosen = std::find_if(values.begin(), values.end(), [&](double value) { return tie(value, *highest); });
  from.value = *chosen;
  extend(from.set, additions[static_cast<std::size_t>(chosen - values.begin())]);
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

std::vector<PrefixSearch::Addition> PrefixSearch::singles(const PrefixSet& set) const {
  std::vector<Addition> out;
  for (const auto agent : outside(set)) {
    out.push_back({agent, agent});
  }
  return out;
}

std::vector<PrefixSearch::Addition> PrefixSearch::pairs(const PrefixSet& set) const {
  std::vector<Addition> out;
  const PrefixSet candidates = outside(set);
  for (std::size_t first = 0; first < candidates.size(); ++first) {
    for (std::size_t second = first + 1; second < candidates.size(); ++second) {
      out.push_back({candidates[first], candidates[second]});
    }
  }
  return out;
}

PrefixSet PrefixSearch::outside(const PrefixSet& set) const {
  PrefixSet out;
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    if (!std::binary_search(set.begin(), set.end(), agent)) {
      out.push_back(agent);
    }
  }
  return out;
}

/// Single drops and single swaps.
void PrefixSearch::repair(const PrefixSet& set) {
  const PrefixSet candidates = outside(set);
  PrefixSet rest;
  for (const auto agent : set) {
    rest.clear();
    std::copy_if(set.begin(), set.end(), std::back_inserter(rest), [agent](auto other) { return other != agent; });
    evaluate(rest);
    for (const auto other : candidates) {
      trial_ = rest;
      insert(trial_, other);
      evaluate(trial_);
    }
  }
}

}  // namespace topas::detail
