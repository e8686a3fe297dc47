#include "rollout_run.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace topas::detail {

namespace {

constexpr std::uint32_t kWordBits = 64;

/// age ** power; the square root is exact to the last bit everywhere, std::pow is not.
double raised(double age_s, double power) {
  if (power == 1.0) {
    return age_s;
  }
  return power == 1.5 ? age_s * std::sqrt(age_s) : std::pow(age_s, power);
}

}  // namespace

RolloutRun::RolloutRun(const RolloutModel& model)
    : model_(model),
      words_(static_cast<std::uint32_t>(model.stages.size() / kWordBits + 1)),
      least_kv_tokens_(model.capacity_tokens) {
  for (const auto& agent : model.agents) {
    least_kv_tokens_ = std::min(least_kv_tokens_, agent.least_kv_tokens);
  }
  stages_of_.assign(model.agents.size() * words_, 0);
  for (std::uint32_t at = 0; at < model.stages.size(); ++at) {
    stages_of_[std::size_t{model.stages[at].agent} * words_ + at / kWordBits] |= std::uint64_t{1} << at % kWordBits;
  }
}

void RolloutRun::take(const RolloutMove& move) {
  state_.room = model_.capacity_tokens;
  state_.open_stages = model_.open_stages;
  state_.visits.clear();
  state_.stages.clear();
  state_.agents.clear();
  state_.waiting.assign(words_, 0);
  started_.clear();
  for (const auto& stage : model_.stages) {
    state_.stages.push_back({stage.live, stage.live, stage.open_before});
  }
  for (const auto& agent : model_.agents) {
    state_.agents.push_back({0, 0, agent.prefix_tokens + agent.least_kv_tokens});
  }
  std::vector<bool> admitted(model_.requests.size(), false);
  for (const auto number : move.admit) {
    admitted[number] = true;
  }
  for (std::uint32_t number = 0; number < model_.requests.size(); ++number) {
    const auto& request = model_.requests[number];
    state_.visits.push_back({request.stage, 0, request.kv_tokens});
    if (request.running && !std::binary_search(move.preempt.begin(), move.preempt.end(), number)) {
      occupy(number);
      started_.push_back({number, 0.0, request.spent_s});
    } else if (!admitted[number]) {
      wait(number);
    }
  }
  for (const auto number : move.admit) {
    started_.push_back({number, occupy(number), 0.0});
  }
  for (std::uint32_t at = 0; at < model_.stages.size(); ++at) {
    if (!model_.stages[at].ended && state_.stages[at].open_before == 0 && state_.stages[at].live == 0) {
      release(at);
    }
  }
  begin_ = state_;
}

double RolloutRun::cost(RolloutBase base, std::size_t scenario) {
  work_ = model_.scenarios[scenario].data();
  state_ = begin_;
  now_ = cost_ = 0.0;
  ends_.clear();
  ended_ = 0;
  for (const auto& [visit, load_s, spent_s] : started_) {
    const double service_s = work_[state_.visits[visit].stage].request_s;
    run_until(std::max(load_s + service_s - spent_s, 0.0), visit);
  }
  while (running() > 0) {
    now_ = ends_[ended_].at_s;
    while (running() > 0 && ends_[ended_].at_s == now_) {
      complete(ends_[ended_++].visit);
    }
    admit(base);
  }
  return cost_;
}

void RolloutRun::wait(std::uint32_t visit) {
  const std::uint32_t at = state_.visits[visit].stage;
  Stage& stage = state_.stages[at];
  std::uint64_t& word = state_.waiting[at / kWordBits];
  const std::uint64_t bit = std::uint64_t{1} << at % kWordBits;
  if ((word & bit) == 0) {
    stage.first = visit;
  } else {
    state_.visits[stage.last].next = visit;
  }
  word |= bit;
  stage.last = visit;
  ++state_.agents[model_.stages[at].agent].waiting;
}

/// The next request of a stage is ready.
void RolloutRun::release(std::uint32_t stage) {
  ++state_.stages[stage].made;
  ++state_.stages[stage].live;
  state_.visits.push_back({stage, 0, model_.stages[stage].kv_tokens});
  wait(static_cast<std::uint32_t>(state_.visits.size() - 1));
}

/// Take a visit's room; returns how long its prefix takes to come in.
double RolloutRun::occupy(std::uint32_t visit) {
  const std::uint32_t at = model_.stages[state_.visits[visit].stage].agent;
  const auto& of_model = model_.agents[at];
  Agent& agent = state_.agents[at];
  state_.room -= state_.visits[visit].kv_tokens;
  if (agent.running++ > 0) {
    return 0.0;
  }
  state_.room -= of_model.prefix_tokens;
  agent.needs -= of_model.prefix_tokens;
  return of_model.load_s;
}

void RolloutRun::run_until(double end_s, std::uint32_t visit) {
  ends_.push_back({end_s, visit});
  std::size_t at = ends_.size() - 1;
  for (; at > ended_; --at) {
    const End& before = ends_[at - 1];
    if (before.at_s < end_s || (before.at_s == end_s && before.visit < visit)) {
      break;
    }
    ends_[at] = before;
  }
  ends_[at] = {end_s, visit};
}

void RolloutRun::admit(RolloutBase base) {
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
  for (std::uint32_t word = 0; word < words_; ++word) {
    for (std::uint64_t bits = state_.waiting[word]; bits != 0; bits &= bits - 1) {
      const std::uint32_t stage = word * kWordBits + static_cast<std::uint32_t>(std::countr_zero(bits));
      if (state_.agents[model_.stages[stage].agent].needs > state_.room || !admit_of(stage, true)) {
        return;
      }
    }
  }
}

void RolloutRun::admit_waiting(bool only_resident) {
  list_able(only_resident);
  for (std::uint32_t word = 0; word < words_ && !able_.empty(); ++word) {
    std::uint64_t bits = state_.waiting[word] & stages_of_able(word);
    while (bits != 0) {
      const std::uint64_t bit = bits & (~bits + 1);
      admit_of(word * kWordBits + static_cast<std::uint32_t>(std::countr_zero(bits)), false);
      list_able(only_resident);
      const std::uint64_t later = ~(bit | (bit - 1));
      bits = state_.waiting[word] & later & stages_of_able(word);
    }
  }
}

/// The agents of which a visit that waits may fit.
void RolloutRun::list_able(bool only_resident) {
  able_.clear();
  if (state_.room < least_kv_tokens_ || !has_slot()) {
    return;
  }
  const std::int64_t room = state_.room;
  std::uint32_t at = 0;
  for (const Agent& agent : state_.agents) {
    if (agent.needs <= room && agent.waiting > 0 && (!only_resident || agent.running > 0)) {
      able_.push_back(at);
    }
    ++at;
  }
}

std::uint64_t RolloutRun::stages_of_able(std::uint32_t word) const {
  std::uint64_t out = 0;
  for (const auto agent : able_) {
    out |= stages_of_[std::size_t{agent} * words_ + word];
  }
  return out;
}

bool RolloutRun::has_slot() const {
  return model_.running_limit == 0 || std::cmp_less(running(), model_.running_limit);
}

/// Admit what fits of a stage's waiting visits, strictly: up to the first that does not; whether all did.
bool RolloutRun::admit_of(std::uint32_t at, bool strict) {
  Stage& stage = state_.stages[at];
  Agent& agent = state_.agents[model_.stages[at].agent];
  const std::uint32_t last = stage.last;
  std::uint32_t kept = 0;
  for (std::uint32_t visit = stage.first;; visit = state_.visits[visit].next) {
    const std::int64_t prefix = agent.running == 0 ? model_.agents[model_.stages[at].agent].prefix_tokens : 0;
    const bool fits = has_slot() && (kept == 0 || !strict) && state_.visits[visit].kv_tokens + prefix <= state_.room;
    if (fits) {
      --agent.waiting;
      const double load_s = occupy(visit);
      run_until(now_ + (load_s + work_[at].request_s), visit);
    } else {
      if (kept++ == 0) {
        stage.first = visit;
      } else {
        state_.visits[stage.last].next = visit;
      }
      stage.last = visit;
    }
    if (visit == last) {
      break;
    }
  }
  if (kept == 0) {
    state_.waiting[at / kWordBits] &= ~(std::uint64_t{1} << at % kWordBits);
  }
  return kept == 0;
}

void RolloutRun::complete(std::uint32_t visit) {
  const std::uint32_t at = state_.visits[visit].stage;
  Stage& stage = state_.stages[at];
  const auto& of_model = model_.agents[model_.stages[at].agent];
  Agent& agent = state_.agents[model_.stages[at].agent];
  state_.room += state_.visits[visit].kv_tokens;
  if (--agent.running == 0) {
    state_.room += of_model.prefix_tokens;
    agent.needs += of_model.prefix_tokens;
  }
  --stage.live;
  if (stage.made < work_[at].requests) {
    release(at);
  } else if (stage.live == 0 && !model_.stages[at].ended) {
    end_stage(at);
  }
}

void RolloutRun::end_stage(std::uint32_t stage) {
  const auto& ended = model_.stages[stage];
  if (--state_.open_stages[ended.task] == 0) {
    cost_ += raised(model_.age_s[ended.task] + now_, model_.power);
  }
  for (auto at = ended.successors.begin; at < ended.successors.end; ++at) {
    const std::uint32_t next = model_.successors[at];
    Stage& after = state_.stages[next];
    if (--after.open_before == 0 && after.live == 0 && after.made < work_[next].requests) {
      release(next);
    }
  }
}

}  // namespace topas::detail
