#include "replay.hpp"

#include <chrono>

#include "checksum.hpp"

namespace topas::bench {

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

}  // namespace topas::bench
