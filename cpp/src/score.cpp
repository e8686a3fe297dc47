#include "score.hpp"

namespace topas::detail {

Score::Score(const Instance& instance) : instance_(instance), task_waits_(instance.tasks.size(), 0) {}

void Score::start(std::span<const std::uint32_t> members, const std::vector<std::uint8_t>& inside) {
  clear();
  for (const auto member : members) {
    hold(instance_.agents[member]);
  }
  preempt_outside(inside);
}

void Score::clear() {
  for (const auto task : tasks_marked_) {
    task_waits_[task] = 0;
  }
  tasks_marked_.clear();
  waiting_tasks_ = 0;
  terms_ = {};
  incoming_ = staying_ = 0;
}

void Score::preempt_outside(const std::vector<std::uint8_t>& inside) {
  for (std::size_t at = 0; at < instance_.running.size();) {  // by agent
    const std::uint32_t number = instance_.running[at].agent;
    const AgentView& agent = instance_.agents[number];
    if (inside[number] == 0) {
      terms_.redo += agent.redo;
      terms_.revoke += agent.revoke;
    }
    at = agent.running.end;
  }
  const bool once = instance_.config->move_model == MoveModel::once;
  // By `once` an idle prefix leaves for nothing, and one that is still wanted must be loaded again, whoever waits now.
  const std::int64_t leaving = instance_.resident_tokens - (once ? instance_.idle_resident_tokens : 0) - staying_;
  const double each = instance_.config->move_weight * instance_.seconds_per_token_moved();
  transfer_s_ = each * static_cast<double>(incoming_ + leaving);
  terms_.move = once ? each * static_cast<double>(leaving) : 0.0;
}

void Score::admit(const RequestView& request, double gain) {
  terms_.admit += gain;
  if (!instance_.agents[request.agent].resident && task_waits_[request.task] == 0) {
    task_waits_[request.task] = 1;
    tasks_marked_.push_back(request.task);
    ++waiting_tasks_;
    const std::int64_t payers = instance_.config->move_model == MoveModel::once ? 1 : waiting_tasks_;
    terms_.move = static_cast<double>(payers) * transfer_s_;
  }
}

}  // namespace topas::detail
