#include "solve.hpp"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "prefix_search.hpp"
#include "score.hpp"

namespace topas::detail {

namespace {

std::vector<Id> ids_of_agents(const Instance& instance, std::span<const std::uint32_t> members) {
  std::vector<Id> out;
  out.reserve(members.size());
  for (const auto member : members) {
    out.push_back(*instance.agents[member].id);
  }
  return out;
}

/// Ids of the requests that `chosen` picks, ascending.
template <class Predicate>
std::vector<Id> ids_of_requests(const std::vector<RequestView>& requests, const Predicate& chosen) {
  std::vector<Id> out;
  for (const auto& request : requests) {
    if (chosen(request)) {
      out.push_back(*request.id);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<Id> preempted_ids(const Instance& instance, std::span<const std::uint32_t> members) {
  return ids_of_requests(instance.running, [members](const RequestView& request) {
    return !std::binary_search(members.begin(), members.end(), request.agent);
  });
}

std::vector<Id> admitted_ids(const Instance& instance, std::span<const Admission> admissions) {
  std::vector<Id> out;
  for (const auto& admission : admissions) {
    out.push_back(*instance.waiting[admission.request].id);
  }
  return out;
}

void set_moves(const Instance& instance, const PrefixSet& members, Decision& out) {
  for (const auto* idle : instance.idle_residents) {
    out.drop.push_back(*idle);
  }
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    const AgentView& view = instance.agents[agent];
    const bool stays = std::binary_search(members.begin(), members.end(), agent);
    if (stays && !view.resident) {
      out.load.push_back(*view.id);
    } else if (!stays && view.resident) {
      out.drop.push_back(*view.id);
    }
  }
  std::sort(out.drop.begin(), out.drop.end());
}

void set_credits(const Instance& instance, std::span<const Admission> admissions, Decision& out) {
  for (const auto& admission : admissions) {
    const RequestView& request = instance.waiting[admission.request];
    out.credits.push_back({*request.id, admission.gain, instance.tasks[request.task].age_factor});
  }
}

std::vector<Id> unschedulable_ids(const Instance& instance) {
  return ids_of_requests(instance.waiting,
                         [&instance](const RequestView& request) { return instance.never_fits(request); });
}

/// Nothing is feasible: what runs goes on, and only idle prefixes leave.
Decision write_standstill(const Instance& instance) {
  Decision out;
  PrefixSet members;
  std::vector<std::uint8_t> inside(instance.agents.size(), 0);
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    if (instance.agents[agent].running.size() > 0) {
      members.push_back(agent);
      inside[agent] = 1;
    }
  }
  Score score(instance);
  score.start(members, inside);
  out.terms = score.terms();
  out.resident = ids_of_agents(instance, members);
  set_moves(instance, members, out);
  out.unschedulable = unschedulable_ids(instance);
  return out;
}

/// A set with its allocation.
struct Packed {
  PrefixSet members;
  Allocation allocation;
};

/// The chosen set once more; what the settings say is filled up.
Packed pack_chosen(const Instance& instance, GreedyPack& pack, const PrefixSet& chosen) {
  Packed out{chosen, pack.pack(chosen)};
  if (instance.config->work_conserving) {
    pack.fill(out.members, out.allocation);
  }
  return out;
}

Decision write_state(const Instance& instance, const PrefixSet& members, std::span<const Admission> admissions,
                     const Terms& terms) {
  Decision out;
  out.resident = ids_of_agents(instance, members);
  out.admit = admitted_ids(instance, admissions);
  out.preempt = preempted_ids(instance, members);
  out.terms = terms;
  set_moves(instance, members, out);
  set_credits(instance, admissions, out);
  out.unschedulable = unschedulable_ids(instance);
  return out;
}

Decision write_decision(const Instance& instance, GreedyPack& pack, const PrefixSet& chosen) {
  const auto [members, allocation] = pack_chosen(instance, pack, chosen);
  return write_state(instance, members, pack.admissions().first(allocation.admitted), allocation.terms);
}

/// Every feasible evaluated set once, with what ranks it.
struct Candidates {
  struct Entry {
    PrefixSet members;
    double score = 0.0;
    bool empty = false;
  };
  std::vector<Entry> entries;

  void add(std::span<const std::uint32_t> members, const Allocation& allocation) {
    entries.push_back({PrefixSet(members.begin(), members.end()), allocation.score, allocation.empty()});
  }
  void sort(const PrefixSet& chosen) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.members < b.members; });
    const auto same = [](const Entry& a, const Entry& b) { return a.members == b.members; };
    entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());
    const auto rank = [&chosen](const Entry& entry) {
      return std::tuple(entry.members != chosen, entry.empty, -entry.score);
    };
    std::stable_sort(entries.begin(), entries.end(),
                     [&rank](const Entry& a, const Entry& b) { return rank(a) < rank(b); });
  }
};

CandidateState write_candidate(const Instance& instance, GreedyPack& pack, const PrefixSet& members) {
  const Allocation allocation = pack.pack(members);
  return {ids_of_agents(instance, members), admitted_ids(instance, pack.admissions().first(allocation.admitted)),
          preempted_ids(instance, members), allocation.terms};
}

/// The best score among the candidates that admit the request, if any.
void find_alternative(const std::vector<CandidateState>& candidates, LeftWaiting& out) {
  for (const auto& candidate : candidates) {
    if (std::find(candidate.admit.begin(), candidate.admit.end(), out.request) == candidate.admit.end()) {
      continue;
    }
    if (!out.has_alternative || candidate.terms.score() > out.alternative_score) {
      out.has_alternative = true;
      out.alternative_score = candidate.terms.score();
    }
  }
}

WaitReason reason_for(const Instance& instance, const RequestView& request, const PrefixSet& chosen, std::int64_t room,
                      std::int64_t slots) {
  if (instance.never_fits(request)) {
    return WaitReason::never_fits;
  }
  if (!std::binary_search(chosen.begin(), chosen.end(), request.agent)) {
    return WaitReason::prefix_not_kept;
  }
  if (slots < 1) {
    return WaitReason::no_slot;
  }
  return request.kv_tokens > room ? WaitReason::no_room : WaitReason::not_worth;
}

/// Those that were no candidates, then all by id.
void add_held_back(const Instance& instance, std::vector<LeftWaiting>& out) {
  for (const auto& request : instance.held_back) {
    out.push_back({*request.id, *request.agent, WaitReason::held_back, request.kv_tokens});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.request < b.request; });
}

std::vector<LeftWaiting> all_left_waiting(const Instance& instance) {
  std::vector<LeftWaiting> out;
  for (const auto& request : instance.waiting) {
    const WaitReason reason = instance.never_fits(request) ? WaitReason::never_fits : WaitReason::standstill;
    out.push_back({*request.id, *instance.agents[request.agent].id, reason, request.kv_tokens});
  }
  add_held_back(instance, out);
  return out;
}

std::vector<LeftWaiting> left_waiting(const Instance& instance, GreedyPack& pack, const PrefixSet& chosen,
                                      const std::vector<CandidateState>& candidates) {
  const auto [members, allocation] = pack_chosen(instance, pack, chosen);
  std::vector<bool> admitted(instance.waiting.size(), false);
  for (const auto& admission : pack.admissions().first(allocation.admitted)) {
    admitted[admission.request] = true;
  }
  const std::int64_t room = pack.room_after(allocation.admitted);
  const std::int64_t slots = pack.slots_after(allocation.admitted);
  std::vector<LeftWaiting> out;
  for (std::uint32_t at = 0; at < instance.waiting.size(); ++at) {
    if (admitted[at]) {
      continue;
    }
    const RequestView& request = instance.waiting[at];
    const AgentView& agent = instance.agents[request.agent];
    LeftWaiting entry{*request.id, *agent.id, reason_for(instance, request, members, room, slots)};
    const bool inside = std::binary_search(members.begin(), members.end(), request.agent);
    entry.needs_tokens = request.kv_tokens + (inside ? 0 : agent.prefix_tokens);
    entry.free_tokens = room;
    entry.gain = pack.gain_after(at, allocation.admitted);
    find_alternative(candidates, entry);
    out.push_back(std::move(entry));
  }
  add_held_back(instance, out);
  return out;
}

struct Solved {
  Decision decision;
  std::optional<PrefixSet> chosen;
};

Solved search_and_write(const Instance& instance) {
  GreedyPack pack(instance);
  PrefixSearch search(instance, pack);
  const auto chosen = search.run();
  Solved out{chosen ? write_decision(instance, pack, *chosen) : write_standstill(instance), chosen};
  out.decision.evaluated_sets = search.evaluated();
  out.decision.pruned_sets = search.pruned();
  return out;
}

}  // namespace

Decision solve(const Instance& instance) { return search_and_write(instance).decision; }

Decision admitting(const Instance& instance, const std::vector<std::uint32_t>& members,
                   std::span<const std::uint32_t> admit) {
  std::vector<std::uint8_t> inside(instance.agents.size(), 0);
  for (const auto member : members) {
    inside[member] = 1;
  }
  Score score(instance);
  score.start(members, inside);
  std::vector<Admission> admissions;
  for (const auto at : admit) {
    const RequestView& request = instance.waiting[at];
    admissions.push_back({at, instance.worth(request)});
    score.admit(request, admissions.back().gain);
  }
  return write_state(instance, members, admissions, score.terms());
}

Explanation solve_and_explain(const Instance& instance, std::size_t top) {
  Explanation out;
  auto [decision, chosen] = search_and_write(instance);
  out.decision = std::move(decision);
  if (!chosen) {
    out.left_waiting = all_left_waiting(instance);
    return out;
  }
  GreedyPack pack(instance);
  Candidates candidates;
  PrefixSearch search(instance, pack, [&candidates](auto members, const Allocation& allocation) {
    candidates.add(members, allocation);
  });
  std::ignore = search.run();
  candidates.add(*chosen, pack.pack(*chosen));  // with a budget the search has gone another way
  candidates.sort(*chosen);
  for (const auto& entry : candidates.entries) {
    out.candidates.push_back(write_candidate(instance, pack, entry.members));
  }
  out.left_waiting = left_waiting(instance, pack, *chosen, out.candidates);
  out.candidates.resize(std::min(top, out.candidates.size()));
  return out;
}

}  // namespace topas::detail
