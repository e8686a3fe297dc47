// Replays of a log on a scheduler of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "event_log.hpp"

namespace topas::bench {

struct Replay {
  std::vector<double> took_us;  ///< of each measured event
  std::uint32_t checksum = 0;   ///< of all measured decisions
};

/// One event, handed to a scheduler. Instructions are counted inside it alone, so it is never inlined.
[[gnu::noinline]] void measured_call(Scheduler& scheduler, const Event& event, Decision& decision);

/// All events in order, with or without the clock.
[[nodiscard]] Replay replay(const EventLog& log, bool timed);

}  // namespace topas::bench
