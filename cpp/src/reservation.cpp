#include "reservation.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace topas::detail {

namespace {

/// What the running requests of an agent hold.
struct Held {
  std::int64_t tokens = 0;  ///< with its prefix
  std::uint32_t requests = 0;
};

class Reservation {
 public:
  Reservation(Instance& instance, double now) : instance_(instance), now_(now) {}

  void make(double age_scale_s);

 private:
  [[nodiscard]] double age_of(const RequestView& request) const {
    return std::max(now_ - instance_.tasks[request.task].arrival, 0.0);
  }
  /// Where the earliest task's request of those that can fit is in `waiting`.
  [[nodiscard]] std::optional<std::size_t> find_earliest() const;
  /// Mean age of the other waiting requests that can fit; 0 without any.
  [[nodiscard]] double mean_age_beside(std::size_t earliest) const;
  void sum_running();
  /// Marks agents that admit nothing until the room is there: those with the fewest running requests first.
  void drain(std::uint32_t agent, std::int64_t missing);
  template <class Predicate>
  void hold_back_unless(const Predicate& stays);
  void leave_out_agents_without_requests();

  Instance& instance_;
  double now_;
  std::vector<Held> running_;
  std::vector<std::uint8_t> draining_;
};

void Reservation::make(double age_scale_s) {
  const auto earliest = find_earliest();
  if (!earliest) {
    return;
  }
  const RequestView request = instance_.waiting[*earliest];
  if (age_of(request) <= instance_.config->reserve_limit * std::max(age_scale_s, mean_age_beside(*earliest))) {
    return;
  }
  sum_running();
  std::int64_t room = instance_.config->kv_capacity_tokens - request.kv_tokens;
  for (const Held& held : running_) {
    room -= held.tokens;
  }
  if (running_[request.agent].requests == 0) {
    room -= instance_.agents[request.agent].prefix_tokens;
  }
  if (room >= 0 && instance_.slots_beside(static_cast<std::int64_t>(instance_.running.size())) > 0) {
    hold_back_unless([&](const RequestView& other) { return other.id == request.id; });
    instance_.agents[request.agent].firm = true;
  } else {
    drain(request.agent, -room);
    hold_back_unless([&](const RequestView& other) {
      return other.agent != request.agent && running_[other.agent].requests > 0 && draining_[other.agent] == 0;
    });
  }
  leave_out_agents_without_requests();
}

std::optional<std::size_t> Reservation::find_earliest() const {
  std::optional<std::size_t> earliest;
  for (std::size_t at = 0; at < instance_.waiting.size(); ++at) {
    const RequestView& request = instance_.waiting[at];
    if (!instance_.never_fits(request) &&
        (!earliest || instance_.comes_before(request, instance_.waiting[*earliest]))) {
      earliest = at;
    }
  }
  return earliest;
}

double Reservation::mean_age_beside(std::size_t earliest) const {
  double sum = 0.0;
  std::size_t others = 0;
  for (std::size_t at = 0; at < instance_.waiting.size(); ++at) {
    if (at != earliest && !instance_.never_fits(instance_.waiting[at])) {
      sum += age_of(instance_.waiting[at]);
      ++others;
    }
  }
  return others == 0 ? 0.0 : sum / static_cast<double>(others);
}

void Reservation::sum_running() {
  running_.resize(instance_.agents.size());
  for (const auto& request : instance_.running) {
    Held& held = running_[request.agent];
    held.tokens += request.kv_tokens + (held.requests == 0 ? instance_.agents[request.agent].prefix_tokens : 0);
    ++held.requests;
  }
}

void Reservation::drain(std::uint32_t agent, std::int64_t missing) {
  draining_.assign(instance_.agents.size(), 0);
  std::vector<std::uint32_t> order;
  for (std::uint32_t other = 0; other < instance_.agents.size(); ++other) {
    if (other != agent && running_[other].requests > 0) {
      order.push_back(other);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [this](std::uint32_t a, std::uint32_t b) { return running_[a].requests < running_[b].requests; });
  for (auto at = order.begin(); at != order.end() && missing > 0; ++at) {
    draining_[*at] = 1;
    missing -= running_[*at].tokens;
  }
}

template <class Predicate>
void Reservation::hold_back_unless(const Predicate& stays) {
  const auto rest = std::stable_partition(
      instance_.waiting.begin(), instance_.waiting.end(),
      [&](const RequestView& request) { return instance_.never_fits(request) || stays(request); });
  for (auto at = rest; at != instance_.waiting.end(); ++at) {
    instance_.held_back.push_back({at->id, instance_.agents[at->agent].id, at->kv_tokens});
  }
  instance_.waiting.erase(rest, instance_.waiting.end());
}

void Reservation::leave_out_agents_without_requests() {
  std::vector<std::uint8_t> has_requests(instance_.agents.size(), 0);
  for (const auto* requests : {&instance_.waiting, &instance_.running}) {
    for (const auto& request : *requests) {
      has_requests[request.agent] = 1;
    }
  }
  std::vector<std::uint32_t> place(instance_.agents.size(), 0);
  std::uint32_t kept = 0;
  for (std::uint32_t at = 0; at < instance_.agents.size(); ++at) {
    place[at] = kept;
    const AgentView& agent = instance_.agents[at];
    if (has_requests[at] != 0) {
      instance_.agents[kept++] = agent;
    } else if (agent.resident) {
      instance_.idle_resident_tokens += agent.prefix_tokens;
      instance_.idle_residents.push_back(agent.id);
    }
  }
  instance_.agents.resize(kept);
  for (auto* requests : {&instance_.waiting, &instance_.running}) {
    for (auto& request : *requests) {
      request.agent = place[request.agent];
    }
  }
}

}  // namespace

void reserve_for_earliest(Instance& instance, double now, double age_scale_s) {
  if (instance.config->reserve_limit > 0.0 && age_scale_s > 0.0) {
    Reservation(instance, now).make(age_scale_s);
  }
}

}  // namespace topas::detail
