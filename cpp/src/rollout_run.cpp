#include "rollout_run.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace topas::detail {

double RolloutRun::cost(const RolloutMove& move, RolloutBase base, std::size_t scenario) {
  work_ = model_.scenarios[scenario];
  reset(move);
  take_up(move);
  while (!ends_.empty()) {
    now_ = ends_.front().first;
    while (!ends_.empty() && ends_.front().first == now_) {
      const std::uint32_t visit = ends_.front().second;
      std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
      ends_.pop_back();
      complete(visit);
    }
    admit(base);
  }
  return cost_;
}

void RolloutRun::reset(const RolloutMove& move) {
  now_ = cost_ = 0.0;
  room_ = model_.capacity_tokens;
  visits_.clear();
  waiting_.clear();
  running_.assign(model_.agents.size(), 0);
  open_stages_ = model_.open_stages;
  to_come_.clear();
  live_.clear();
  open_before_.clear();
  for (std::uint32_t at = 0; at < model_.stages.size(); ++at) {
    const auto& stage = model_.stages[at];
    to_come_.push_back(stage.ended ? 0 : work_[at].requests - stage.live);
    live_.push_back(stage.live);
    open_before_.push_back(stage.open_before);
  }
  for (std::uint32_t number = 0; number < model_.requests.size(); ++number) {
    const auto& request = model_.requests[number];
    visits_.push_back({request.stage, request.kv_tokens});
    if (request.running && !std::binary_search(move.preempt.begin(), move.preempt.end(), number)) {
      occupy(number);
      run_until(std::max(work_[request.stage].request_s - request.spent_s, 0.0), number);
    } else {
      wait(number);
    }
  }
}

/// The decision itself; stages between two requests have their next one ready.
void RolloutRun::take_up(const RolloutMove& move) {
  for (const auto number : move.admit) {
    const auto before = [this](std::uint32_t a, std::uint32_t b) {
      return std::pair(visits_[a].stage, a) < std::pair(visits_[b].stage, b);
    };
    waiting_.erase(std::lower_bound(waiting_.begin(), waiting_.end(), number, before));
    start(number);
  }
  for (std::uint32_t at = 0; at < model_.stages.size(); ++at) {
    if (!model_.stages[at].ended && open_before_[at] == 0 && live_[at] == 0) {
      release(at);
    }
  }
}

void RolloutRun::wait(std::uint32_t visit) {
  const auto later = [this](std::uint32_t stage, std::uint32_t other) { return stage < visits_[other].stage; };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), visits_[visit].stage, later), visit);
}

/// The next request of a stage is ready.
void RolloutRun::release(std::uint32_t stage) {
  --to_come_[stage];
  ++live_[stage];
  visits_.push_back({stage, model_.stages[stage].kv_tokens});
  wait(static_cast<std::uint32_t>(visits_.size() - 1));
}

void RolloutRun::occupy(std::uint32_t visit) {
  const std::uint32_t agent = model_.stages[visits_[visit].stage].agent;
  room_ -= visits_[visit].kv_tokens + (running_[agent] == 0 ? model_.agents[agent].prefix_tokens : 0);
  ++running_[agent];
}

void RolloutRun::start(std::uint32_t visit) {
  const std::uint32_t stage = visits_[visit].stage;
  const std::uint32_t agent = model_.stages[stage].agent;
  const double load_s = running_[agent] == 0 ? model_.agents[agent].load_s : 0.0;
  occupy(visit);
  run_until(now_ + (load_s + work_[stage].request_s), visit);
}

void RolloutRun::run_until(double end_s, std::uint32_t visit) {
  ends_.emplace_back(end_s, visit);
  std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
}

void RolloutRun::admit(RolloutBase base) {
  if (room_ < model_.least_kv_tokens) {
    return;
  }
  switch (base) {
    case RolloutBase::strict:
      admit_in_turn();
      break;
    case RolloutBase::resident:
      admit_waiting(true);
      admit_waiting(false);
      break;
    case RolloutBase::arrival:
      admit_waiting(false);
      break;
  }
}

void RolloutRun::admit_in_turn() {
  std::size_t started = 0;
  for (; started < waiting_.size() && fits(visits_[waiting_[started]]); ++started) {
    start(waiting_[started]);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(started));
}

void RolloutRun::admit_waiting(bool only_resident) {
  std::size_t kept = 0;
  for (const std::uint32_t visit : waiting_) {
    const bool there = running_[model_.stages[visits_[visit].stage].agent] > 0;
    if ((there || !only_resident) && fits(visits_[visit])) {
      start(visit);
    } else {
      waiting_[kept++] = visit;
    }
  }
  waiting_.resize(kept);
}

bool RolloutRun::fits(const Visit& visit) const {
  if (model_.running_limit > 0 && std::cmp_greater_equal(ends_.size(), model_.running_limit)) {
    return false;
  }
  const std::uint32_t agent = model_.stages[visit.stage].agent;
  return visit.kv_tokens + (running_[agent] == 0 ? model_.agents[agent].prefix_tokens : 0) <= room_;
}

void RolloutRun::complete(std::uint32_t visit) {
  const std::uint32_t stage = visits_[visit].stage;
  const std::uint32_t agent = model_.stages[stage].agent;
  --running_[agent];
  --live_[stage];
  room_ += visits_[visit].kv_tokens + (running_[agent] == 0 ? model_.agents[agent].prefix_tokens : 0);
  if (to_come_[stage] > 0) {
    release(stage);
  } else if (live_[stage] == 0) {
    end_stage(stage);
  }
}

void RolloutRun::end_stage(std::uint32_t stage) {
  const auto& ended = model_.stages[stage];
  if (--open_stages_[ended.task] == 0) {
    const double age_s = model_.age_s[ended.task] + now_;
    cost_ += model_.power == 1.0 ? age_s : std::pow(age_s, model_.power);
  }
  for (auto at = ended.successors.begin; at < ended.successors.end; ++at) {
    const std::uint32_t next = model_.successors[at];
    if (--open_before_[next] == 0 && live_[next] == 0 && to_come_[next] > 0) {
      release(next);
    }
  }
}

}  // namespace topas::detail
