// The score of one candidate prefix set, term by term, while requests are admitted under it (SPEC section 3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "instance.hpp"
#include "topas/decision.hpp"

namespace topas::detail {

class Score {
 public:
  explicit Score(const Instance& instance);

  /// Starts a candidate: `inside` marks the agents of R', `members` lists them, ascending.
  void start(std::span<const std::uint32_t> members, const std::vector<std::uint8_t>& inside);
  /// The same by clear(), hold() for each agent of R', ascending, and preempt_outside(), in this
  /// order.
  void clear();
  void hold(const AgentView& agent) noexcept {
    (agent.resident ? staying_ : incoming_) += agent.prefix_tokens;
    terms_.reuse += agent.reuse;
  }
  /// `inside` marks the agents of R'.
  void preempt_outside(const std::vector<std::uint8_t>& inside);
  void admit(const RequestView& request, double gain);

  [[nodiscard]] const Terms& terms() const noexcept { return terms_; }

 private:
  const Instance& instance_;
  Terms terms_;
  std::int64_t incoming_ = 0, staying_ = 0;  ///< tokens of prefixes
  double transfer_s_ = 0.0;                  ///< of all incoming and outgoing prefixes
  std::int64_t waiting_tasks_ = 0;           ///< |T_in|
  std::vector<std::uint8_t> task_waits_;     ///< whether a task is in T_in
  std::vector<std::uint32_t> tasks_marked_;
};

}  // namespace topas::detail
