// Random but legal traffic for a Scheduler, kept as a log that can be played again, with its own accounts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/random_cases.hpp"
#include "topas/scheduler.hpp"

namespace topas::testing {

/// One step: an event, or a decision, which is appended to the list.
using Step = std::function<void(Scheduler&, std::vector<Decision>&)>;

/// Plays a log on a new scheduler.
[[nodiscard]] std::vector<Decision> play(const Config& config, const std::vector<Step>& log);

/// The gauges, to be compared.
[[nodiscard]] std::vector<std::int64_t> gauges(const Usage& usage);

class Traffic {
 public:
  struct Options {
    bool string_ids = false;
    std::int64_t agents = 5;
    std::int64_t workflows = 3;
    std::size_t tasks = 6;  ///< at once
  };

  Traffic(Random& random, Options options) : random_(random), options_(options) {}

  /// Registrations, in the order given or the opposite one.
  [[nodiscard]] std::vector<Step> registrations(bool backwards = false) const;
  /// Makes agents and workflows up.
  void set_up();
  /// The next event; the clock may go on.
  [[nodiscard]] Step next();
  /// Asks for a decision at the present time.
  [[nodiscard]] Step decide() const;
  /// Commits the latest decision of the list.
  [[nodiscard]] static Step commit();
  /// A commit has been made.
  void committed(const Decision& decision);
  /// Ends all tasks.
  [[nodiscard]] std::vector<Step> drain();

  [[nodiscard]] double now() const noexcept { return now_; }
  /// What the gauges must say.
  [[nodiscard]] Usage expected() const;
  [[nodiscard]] bool has_tasks() const noexcept { return !tasks_.empty(); }

 private:
  struct Stage {
    bool closed = false;
    bool skipped = false;
    std::int64_t finished = 0;
  };
  struct Task {
    std::size_t flow = 0;
    std::vector<Stage> stages;
  };
  struct Request {
    Id task;
    std::uint32_t stage = 0;
    std::int64_t input_tokens = 0;
    std::int64_t kv_tokens = 0;
    bool running = false;
  };
  struct Flow {
    Id name;
    std::vector<StageSpec> stages;
    Adjacency after;
    std::vector<std::int64_t> totals;  ///< recorded, of each stage
  };
  struct Place {
    Id task;
    std::uint32_t stage = 0;
  };
  using Choice = std::optional<Step>;

  [[nodiscard]] Id make_id(const char* kind);
  [[nodiscard]] std::optional<Id> pick_request(bool running);
  [[nodiscard]] std::optional<Id> pick_task();
  [[nodiscard]] std::int64_t live(const Place& place) const;
  [[nodiscard]] std::vector<Place> open_stages(bool ready, bool idle) const;
  [[nodiscard]] const Id& agent_of(const Request& request) const;
  void close(const Place& place, bool skipped);
  void skip_orphans(Task& task);
  void erase_task(const Id& task);

  [[nodiscard]] Choice arrive();
  [[nodiscard]] Choice make_ready();
  [[nodiscard]] Choice progress();
  [[nodiscard]] Choice complete();
  [[nodiscard]] Choice abort();
  [[nodiscard]] Choice fail_start();
  [[nodiscard]] Choice start();
  [[nodiscard]] Choice complete_stage();
  [[nodiscard]] Choice skip_stage();
  [[nodiscard]] Choice evict();
  [[nodiscard]] Choice load();
  [[nodiscard]] Choice change_prefix();
  [[nodiscard]] Choice end_task();

  Random& random_;
  Options options_;
  double now_ = 0.0;
  std::int64_t number_ = 0;
  std::map<Id, std::int64_t> agents_;
  std::vector<Flow> flows_;
  std::map<Id, Task> tasks_;
  std::map<Id, Request> requests_;
  std::set<Id> resident_;
};

}  // namespace topas::testing
