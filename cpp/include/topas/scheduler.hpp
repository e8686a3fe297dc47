// The incremental door: events in, one decision out. It agrees bit for bit with `decide(snapshot(now), config)`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "topas/decision.hpp"
#include "topas/workflow.hpp"

namespace topas {

/// Read-only gauges. When every task has ended and one more decision was committed, all but the registered agents and
/// workflows and their bounded `samples` are zero.
struct Usage {
  std::int64_t agents = 0;
  std::int64_t workflows = 0;
  std::int64_t tasks = 0;
  std::int64_t waiting = 0;
  std::int64_t running = 0;
  std::int64_t resident = 0;   ///< resident prefixes (the last ones leave with the next decision)
  std::int64_t kv_tokens = 0;  ///< resident prefixes and running reservations
  std::int64_t credits = 0;    ///< stored admission credits
  std::int64_t samples = 0;    ///< service totals kept, at most 256 for each stage of a workflow
};

/// Not safe for concurrent use; the Python binding locks. Every event takes the time it happened at, which never goes
/// back; an illegal event throws (ArgumentError, UnknownId, StateError) and changes nothing.
class Scheduler {
 public:
  explicit Scheduler(Config config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  /// New settings for a running scheduler, checked like the first ones.
  void reconfigure(Config config);

  void register_agent(const Id& agent, std::int64_t prefix_tokens);
  void unregister_agent(const Id& agent);
  void register_workflow(Workflow workflow);
  void unregister_workflow(const Id& name);

  /// `since`: when the task's age counts from, at most `now`; empty: now.
  void task_arrived(double now, const Id& task, const Id& workflow, std::optional<double> since = std::nullopt);
  void task_cancelled(double now, const Id& task);
  void task_finished(double now, const Id& task);
  void request_ready(double now, const Id& request, const Id& task, const Id& stage, std::int64_t input_tokens,
                     std::int64_t max_new_tokens);
  void request_progress(double now, const Id& request, std::int64_t generated_tokens);
  void request_completed(double now, const Id& request, double service_s);
  void request_aborted(double now, const Id& request);
  void request_start_failed(double now, const Id& request);
  /// The engine has started a waiting request by itself: it runs with its agent's prefix, without a credit.
  void request_started(double now, const Id& request);
  void stage_completed(double now, const Id& task, const Id& stage);
  void stage_skipped(double now, const Id& task, const Id& stage);
  void prefix_evicted(double now, const Id& agent);
  /// The engine holds the prefix of an agent although no decision has loaded it.
  void prefix_loaded(double now, const Id& agent);
  /// The static prefix of an agent turns out to be shorter or longer. What its live requests hold in all stays the
  /// same: their own inputs grow or shrink by the difference.
  void prefix_changed(double now, const Id& agent, std::int64_t prefix_tokens);

  [[nodiscard]] Decision decide(double now) const;
  void commit(const Decision& decision);

  [[nodiscard]] Snapshot snapshot(double now) const;
  [[nodiscard]] Usage usage() const;
  [[nodiscard]] const Config& config() const noexcept;
  /// H_age now, seconds; 0 while nothing is known.
  [[nodiscard]] double age_scale_s() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace topas
