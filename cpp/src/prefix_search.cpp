#include "prefix_search.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "tie.hpp"

namespace topas::detail {

namespace {

constexpr double kInfeasible = -std::numeric_limits<double>::infinity();
constexpr std::uint64_t kWalksPerEvaluation = 16;  // all the way to the end they cost about as much

/// Two agents as a key, in lexicographic order.
std::uint64_t pair_of(std::uint32_t first, std::uint32_t second) noexcept {
  return (std::uint64_t{first} << 32U) | second;
}
std::uint32_t first_of(std::uint64_t pair) noexcept { return static_cast<std::uint32_t>(pair >> 32U); }
std::uint32_t second_of(std::uint64_t pair) noexcept { return static_cast<std::uint32_t>(pair); }

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
    : instance_(instance),
      pack_(pack),
      visit_(std::move(visit)),
      start_(resident_agents(instance)),
      started_(pack.pack(start_)),
      bound_(instance, pack, density(instance, pack, started_)) {
  for (const auto agent : start_) {
    start_bits_ |= agent < 64 ? std::uint64_t{1} << agent : 0;
  }
}

PrefixSet PrefixSearch::resident_agents(const Instance& instance) {
  PrefixSet out;
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    if (instance.agents[agent].resident) {
      out.push_back(agent);
    }
  }
  return out;
}

PrefixSet PrefixSearch::firm_agents(const Instance& instance) {
  PrefixSet out;
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    if (instance.agents[agent].firm) {
      out.push_back(agent);
    }
  }
  return out;
}

/// What the last token of room gains: in the present set, just packed, or about, where the best requests of all agents
/// take half of the memory.
double PrefixSearch::density(const Instance& instance, const GreedyPack& pack, const Allocation& started) {
  return started.feasible && !started.empty() ? pack.density_left()
                                              : pack.density_after(instance.config->kv_capacity_tokens / 2);
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
double PrefixSearch::evaluate(std::span<const std::uint32_t> members) { return offer(members, pack_.pack(members)); }

double PrefixSearch::offer(std::span<const std::uint32_t> members, const Allocation& allocation) {
  ++evaluated_;
  shortlist_.offer(members, allocation);
  if (visit_ && allocation.feasible) {
    visit_(members, allocation);
  }
  return allocation.feasible ? allocation.score : kInfeasible;
}

bool PrefixSearch::is_needless(double upper, double bar) const { return !visit_ && upper < bar; }

/// Whether the budget is used up; the first feasible set is evaluated in any case.
bool PrefixSearch::is_spent() const {
  const auto budget = static_cast<std::uint64_t>(instance_.config->max_evaluations);
  return !visit_ && budget > 0 && evaluated_ >= budget && !shortlist_.empty();
}

/// Lists a set that is feasible and may score `bar`.
void PrefixSearch::list(std::uint64_t key, const Sums& sums, double bar) {
  if (!bound_.feasible(sums)) {
    return;
  }
  const double upper = bound_.upper(sums);
  if (is_needless(upper, bar)) {
    ++pruned_;
    return;
  }
  listed_.push_back({key, upper, kInfeasible});
}

/// Makes the listed sets a heap, that of the highest bound first; where there are many, by the tighter bound, which may
/// leave some below `bar`, or below what it tells that one of them scores.
void PrefixSearch::rank_listed(const PrefixSet& base, Toggle toggle, double bar) {
  if (!visit_ && listed_.size() > bound_.few() && leave_what_can_be_foretold() > 0) {
    bound_.start_from(base);
    for (Listed& listed : listed_) {
      (this->*toggle)(listed.key);
      const SetBound::Told told = bound_.tighter(toggled_, bar);
      listed.upper = std::min(listed.upper, told.upper);
      bar = std::max(bar, told.lower);
    }
    pruned_ += std::erase_if(listed_, [bar](const Listed& listed) { return listed.upper < bar; });
  }
  std::make_heap(listed_.begin(), listed_.end(), Listed::comes_later);
}

/// With a budget, walks are counted too: at most half of what is left of them goes to the listed sets, to those of the
/// highest bounds, and the others are dropped. How many are listed then; 0: no walk is left, and the bounds must do.
std::size_t PrefixSearch::leave_what_can_be_foretold() {
  if (instance_.config->max_evaluations == 0 || !bound_.foretells()) {
    return listed_.size();
  }
  const auto most = kWalksPerEvaluation * static_cast<std::uint64_t>(instance_.config->max_evaluations);
  const auto share = static_cast<std::size_t>((most - walked_ + 1) / 2);
  if (share > 0 && listed_.size() > share) {
    std::nth_element(listed_.begin(), listed_.begin() + static_cast<std::ptrdiff_t>(share), listed_.end(),
                     [](const Listed& a, const Listed& b) { return Listed::comes_later(b, a); });
    pruned_ += listed_.size() - share;
    listed_.resize(share);
  }
  const std::size_t walks = std::min(share, listed_.size());
  walked_ += walks;
  return walks;
}

/// The set of the highest bound among those `left` in the heap, which it leaves.
PrefixSearch::Listed& PrefixSearch::next_listed(std::size_t left) {
  const auto end = listed_.begin() + static_cast<std::ptrdiff_t>(left);
  std::pop_heap(listed_.begin(), end, Listed::comes_later);
  return *(end - 1);
}

/// The set of a key, in trial_.
void PrefixSearch::form(const PrefixSet& base, Toggle toggle, std::uint64_t key) {
  (this->*toggle)(key);
  trial_ = base;
  for (const auto agent : toggled_) {
    const auto at = std::lower_bound(trial_.begin(), trial_.end(), agent);
    if (at != trial_.end() && *at == agent) {
      trial_.erase(at);
    } else {
      trial_.insert(at, agent);
    }
  }
}

/// Evaluates the listed sets that may be chosen.
void PrefixSearch::evaluate_listed(const PrefixSet& base, Toggle toggle) {
  rank_listed(base, toggle, shortlist_.bar());
  for (auto left = listed_.size(); left > 0; --left) {
    if (is_spent() || is_needless(listed_.front().upper, shortlist_.bar())) {
      pruned_ += left;
      return;
    }
    form(base, toggle, next_listed(left).key);
    evaluate(trial_);
  }
}

/// Every subset; the present one first, since a good one leaves little to do.
void PrefixSearch::enumerate() {
  if (bound_.feasible(bound_.of(start_))) {
    offer(start_, started_);
  }
  listed_.clear();
  list_subsets(0, 0, {});
  evaluate_listed(start_, &PrefixSearch::toggle_to_subset);
}

/// The subsets that agree with `subset` on the agents before `agent`; no deeper than enumerate_max_agents.
// NOLINTNEXTLINE(misc-no-recursion)
void PrefixSearch::list_subsets(std::uint32_t agent, std::uint64_t subset, const Sums& sums) {
  if (bound_.overflows(sums)) {
    return;
  }
  if (agent == instance_.agents.size()) {
    if (subset != start_bits_) {
      list(subset, sums, shortlist_.bar());
    }
    return;
  }
  list_subsets(agent + 1, subset, sums);
  Sums larger = sums;
  larger += bound_.of(agent);
  list_subsets(agent + 1, subset | std::uint64_t{1} << agent, larger);
}

void PrefixSearch::toggle_to_subset(std::uint64_t subset) {
  toggled_.clear();
  for (auto changed = subset ^ start_bits_; changed != 0; changed &= changed - 1) {
    toggled_.push_back(static_cast<std::uint32_t>(std::countr_zero(changed)));
  }
}

void PrefixSearch::search_greedily() {
  Climbed reached = climb(start_);
  if (reached.value == kInfeasible) {
    reached = climb(firm_agents(instance_));
  }
  repair(start_);
  if (reached.set != start_) {
    repair(reached.set);
  }
}

/// Single additions while one improves; at the first stall the best pair, once, and single additions again.
PrefixSearch::Climbed PrefixSearch::climb(const PrefixSet& start) {
  Climbed at{start, bound_.of(start), kInfeasible};
  if (bound_.feasible(at.sums) && !is_spent()) {
    at.value = start == start_ ? offer(start_, started_) : evaluate(start);
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

/// A single addition is a pair of the same agent.
void PrefixSearch::list_singles(const Climbed& from) {
  listed_.clear();
  list_outside(from.set);
  for (const auto agent : outside_) {
    Sums sums = from.sums;
    sums += bound_.of(agent);
    list(pair_of(agent, agent), sums, std::min(from.value, shortlist_.bar()));
  }
}

void PrefixSearch::list_pairs(const Climbed& from) {
  listed_.clear();
  list_outside(from.set);
  for (std::size_t first = 0; first < outside_.size(); ++first) {
    Sums with_first = from.sums;
    with_first += bound_.of(outside_[first]);
    for (std::size_t second = first + 1; second < outside_.size(); ++second) {
      Sums sums = with_first;
      sums += bound_.of(outside_[second]);
      list(pair_of(outside_[first], outside_[second]), sums, std::min(from.value, shortlist_.bar()));
    }
  }
}

void PrefixSearch::toggle_pair(std::uint64_t pair) {
  const std::uint32_t first = first_of(pair);
  const std::uint32_t second = second_of(pair);
  toggled_.assign({std::min(first, second), std::max(first, second)});
  if (first == second) {
    toggled_.pop_back();
  }
}

/// Makes the listed addition of highest Phi, the first of those that tie, if it improves.
bool PrefixSearch::add_best(Climbed& from) {
  rank_listed(from.set, &PrefixSearch::toggle_pair, std::min(from.value, shortlist_.bar()));
  double highest = kInfeasible;
  auto left = listed_.size();
  for (; left > 0; --left) {
    const double bar = std::min(std::max(from.value, highest), shortlist_.bar());
    if (is_spent() || is_needless(listed_.front().upper, bar)) {
      pruned_ += left;
      break;
    }
    Listed& listed = next_listed(left);
    form(from.set, &PrefixSearch::toggle_pair, listed.key);
    listed.value = evaluate(trial_);
    highest = std::max(highest, listed.value);
  }
  listed_.erase(listed_.begin(), listed_.begin() + static_cast<std::ptrdiff_t>(left));
  if (!beats(highest, from.value)) {
    return false;
  }
  const Listed* chosen = nullptr;
  for (const Listed& listed : listed_) {
    if (tie(listed.value, highest) && (chosen == nullptr || listed.key < chosen->key)) {
      chosen = &listed;
    }
  }
  form(from.set, &PrefixSearch::toggle_pair, chosen->key);
  from.set = trial_;
  from.sums = bound_.of(trial_);
  from.value = chosen->value;
  return true;
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

/// Single drops and single swaps; a drop is a swap with the agent itself.
void PrefixSearch::repair(const PrefixSet& set) {
  listed_.clear();
  list_outside(set);
  const Sums all = bound_.of(set);
  for (const auto agent : set) {
    Sums without = all;
    without -= bound_.of(agent);
    list(pair_of(agent, agent), without, shortlist_.bar());
    for (const auto other : outside_) {
      Sums swapped = without;
      swapped += bound_.of(other);
      list(pair_of(agent, other), swapped, shortlist_.bar());
    }
  }
  evaluate_listed(set, &PrefixSearch::toggle_pair);
}

}  // namespace topas::detail
