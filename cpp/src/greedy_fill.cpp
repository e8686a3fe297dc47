// What GreedyPack does with the room that the chosen state leaves (SPEC section 6, work_conserving).
#include <algorithm>
#include <limits>

#include "greedy_pack.hpp"
#include "tie.hpp"

namespace topas::detail {

void GreedyPack::fill(std::vector<std::uint32_t>& members, Allocation& allocation) {
  while (const auto agent = most_wanted()) {
    join(*agent);
    members.insert(std::upper_bound(members.begin(), members.end(), *agent), *agent);
    for (auto choice = best_option(); choice.found; choice = best_option()) {
      admit(choice);
    }
  }
  score_.start(members, inside_);
  for (const Admission& admission : admissions_) {
    score_.admit(instance_.waiting[admission.request], admission.gain);
  }
  allocation.admitted = static_cast<std::uint32_t>(admissions_.size());
  allocation.terms = score_.terms();
  allocation.score = allocation.terms.score();
}

/// The agent to take in: of those outside without preempted requests that have one that fits, with its prefix, the one
/// in the greatest demand; ties: more waiting requests, then the smaller id.
std::optional<std::uint32_t> GreedyPack::most_wanted() {
  if (slots_ < 1 || ended_) {
    return std::nullopt;
  }
  candidates_.clear();
  double greatest = -std::numeric_limits<double>::infinity();
  for (std::uint32_t at = 0; at < instance_.agents.size(); ++at) {
    const AgentView& agent = instance_.agents[at];
    const bool fits = inside_[at] == 0 && agent.running.size() == 0 && agent.waiting.size() > 0 &&
                      agent.prefix_tokens + agent.least_waiting_kv <= room_;
    if (fits) {
      candidates_.push_back({at, demand(at)});
      greatest = std::max(greatest, candidates_.back().demand);
    }
  }
  std::erase_if(candidates_, [greatest](const Wanted& wanted) { return !tie(wanted.demand, greatest); });
  if (candidates_.empty()) {
    return std::nullopt;
  }
  const auto fewer = [this](const Wanted& a, const Wanted& b) {
    return instance_.agents[a.agent].waiting.size() < instance_.agents[b.agent].waiting.size();
  };
  return std::max_element(candidates_.begin(), candidates_.end(), fewer)->agent;
}

/// What the waiting requests of an agent that fit now, each alone, would gain.
double GreedyPack::demand(std::uint32_t agent) {
  const AgentView& view = instance_.agents[agent];
  double sum = 0.0;
  for (auto request = view.waiting.begin; request < view.waiting.end; ++request) {
    if (view.prefix_tokens + instance_.waiting[request].kv_tokens <= room_) {
      sum += option_of(request).gain;
    }
  }
  return sum;
}

/// Takes an agent into the set being packed.
void GreedyPack::join(std::uint32_t agent) {
  const AgentView& view = instance_.agents[agent];
  inside_[agent] = 1;
  room_ -= view.prefix_tokens;
  first_room_ -= view.prefix_tokens;
  if (in_turn()) {
    order_.include(agent);
    first_ = 0;
    return;
  }
  for (auto request = view.waiting.begin; request < view.waiting.end; ++request) {
    loose_.push_back(option_of(request));
  }
}

}  // namespace topas::detail
