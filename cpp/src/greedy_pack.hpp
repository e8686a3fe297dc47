// GreedyPack: the best allocation under one prefix set (SPEC section 4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "instance.hpp"
#include "option_order.hpp"
#include "score.hpp"

namespace topas::detail {

/// The best allocation that one prefix set admits. `admitted` counts into GreedyPack::admissions().
struct Allocation {
  bool feasible = false;
  double score = 0.0;
  std::uint32_t admitted = 0;
  std::uint32_t kept = 0;  ///< running requests that stay
  std::uint32_t preempted = 0;
  Terms terms;

  [[nodiscard]] bool empty() const noexcept { return kept + admitted == 0; }
};

struct Admission {
  std::uint32_t request = 0;  ///< index into Instance::waiting
  double gain = 0.0;          ///< g * marginal, seconds
};

/// Its buffers are reused from set to set: packing a set allocates nothing once they have grown.
class GreedyPack {
 public:
  explicit GreedyPack(const Instance& instance);

  /// `members`: ascending indexes of active agents.
  [[nodiscard]] Allocation pack(std::span<const std::uint32_t> members);

  /// Makes the last pack() use all room: admits what fits, then takes in agents from outside, those first whose waiting
  /// requests gain the most, until nothing fits (SPEC section 6, work_conserving). `members` and `allocation`: of that
  /// pack().
  void fill(std::vector<std::uint32_t>& members, Allocation& allocation);

  /// At least what a waiting request gains, whatever else is admitted or kept; g * seconds.
  [[nodiscard]] double most_gain(std::uint32_t request) const noexcept { return most_gain_[request]; }
  /// The same for all waiting requests of a task together.
  [[nodiscard]] double most_gain_of(std::uint32_t task) const noexcept { return most_gain_of_[task]; }
  /// Whether what a request of the task gains depends on other requests.
  [[nodiscard]] bool has_siblings(const TaskView& task) const noexcept {
    return !instance_.gains_are_services() &&
           (task.waiting.size() > 1 || (instance_.config->count_running && task.running.size() > 0));
  }

  /// The waiting requests in order, if all that run is kept.
  [[nodiscard]] const OptionOrder& order() const noexcept { return order_; }

  /// Whether requests are admitted by arrival.
  [[nodiscard]] bool in_turn() const noexcept { return instance_.config->admit_order == AdmitOrder::arrival; }
  /// Every admission tried by the last pack(), in order; its allocation is the first `admitted` of them.
  [[nodiscard]] std::span<const Admission> admissions() const noexcept { return admissions_; }

  /// g * marginal of a waiting request after the first `admitted` admissions of the last pack(), seconds.
  [[nodiscard]] double gain_after(std::uint32_t request, std::uint32_t admitted);

  /// What the next token of room would gain in the set of the last pack(), about: the largest density that it left.
  [[nodiscard]] double density_left() const;
  /// The density of the waiting request at which the best of all agents, each admitted alone while all that runs is
  /// kept, have taken so many tokens; 0 if they take less.
  [[nodiscard]] double density_after(std::int64_t tokens) const noexcept;

  /// Free tokens and slots of the last pack() after its first `admitted` admissions.
  [[nodiscard]] std::int64_t room_after(std::uint32_t admitted) const;
  [[nodiscard]] std::int64_t slots_after(std::uint32_t admitted) const noexcept { return first_slots_ - admitted; }

 private:
  struct Emission {
    std::uint32_t admitted = 0;
    double score = 0.0;
    double admit = 0.0;  ///< terms of it, as the next one; admissions change no others
    double move = 0.0;
  };
  /// The best option so far, a ranked or a loose one.
  struct Choice {
    Option option;
    std::size_t loose = 0;  ///< its place among the loose options, past their end for a ranked one
    bool found = false;
  };

  /// An agent that could be taken in.
  struct Wanted {
    std::uint32_t agent = 0;
    double demand = 0.0;
  };

  static void set_bit(std::span<std::uint64_t> set, std::uint32_t bit, bool value) noexcept {
    const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
    set[bit / 64] = value ? set[bit / 64] | mask : set[bit / 64] & ~mask;
  }
  void rank_waiting();
  void complete_running();
  /// Whether what requests of the task gain depends on which running ones are kept.
  [[nodiscard]] bool depends_on_running(std::uint32_t task) const noexcept {
    return instance_.config->count_running && !instance_.gains_are_services() &&
           instance_.tasks[task].running.size() > 0;
  }
  void bound_gains();
  [[nodiscard]] double gain_of_all(const TaskView& task);
  [[nodiscard]] bool start(std::span<const std::uint32_t> members, Allocation& out);
  void clear_tasks();
  void undo_preempted();
  void open_order(std::span<const std::uint32_t> members);
  void list_loose();
  [[nodiscard]] std::int64_t room_for(std::uint32_t agent) const noexcept;
  [[nodiscard]] bool fits(const RequestView& request) const noexcept;
  [[nodiscard]] std::uint32_t next_fitting(std::uint32_t place) const;
  [[nodiscard]] Choice next_in_turn();
  [[nodiscard]] Choice best_option();
  [[nodiscard]] bool stands_alone(std::uint32_t place) const;
  void consider_ranked(double largest, Choice& best) const;
  [[nodiscard]] bool precedes(const Option& left, const Option& right) const;
  void admit(const Choice& choice);
  void loosen_task(std::uint32_t task);
  void complete(const RequestView& request);
  [[nodiscard]] double path_of(const TaskView& task);
  [[nodiscard]] double path_before_each(const TaskView& task);
  [[nodiscard]] double fall_with(const RequestView& request, double before);
  [[nodiscard]] Option option_alone(std::uint32_t request);
  [[nodiscard]] Option option_for(std::uint32_t request, double gain) const;
  [[nodiscard]] Option option_of(std::uint32_t request);
  [[nodiscard]] Option option_of(std::uint32_t request, double before);
  [[nodiscard]] std::span<std::uint64_t> completions(const TaskView& task) noexcept {
    return {completions_.data() + task.first_word, task.words};
  }
  void emit();
  void choose_emission(Allocation& out) const;
  [[nodiscard]] std::optional<std::uint32_t> most_wanted();
  [[nodiscard]] double demand(std::uint32_t agent);
  void join(std::uint32_t agent);

  const Instance& instance_;
  Score score_;
  PathScratch scratch_;

  // Of the instance.
  OptionOrder order_;                            // of the waiting requests, if all that run is kept
  std::vector<std::uint64_t> kept_completions_;  // hypothetical completions of each task then
  std::vector<std::uint32_t> runners_;           // agents whose running requests are among them
  std::vector<double> most_gain_;                // of each waiting request
  std::vector<double> most_gain_of_;             // of each task

  // Of the set being packed.
  std::vector<std::uint8_t> inside_;     // of each agent: in the set
  std::vector<std::uint8_t> uncovered_;  // of each agent: in the set, without a request so far
  std::int64_t uncovered_count_ = 0;
  std::int64_t uncovered_kv_ = 0;  // reserved for them
  std::int64_t room_ = 0, first_room_ = 0;
  std::int64_t slots_ = 0, first_slots_ = 0;
  std::vector<std::uint64_t> completions_;  // hypothetical completions of each task
  std::vector<std::uint32_t> represented_;  // of each task: how many of its requests are admitted
  std::vector<std::uint32_t> touched_;      // tasks whose two entries above are not zero
  std::uint32_t first_ = 0;                 // no place before it fits
  bool ended_ = false;                      // what is next does not fit, and nothing may overtake it
  std::vector<Option> loose_;               // options whose marginal is their own
  std::vector<Admission> admissions_;
  std::vector<Emission> emissions_;
  double highest_ = 0.0;            // score emitted
  std::vector<Wanted> candidates_;  // scratch of most_wanted()
};

}  // namespace topas::detail
