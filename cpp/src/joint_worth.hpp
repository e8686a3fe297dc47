// What the waiting requests of a prefix set are worth at given prices, siblings jointly.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "greedy_pack.hpp"
#include "instance.hpp"

namespace topas::detail {

inline constexpr std::size_t kPrices = 4;

/// What a token and a slot cost, seconds, several times.
struct Prices {
  std::array<double, kPrices> token{};
  std::array<double, kPrices> slot{};

  /// What a price leaves of a gain for so many tokens and slots.
  [[nodiscard]] double left_of(std::size_t price, double gain, double tokens, double slots = 1.0) const noexcept {
    return gain - (token[price] * tokens + slot[price] * slots);
  }
};

/// What something is worth at each price: its gain less what it takes, no less than nothing.
using Worth = std::array<double, kPrices>;

/// Prices around `density`, what the last token of room gains in a good set (seconds); where slots are few the last
/// price is that of a slot alone.
[[nodiscard]] Prices choose_prices(const Instance& instance, const GreedyPack& pack, double density);

/// Siblings of a task gain together what none gains alone: where a model tells the gain of every set of completions,
/// each prefix set is credited with the best choice among the siblings that it serves. Other tasks count agent by
/// agent.
class JointWorth {
 public:
  /// Whether a task's siblings count jointly.
  [[nodiscard]] static bool counts(const GreedyPack& pack, const TaskView& task) noexcept {
    return pack.has_siblings(task) && task.outcomes > 0;
  }

  /// `tasks`: those that count jointly and are worth something. `apart`: of each agent, what its requests of the other
  /// tasks are worth.
  JointWorth(const Instance& instance, const GreedyPack& pack, const Prices& prices,
             std::span<const std::uint32_t> tasks, std::vector<Worth> apart, PathScratch& scratch);

  /// The set that the next ones are told by.
  void start_from(std::span<const std::uint32_t> members);
  /// At least what any admissions are worth from the set that start_from() named with these agents toggled, each once:
  /// taken in, or left out.
  [[nodiscard]] Worth with_toggled(std::span<const std::uint32_t> agents);
  /// The same of one agent or two, up to rounding; cheap when one of them, the first or that of the set, is that of the
  /// call before.
  [[nodiscard]] Worth with_toggled(std::uint32_t first, std::uint32_t second);
  /// Of all summands together: what rounding is relative to.
  [[nodiscard]] double size() const noexcept { return size_; }

 private:
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};

  /// An agent in a group: bits of its siblings.
  struct Member {
    std::uint32_t agent = 0;
    std::size_t bits = 0;
  };
  /// Tasks whose siblings belong to the same agents.
  struct Group {
    std::uint64_t hash = 0;   ///< of its agents
    Range agents{};           ///< into agents_: of each sibling
    Range members{};          ///< into members_: distinct
    std::size_t worth = 0;    ///< into worths_: of each set of siblings at each price, all tasks together
    std::size_t set = 0;      ///< of siblings whose agents are inside
    std::size_t toggled = 0;  ///< scratch
  };
  /// Where an agent stands in a group.
  struct Place {
    std::uint32_t group = 0;
    std::size_t bits = 0;
  };
  struct Sibling {
    std::uint32_t agent = 0;
    std::uint32_t bit = 0;  ///< in the sets of its model
    std::int64_t kv_tokens = 0;
    bool waiting = false;
  };
  void charge_covers(const GreedyPack& pack);
  void add_jointly(const TaskView& task, PathScratch& scratch);
  void list_siblings(const TaskView& task);
  void take_sets(const TaskView& task, std::span<const double> gains);
  [[nodiscard]] Group& group_of_siblings();
  void index_groups();
  void tell_each();
  void tell_with(std::uint32_t agent);
  [[nodiscard]] std::span<const Member> members_of(const Group& group) const noexcept {
    return {members_.data() + group.members.begin, group.members.size()};
  }
  [[nodiscard]] std::span<const Place> places_at(std::uint32_t agent) const noexcept {
    return {places_.data() + places_of_[agent].begin, places_of_[agent].size()};
  }
  [[nodiscard]] const double* worth_of(const Group& group, std::size_t set) const noexcept {
    return &worths_[group.worth + set * kPrices];
  }
  static void add_worth(Worth& sum, double times, const double* values) noexcept;

  const Instance& instance_;
  Prices prices_;
  std::vector<Worth> apart_;  // of each agent
  std::vector<Group> groups_;
  std::vector<std::uint32_t> agents_;  // group by group, as what follows
  std::vector<Member> members_;
  std::vector<double> worths_;
  std::vector<std::uint32_t> group_at_;  // an open hash table of groups, by their agents
  std::vector<Place> places_;            // agent by agent
  std::vector<Range> places_of_;         // of each agent
  std::vector<std::uint8_t> inside_;     // of each agent: in the set that is started from
  Worth base_{};                         // of that set
  std::vector<std::uint32_t> changed_;   // scratch: groups
  // What toggling changes, told when it is asked for.
  bool each_told_ = false;
  std::vector<Worth> each_;            // of each agent alone
  std::uint32_t told_with_ = kNobody;  // one of the pairs
  std::vector<Worth> jointly_;         // of each agent: what both change beyond what each does, with that one
  std::vector<std::uint32_t> with_;    // the agents for which that is not zero
  double size_ = 0.0;

  // Scratch: of one task.
  std::vector<Sibling> siblings_;
  std::vector<std::uint32_t> completes_;  // of each set of siblings, as what follows: sets of its model
  std::vector<std::uint32_t> runs_;       // those of them that run
  std::vector<double> gains_;             // aged
  std::vector<double> tokens_;            // that admitting those that wait takes
  std::vector<double> slots_;
  std::vector<double> worth_;  // kPrices for each set
};

}  // namespace topas::detail
