#include "replay.hpp"

#include <chrono>
#include <stdexcept>
#include <string>

#include "checksum.hpp"

namespace topas::bench {

namespace {

bool same(const Decision& left, const Decision& right) {
  return left.resident == right.resident && left.admit == right.admit && left.preempt == right.preempt &&
         left.credits == right.credits && left.terms == right.terms;
}

}  // namespace

void measured_call(Scheduler& scheduler, const Event& event, Decision& decision) {
  event.verb->call(scheduler, event, decision);
}

Replay replay(const EventLog& log, bool timed) {
  using Clock = std::chrono::steady_clock;
  Scheduler scheduler(log.config);
  Decision decision;
  Checksum checksum;
  Replay out;
  for (const auto& event : log.events) {
    if (event.decides()) {
      decision = {};  // what the last one held is freed here
    }
    if (!event.measured) {
      event.verb->call(scheduler, event, decision);
      continue;
    }
    if (timed) {
      const auto begin = Clock::now();
      measured_call(scheduler, event, decision);
      out.took_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    } else {
      measured_call(scheduler, event, decision);
    }
    if (event.decides()) {
      checksum.add(decision);
    }
  }
  out.checksum = checksum.value();
  return out;
}

std::size_t check(const EventLog& log) {
  Scheduler scheduler(log.config);
  Decision decision;
  std::size_t count = 0;
  for (const auto& event : log.events) {
    if (event.decides() && event.measured) {
      const Snapshot state = scheduler.snapshot(event.now);
      event.verb->call(scheduler, event, decision);
      if (!same(decision, decide(state, log.config)) || !same(decision, explain(state, log.config, 1).decision)) {
        throw std::runtime_error("decision " + std::to_string(count) + " is not that of the other doors");
      }
      ++count;
    } else {
      event.verb->call(scheduler, event, decision);
    }
  }
  return count;
}

}  // namespace topas::bench
