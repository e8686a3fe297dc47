// An Instance made by hand, and plain builders of configs and snapshots.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "instance.hpp"
#include "support/random_cases.hpp"
#include "topas/config.hpp"

namespace topas::testing {

/// A valid config with round numbers: moving one token takes 0.01 s, decoding one 0.5 s; no ageing, no caps.
[[nodiscard]] Config plain_config(std::int64_t capacity);

/// Agents and tasks are numbered from 0; ids of agents and tasks are their numbers, ids of requests are given.
class World {
 public:
  explicit World(Config config) : config_(config) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::uint32_t agent(std::int64_t prefix_tokens, bool resident = false, std::int64_t next_stages = 0);
  /// A task whose stages have one total each.
  std::uint32_t task(std::vector<double> totals, Adjacency after = {}, double arrival = 0.0, double age_factor = 1.0);
  void waiting(Id id, std::uint32_t agent, std::uint32_t task, std::int64_t kv_tokens, double service_s,
               std::uint32_t stage = 0);
  void running(Id id, std::uint32_t agent, std::uint32_t task, std::int64_t kv_tokens, double redo = 0.0,
               double revoke = 0.0, double service_s = 0.0, std::uint32_t stage = 0);
  /// Nothing overtakes the requests of a task, where the config has a limit.
  void overdue(std::uint32_t task) { tasks_[task].overdue = true; }
  /// The last request, a running one, must not be preempted.
  void firm() { requests_.back().firm = true; }
  void idle_resident(std::int64_t prefix_tokens) { idle_tokens_ += prefix_tokens; }

  /// The indexed instance; it points into this world.
  [[nodiscard]] const detail::Instance& build();
  [[nodiscard]] const detail::Instance& instance() const noexcept { return instance_; }
  /// Index of a waiting request in the instance.
  [[nodiscard]] std::uint32_t waiting_index(const Id& id) const;

 private:
  struct Task {
    std::deque<Stages> stages;  // one or none; Stages cannot move
    Adjacency after;
    double arrival = 0.0;
    double age_factor = 1.0;
    bool overdue = false;
  };
  struct Request {
    Id id;
    std::uint32_t agent = 0;
    std::uint32_t task = 0;
    std::uint32_t stage = 0;
    std::int64_t kv_tokens = 0;
    double service_s = 0.0;
    double redo = 0.0;
    double revoke = 0.0;
    bool running = false;
    bool firm = false;
  };

  void build_task(std::uint32_t number);
  void build_requests();

  Config config_;
  std::deque<Id> ids_;
  std::vector<detail::AgentView> agents_;
  std::deque<Task> tasks_;
  std::vector<Request> requests_;
  std::int64_t idle_tokens_ = 0;
  std::deque<detail::TaskModel> models_;
  detail::Instance instance_;
};

/// Fills a world by chance: quarters of seconds, so that many values tie.
void fill_randomly(World& world, Random& random);

/// Many requests, for gains that are services, admitted by arrival; some tasks are overdue.
void fill_with_a_queue(World& world, Random& random);

/// More than a word of waiting requests, up to 200, of tasks with siblings; now and then a task has more than a word of
/// them itself.
void fill_with_many(World& world, Random& random);

/// Tasks of parallel stages with a request each.
void fill_with_siblings(World& world, Random& random);

/// Each agent of the instance with this chance, ascending.
[[nodiscard]] std::vector<std::uint32_t> random_set(Random& random, const detail::Instance& instance, double chance);
/// The set with these agents taken in, or left out if they are in it.
[[nodiscard]] std::vector<std::uint32_t> toggled(const std::vector<std::uint32_t>& set,
                                                 const std::vector<std::uint32_t>& agents);

}  // namespace topas::testing
