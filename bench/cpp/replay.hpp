// Replays of a log on a scheduler of their own.
#pragma once

#include <cstddef>
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

/// Compares each measured decision with the pure door's, which remembers nothing, and with explain()'s, which packs
/// every set: the same bits. How many there are; throws std::runtime_error, with its number, for one that differs.
std::size_t check(const EventLog& log);

}  // namespace topas::bench
