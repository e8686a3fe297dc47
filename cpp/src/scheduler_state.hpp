// The tables of the incremental door.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "id_table.hpp"
#include "instance.hpp"
#include "path_blocks.hpp"
#include "profile.hpp"
#include "request_list.hpp"
#include "task_model.hpp"
#include "topas/error.hpp"
#include "topas/scheduler.hpp"

namespace topas::detail {

struct Request;

struct Agent {
  Id id;
  std::int64_t prefix_tokens = 0;
  bool resident = false;
  std::int64_t stages = 0;               ///< stages of registered workflows that name it
  RequestList<Request> waiting{};        ///< ascending id
  RequestList<Request> running{};        ///< ascending id
  mutable std::int64_t next_stages = 0;  ///< scratch of a decision
  std::uint64_t seen = 0;                ///< scratch of a commit

  [[nodiscard]] bool active() const noexcept { return !waiting.empty() || !running.empty(); }
};

struct WorkflowEntry {
  Workflow workflow;
  std::vector<Profile> profiles;  ///< of each stage
  std::vector<Agent*> agents;     ///< of each stage
  std::int64_t tasks = 0;
  std::uint64_t version = 0;  ///< changes with every profile
};

enum class StageStatus : std::uint8_t { open, completed, skipped };

struct Stage {
  StageStatus status = StageStatus::open;
  double service_s = 0.0;          ///< e
  std::int64_t completed = 0;      ///< finished requests
  std::int64_t live = 0;           ///< waiting and running requests
  mutable std::uint64_t seen = 0;  ///< scratch of a decision
};

struct Task {
  // What a decision reads of every task comes first.
  double arrival = 0.0;
  WorkflowEntry* workflow = nullptr;
  std::uint64_t version = 0;           ///< changes with every event that touches it
  RequestList<Request> requests;       ///< ascending id
  mutable std::uint64_t seen = 0;      ///< scratch
  mutable std::uint32_t slot = 0;      ///< scratch
  mutable std::uint32_t outcomes = 0;  ///< see TaskView; this and the rest is remembered
  mutable std::uint64_t stamp = 0;     ///< of what is remembered, of its requests too
  mutable double path_s = 0.0;         ///< longest path of the expected residuals
  mutable Fall fall{};

  Id id;
  std::vector<Stage> stages;
  std::size_t open = 0;    ///< stages neither completed nor skipped
  double service_s = 0.0;  ///< LLM service of all its finished requests
  mutable std::optional<TaskModel> model;
  mutable std::uint64_t model_stamp = 0;
  mutable std::uint64_t model_own = 0;  ///< the part of the stamp that is not the profiles'
  mutable PathBlocks blocks;            ///< empty until asked for, and again when a stage ends
};

struct StoredCredit {
  double value = 0.0;
  double age_factor = 1.0;
};

struct Request {
  Id id;
  // What a decision reads of every request.
  Task* task = nullptr;
  std::int64_t kv_tokens = 0;
  mutable double service_s = 0.0;    ///< d; this and the next two are remembered as long as the stamp of the task says
  mutable double fall_s = kUnknown;  ///< see RequestView
  mutable std::uint32_t bit = 0;     ///< place among the requests of the task

  std::uint32_t stage = 0;
  Agent* agent = nullptr;
  std::int64_t input_tokens = 0;
  std::int64_t max_new_tokens = 0;
  std::int64_t generated_tokens = 0;
  bool running = false;
  std::optional<StoredCredit> credit;  ///< while it runs
  std::uint64_t seen = 0;              ///< scratch of a commit
};

/// A decision as entries of the tables.
struct Changes {
  std::vector<Request*> preempt;
  std::vector<std::pair<Request*, StoredCredit>> admit;
  std::vector<Agent*> drop;
  std::vector<Agent*> load;
};

}  // namespace topas::detail

namespace topas {

struct Scheduler::State {
  explicit State(Config settings) : config(settings) { config.validate(); }

  Config config;
  double clock = 0.0;
  bool clock_set = false;
  std::uint64_t version = 1;  ///< changes with everything that can change a decision
  std::map<Id, detail::Agent> agents;
  std::map<Id, detail::WorkflowEntry> workflows;
  detail::IdTable<detail::Task> tasks;
  detail::IdTable<detail::Request> requests;
  std::optional<double> mean_task_service_s;  ///< exponentially weighted, of finished tasks
  std::uint64_t config_version = 0;
  mutable std::uint64_t decisions = 0;                           ///< marks the scratch of a decision or a commit
  mutable std::vector<detail::StageOutlook> stage_outlooks;      // reused
  mutable std::vector<detail::RequestOutlook> request_outlooks;  // reused
  mutable std::vector<double> ends;                              // reused
  mutable detail::Instance instance;                             // reused

  // Look-ups; they throw UnknownId.
  [[nodiscard]] detail::Agent& agent(const Id& id);
  [[nodiscard]] detail::WorkflowEntry& workflow(const Id& name);
  [[nodiscard]] detail::Task& task(const Id& id) const;
  [[nodiscard]] detail::Request& request(const Id& id) const;

  /// Throws ArgumentError or StateError when `now` is not finite or before the last event.
  void check_clock(double now) const;
  /// What the decision changes. Throws UnknownId or StateError when, made by another scheduler, it does not fit.
  [[nodiscard]] detail::Changes changes_of(const Decision& decision);
  /// An event has happened: the clock stands at `now` and earlier decisions are stale.
  void touch(double now);
  [[nodiscard]] double age_scale_s() const;

  // Changes; they cannot fail.
  void insert(detail::Request& request);
  void start(detail::Request& request, const detail::StoredCredit& credit);
  void stop(detail::Request& request);
  void remove(detail::Request& request);
  void finish_stage(detail::Task& task, std::uint32_t stage, detail::StageStatus status);
  void skip_orphans(detail::Task& task, std::uint32_t from);
  void end_task(detail::Task& task, bool completed);

  // Views.
  [[nodiscard]] double expected_service_s(const detail::Request& request) const;
  [[nodiscard]] std::uint64_t stamp_of(const detail::TaskModel& model, const detail::Task& task) const;
  void follow(const detail::Task& task) const;
  void follow_model(const detail::Task& task) const;
  [[nodiscard]] double path_of(const detail::Task& task) const;
  [[nodiscard]] detail::TaskView view_of(const detail::Task& task, double age_scale_s, double now) const;
  /// The state as a decision sees it, until the next one is asked for.
  [[nodiscard]] const detail::Instance& view(double now) const;
};

}  // namespace topas
