// One rollout: the tasks in the system to their end, event by event (SPEC section 8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rollout_model.hpp"

namespace topas::detail {

/// What a decision does, by numbers of the model's requests.
struct RolloutMove {
  std::vector<std::uint32_t> admit;    ///< in order
  std::vector<std::uint32_t> preempt;  ///< ascending
};

/// Who comes first after the first decision, in order of arrival.
enum class RolloutBase : std::uint8_t {
  strict,    ///< waiting requests until one does not fit
  arrival,   ///< every waiting request that fits
  resident,  ///< those whose prefix is there, then the others
};

/// Its buffers are reused from run to run.
class RolloutRun {
 public:
  explicit RolloutRun(const RolloutModel& model);

  /// Begin from the state after a decision; the same for all scenarios.
  void take(const RolloutMove& move);
  /// Sum over the tasks that end of (age at their end) ** power, after the decision that was taken.
  [[nodiscard]] double cost(RolloutBase base, std::size_t scenario);

 private:
  /// A live request or one to come.
  struct Visit {
    std::uint32_t stage = 0;
    std::uint32_t next = 0;  ///< of its stage that waits
    std::int64_t kv_tokens = 0;
  };
  struct Stage {
    std::uint32_t live = 0;
    std::uint32_t made = 0;  ///< visits so far
    std::uint32_t open_before = 0;
    std::uint32_t first = 0;  ///< that waits
    std::uint32_t last = 0;
  };
  struct Agent {
    std::uint32_t running = 0;
    std::uint32_t waiting = 0;
    std::int64_t needs = 0;  ///< room below which none of its visits fits
  };
  struct State {
    std::int64_t room = 0;
    std::vector<Visit> visits;
    std::vector<Stage> stages;
    std::vector<Agent> agents;
    std::vector<std::uint32_t> open_stages;  ///< of each task
    std::vector<std::uint64_t> waiting;      ///< a bit for each stage with a visit that waits
  };
  struct Started {
    std::uint32_t visit = 0;
    double load_s = 0.0;
    double spent_s = 0.0;
  };
  struct End {
    double at_s = 0.0;
    std::uint32_t visit = 0;
  };

  void wait(std::uint32_t visit);
  void release(std::uint32_t stage);
  double occupy(std::uint32_t visit);
  void run_until(double end_s, std::uint32_t visit);
  void admit(RolloutBase base);
  void admit_in_turn();
  void admit_waiting(bool only_resident);
  bool admit_of(std::uint32_t at, bool strict);
  void list_able(bool only_resident);
  [[nodiscard]] std::uint64_t stages_of_able(std::uint32_t word) const;
  [[nodiscard]] bool has_slot() const;
  [[nodiscard]] std::size_t running() const noexcept { return ends_.size() - ended_; }
  void complete(std::uint32_t visit);
  void end_stage(std::uint32_t stage);

  const RolloutModel& model_;
  std::uint32_t words_;                   // of a bit for each stage
  std::vector<std::uint64_t> stages_of_;  // each agent, words_ of them
  std::int64_t least_kv_tokens_;          // no visit reserves less
  State begin_;
  std::vector<Started> started_;  // by the decision, and what runs
  // Of the present run:
  const RolloutModel::Work* work_ = nullptr;
  double now_ = 0.0;
  double cost_ = 0.0;
  State state_;
  std::vector<End> ends_;  // ascending (time, visit)
  std::size_t ended_ = 0;  // of them
  std::vector<std::uint32_t> able_;
};

}  // namespace topas::detail
