// What prefix sets need and the most they can score, agent by agent: most sets need not be packed.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arrival_walk.hpp"
#include "greedy_pack.hpp"
#include "instance.hpp"
#include "joint_worth.hpp"

namespace topas::detail {

/// Bounds of Phi. From above by Lagrangian relaxation: with a price on every token and every slot, each request is
/// worth its gain less what it takes, whatever else is admitted; what is worth less than nothing is left out. The sum
/// over a set, and the price of all its room, is an upper bound at any prices, and the lowest of a few is a good one.
/// Where the order of arrival decides what is admitted, a walk along it tells more, for the most part Phi itself.
class SetBound {
 public:
  /// Sums over the agents of a set.
  struct Sums {
    std::int64_t tokens = 0;        ///< prefixes and kept requests
    std::int64_t cover_tokens = 0;  ///< smallest reservations of the uncovered agents
    std::int64_t kept = 0;          ///< requests
    std::int64_t uncovered = 0;     ///< agents without a kept request
    std::int64_t firm = 0;          ///< agents that must stay
    std::int64_t incoming = 0;      ///< agents whose prefix is not resident
    std::int64_t moved_tokens = 0;  ///< prefixes that come in, less those that stay
    double fixed = 0.0;             ///< J_reuse, and the preemption that is spared
    Worth worth{};

    Sums& operator+=(const Sums& other) noexcept { return add<1>(other); }
    Sums& operator-=(const Sums& other) noexcept { return add<-1>(other); }

   private:
    template <int Times>
    Sums& add(const Sums& other) noexcept {
      tokens += Times * other.tokens;
      cover_tokens += Times * other.cover_tokens;
      kept += Times * other.kept;
      uncovered += Times * other.uncovered;
      firm += Times * other.firm;
      incoming += Times * other.incoming;
      moved_tokens += Times * other.moved_tokens;
      fixed += Times * other.fixed;
      for (std::size_t at = 0; at < kPrices; ++at) {
        worth[at] += Times * other.worth[at];
      }
      return *this;
    }
  };

  /// `pack`: for the gains of the waiting requests. `density`: see choose_prices().
  SetBound(const Instance& instance, const GreedyPack& pack, double density);

  [[nodiscard]] const Sums& of(std::uint32_t agent) const noexcept { return agents_[agent]; }
  [[nodiscard]] Sums of(std::span<const std::uint32_t> members) const noexcept;

  /// Whether GreedyPack finds an allocation for the set.
  [[nodiscard]] bool feasible(const Sums& set) const noexcept;
  /// Whether no larger set is feasible either.
  [[nodiscard]] bool overflows(const Sums& set) const noexcept { return set.tokens + set.cover_tokens > capacity_; }
  /// At least Phi of the set, by more than values that tie differ.
  [[nodiscard]] double upper(const Sums& set) const noexcept;
  /// How many sets are better packed than looked at with tighter().
  [[nodiscard]] std::size_t few() const noexcept;
  /// Whether tighter() walks: services are admitted by arrival.
  [[nodiscard]] bool foretells() const noexcept { return instance_.gains_are_services() && pack_.in_turn(); }
  /// For tighter(): the set that the next ones are told by. Dear at the first call.
  void start_from(std::span<const std::uint32_t> members);
  /// What is known of the Phi of a set. Nothing from below, but where Phi is told up to rounding.
  struct Told {
    double upper = 0.0;
    double lower = -std::numeric_limits<double>::infinity();
  };
  /// upper(), much tighter where tasks have siblings, of the set that start_from() named with some agents toggled.
  /// Where tighter() walks, it is minus infinity for a set that packing leaves without an emission, or whose Phi is
  /// below `bar`; and it is Phi up to rounding where moving costs nothing, or is paid for once, by agents of which none
  /// runs without its prefix.
  [[nodiscard]] Told tighter(std::span<const std::uint32_t> toggled, double bar);

 private:
  [[nodiscard]] Sums sums_of(const AgentView& agent) const noexcept;
  void add_worth(std::uint32_t task);
  [[nodiscard]] Worth worth_of(Range waiting, double together) const noexcept;
  [[nodiscard]] double upper(const Sums& set, const Worth& worth, double size) const noexcept;
  [[nodiscard]] Told walked(ArrivalWalk& walk, const Sums& set, std::span<const std::uint32_t> toggled,
                            double bar) const;
  [[nodiscard]] double moving(const Sums& set) const noexcept;
  [[nodiscard]] double with_charges(const Sums& set, double gains, double size) const noexcept;

  const Instance& instance_;
  const GreedyPack& pack_;
  std::int64_t capacity_;
  Prices prices_;
  bool moves_are_told_;     // moving() is all that they cost
  double size_ = 0.0;       // of all summands: what rounding is relative to
  double preempted_ = 0.0;  // J_redo and J_revoke if all that run are preempted
  std::vector<Sums> agents_;
  std::vector<Worth> apart_;            // of each agent: the worth of tasks that do not count jointly
  std::vector<std::uint32_t> jointly_;  // the tasks that do, and are worth something
  std::size_t joint_work_ = 0;          // of counting them jointly, in sets of siblings
  std::unique_ptr<JointWorth> joint_;   // once it is asked for, as the next one
  std::optional<ArrivalWalk> walk_;     // instead of it
  Sums base_;                           // of the set that tighter() goes by
  std::vector<std::uint8_t> inside_;    // of each agent: in that set
  PathScratch scratch_;
};

}  // namespace topas::detail
