#include "rollout.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "rollout_candidates.hpp"
#include "rollout_model.hpp"
#include "rollout_run.hpp"
#include "tie.hpp"

namespace topas::detail {

namespace {

constexpr std::array kBases{RolloutBase::strict, RolloutBase::arrival, RolloutBase::resident};
constexpr std::size_t kLeastPairs = 6;  // stay in the race

/// A candidate and the base policy that continues it.
struct Pair {
  std::size_t number = 0;
  std::size_t candidate = 0;
  RolloutBase base = RolloutBase::strict;
  double sum = 0.0;  ///< of its costs so far
};

/// All candidates under all base policies, scenario by scenario; those that are behind drop out.
class Race {
 public:
  Race(const RolloutModel& model, const std::vector<RolloutCandidate>& candidates, std::int64_t steps)
      : model_(model), run_(model), steps_left_(steps > 0 ? steps : std::numeric_limits<std::int64_t>::max()) {
    for (const auto& candidate : candidates) {
      moves_.push_back(move_of(candidate));
    }
    enter();
    costs_.resize(pairs_.size() * model.scenarios.size());
  }

  /// The candidate that is better than the base, the first one, by more than `margin` standard errors of the paired
  /// differences; 0: none.
  std::size_t winner(double margin);

 private:
  [[nodiscard]] RolloutMove move_of(const RolloutCandidate& candidate) const;
  void enter();
  void run_all();
  bool simulate();
  void drop(std::size_t staying);
  [[nodiscard]] bool is_better(const Pair& pair, const Pair& base, double margin) const;
  [[nodiscard]] std::span<const double> costs_of(const Pair& pair) const {
    return std::span(costs_).subspan(pair.number * model_.scenarios.size(), done_);
  }

  const RolloutModel& model_;
  RolloutRun run_;
  std::int64_t steps_left_;
  std::vector<RolloutMove> moves_;  // of each candidate
  std::vector<Pair> pairs_;         // by (candidate, base policy)
  std::vector<double> costs_;       // of each pair that entered, by scenario
  std::size_t done_ = 0;            // scenarios
};

RolloutMove Race::move_of(const RolloutCandidate& candidate) const {
  RolloutMove move;
  for (const auto at : candidate.admit) {
    move.admit.push_back(model_.waiting[at]);
  }
  for (const auto at : candidate.preempt) {
    move.preempt.push_back(model_.running[at]);
  }
  std::sort(move.preempt.begin(), move.preempt.end());
  return move;
}

/// The first scenario may take half of the steps: later candidates stay out where there are more.
void Race::enter() {
  const auto affordable = steps_left_ / 2 / std::max<std::int64_t>(model_.requests_in(0), 1);
  const auto most = std::max<std::int64_t>(affordable / static_cast<std::int64_t>(kBases.size()), 1);
  if (std::cmp_greater(moves_.size(), most)) {
    moves_.resize(static_cast<std::size_t>(most));
  }
  for (std::size_t candidate = 0; candidate < moves_.size(); ++candidate) {
    for (const auto base : kBases) {
      pairs_.push_back({pairs_.size(), candidate, base});
    }
  }
}

/// Simulate the pairs that are left, scenario by scenario, while the steps last.
void Race::run_all() {
  std::size_t staying = pairs_.size();
  while (done_ < model_.scenarios.size() && simulate()) {
    staying /= 2;
    if (done_ < model_.scenarios.size()) {
      drop(std::max(kLeastPairs, staying));
    }
  }
}

/// One more scenario, if there are steps for it.
bool Race::simulate() {
  const std::int64_t steps = model_.requests_in(done_) * static_cast<std::int64_t>(pairs_.size());
  if (steps > steps_left_) {
    return false;
  }
  steps_left_ -= steps;
  std::size_t taken = moves_.size();
  for (auto& pair : pairs_) {
    if (pair.candidate != taken) {
      taken = pair.candidate;
      run_.take(moves_[taken]);
    }
    const double cost = run_.cost(pair.base, done_);
    costs_[pair.number * model_.scenarios.size() + done_] = cost;
    pair.sum += cost;
  }
  ++done_;
  return true;
}

/// So many pairs with the least costs stay, and the best one of the base decision.
void Race::drop(std::size_t staying) {
  if (staying >= pairs_.size()) {
    return;
  }
  const auto cheaper = [](const Pair& a, const Pair& b) {
    return a.sum != b.sum ? a.sum < b.sum : a.number < b.number;
  };
  std::sort(pairs_.begin(), pairs_.end(), cheaper);
  const auto rest = pairs_.begin() + static_cast<std::ptrdiff_t>(staying);
  const auto of_base = [](const Pair& pair) { return pair.candidate == 0; };
  if (std::none_of(pairs_.begin(), rest, of_base)) {
    std::iter_swap(rest, std::find_if(rest, pairs_.end(), of_base));
    ++staying;
  }
  pairs_.resize(staying);
  std::sort(pairs_.begin(), pairs_.end(), [](const Pair& a, const Pair& b) { return a.number < b.number; });
}

std::size_t Race::winner(double margin) {
  if (moves_.size() == 1) {
    return 0;
  }
  run_all();
  const auto cheaper = [](const Pair& a, const Pair& b) { return a.sum < b.sum; };
  const auto count = static_cast<double>(done_);
  const double least = std::min_element(pairs_.begin(), pairs_.end(), cheaper)->sum / count;
  const auto best =
      std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return tie(pair.sum / count, least); });
  const auto others = std::find_if(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.candidate > 0; });
  const auto base = std::min_element(pairs_.begin(), others, cheaper);
  return is_better(*best, *base, margin) ? best->candidate : 0;
}

bool Race::is_better(const Pair& pair, const Pair& base, double margin) const {
  const auto count = static_cast<double>(done_);
  const double gain = (base.sum - pair.sum) / count;
  if (!beats(base.sum / count, pair.sum / count)) {
    return false;
  }
  double squares = 0.0;
  for (std::size_t at = 0; at < done_; ++at) {
    const double off = costs_of(base)[at] - costs_of(pair)[at] - gain;
    squares += off * off;
  }
  const double error = done_ > 1 ? std::sqrt(squares / (count - 1.0) / count) : 0.0;
  return gain > margin * error;
}

}  // namespace

bool roll_out(const Snapshot& snapshot, const std::vector<const StageGraph*>& graphs, const Instance& instance,
              const Decision& base, RolledOut& better) {
  const std::vector<RolloutCandidate> candidates = rollout_candidates(instance, base);
  if (candidates.size() == 1) {
    return false;
  }
  const RolloutModel model = rollout_model(snapshot, graphs, instance);
  const std::size_t chosen =
      Race(model, candidates, instance.config->rollout_steps).winner(instance.config->rollout_margin);
  if (chosen == 0) {
    return false;
  }
  better.admit = candidates[chosen].admit;
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
