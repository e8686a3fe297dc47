// Event logs as bench/recording.py writes them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topas/scheduler.hpp"

namespace topas::bench {

struct Event;

/// What a line of a log can say to a scheduler.
struct Verb {
  std::string_view name;
  std::string_view arguments;  ///< after the time: `i` an id, `n` a whole number, `s` seconds (may be absent)
  void (*call)(Scheduler&, const Event&, Decision&);
};

struct Event {
  const Verb* verb = nullptr;
  double now = 0.0;
  bool measured = false;
  std::array<Id, 3> ids;
  std::array<std::int64_t, 2> numbers{};
  std::optional<double> seconds;
  std::optional<Workflow> workflow;

  [[nodiscard]] bool decides() const noexcept { return verb->name == "decide"; }
};

struct EventLog {
  Config config;
  std::vector<Event> events;
};

/// Throws std::runtime_error naming the line.
[[nodiscard]] EventLog read_log(const std::string& path);

}  // namespace topas::bench
