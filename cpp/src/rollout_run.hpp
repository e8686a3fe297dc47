// One rollout: the tasks in the system to their end, event by event (docs/specification.md, section 8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
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
  explicit RolloutRun(const RolloutModel& model) : model_(model) {}

  /// Sum over the tasks that end of (age at their end) ** power.
  [[nodiscard]] double cost(const RolloutMove& move, RolloutBase base, std::size_t scenario);

 private:
  /// A live request or one to come.
  struct Visit {
    std::uint32_t stage = 0;
    std::int64_t kv_tokens = 0;
  };
  using End = std::pair<double, std::uint32_t>;  // when, which visit

  void reset(const RolloutMove& move);
  void take_up(const RolloutMove& move);
  void wait(std::uint32_t visit);
  void release(std::uint32_t stage);
  void occupy(std::uint32_t visit);
  void start(std::uint32_t visit);
  void run_until(double end_s, std::uint32_t visit);
  void admit(RolloutBase base);
  void admit_in_turn();
  void admit_waiting(bool only_resident);
  [[nodiscard]] bool fits(const Visit& visit) const;
  void complete(std::uint32_t visit);
  void end_stage(std::uint32_t stage);

  const RolloutModel& model_;
  std::span<const RolloutModel::Work> work_;
  double now_ = 0.0;
  double cost_ = 0.0;
  std::int64_t room_ = 0;
  std::vector<Visit> visits_;
  std::vector<std::uint32_t> waiting_;      // by (stage, visit)
  std::vector<End> ends_;                   // of running visits, a heap
  std::vector<std::uint32_t> running_;      // requests of each agent
  std::vector<std::uint32_t> to_come_;      // requests of each stage
  std::vector<std::uint32_t> live_;         // of each stage
  std::vector<std::uint32_t> open_before_;  // of each stage
  std::vector<std::uint32_t> open_stages_;  // of each task
};

}  // namespace topas::detail
