// Which prefix sets are tried, and which one is chosen (SPEC section 5).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "greedy_pack.hpp"
#include "instance.hpp"
#include "set_bound.hpp"

namespace topas::detail {

/// Ascending indexes of active agents.
using PrefixSet = std::vector<std::uint32_t>;

/// Keeps the evaluated sets that tie with the best so far, so that the choice does not depend on the order of
/// evaluation. A set that leaves nothing running counts only while there is no other.
class Shortlist {
 public:
  void offer(std::span<const std::uint32_t> members, const Allocation& allocation);
  /// The chosen set; at least one feasible set must have been offered.
  [[nodiscard]] const PrefixSet& choose() const;
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  /// What a set must score, within a tie, to be chosen.
  [[nodiscard]] double bar() const noexcept;

 private:
  struct Entry {
    PrefixSet members;
    Allocation allocation;
  };
  [[nodiscard]] static bool precedes(const Entry& left, const Entry& right);
  void keep_ties_of(double highest);

  std::vector<Entry> entries_;
  double highest_ = 0.0;
  bool only_empty_ = true;
};

class PrefixSearch {
 public:
  using Visitor = std::function<void(std::span<const std::uint32_t>, const Allocation&)>;

  /// `visit`, when set, sees every feasible set that SPEC section 5 names; without it the sets that cannot be chosen
  /// are left out.
  PrefixSearch(const Instance& instance, GreedyPack& pack, Visitor visit = {});

  /// The chosen set; none when no set is feasible (more is running than the limits allow).
  [[nodiscard]] std::optional<PrefixSet> run();
  /// Sets that were packed.
  [[nodiscard]] std::uint64_t evaluated() const noexcept { return evaluated_; }
  /// Feasible sets that were not, since they could not be chosen.
  [[nodiscard]] std::uint64_t pruned() const noexcept { return pruned_; }

 private:
  using Sums = SetBound::Sums;

  /// A set and its Phi.
  struct Climbed {
    PrefixSet set;
    Sums sums;
    double value = 0.0;
  };
  /// One agent, or two when `second` differs.
  struct Addition {
    std::uint32_t first = 0;
    std::uint32_t second = 0;
    double upper = 0.0;  ///< bound of the set with it
    double value = 0.0;  ///< its Phi, where that matters
  };

  double evaluate(std::span<const std::uint32_t> members);
  void consider(std::span<const std::uint32_t> members, const Sums& sums);
  [[nodiscard]] bool is_needless(double upper, double bar) const;
  [[nodiscard]] bool is_spent() const;
  [[nodiscard]] Sums sums_of(std::span<const std::uint32_t> members) const;
  void enumerate();
  void enumerate(std::uint32_t agent, const Sums& sums);
  void search_greedily();
  [[nodiscard]] Climbed climb(const PrefixSet& start);
  void list_singles(const Climbed& from);
  void list_pairs(const Climbed& from);
  void list(const Climbed& from, const Addition& addition);
  [[nodiscard]] bool add_best(Climbed& from);
  void extend(const PrefixSet& set, const Addition& addition);
  [[nodiscard]] Sums extended(const Sums& sums, const Addition& addition) const;
  void list_outside(const PrefixSet& set);
  void repair(const PrefixSet& set);

  const Instance& instance_;
  GreedyPack& pack_;
  SetBound bound_;
  Visitor visit_;
  Shortlist shortlist_;
  PrefixSet start_;  // the resident active agents
  PrefixSet trial_;
  PrefixSet outside_;
  std::vector<Addition> additions_;
  std::uint64_t evaluated_ = 0;
  std::uint64_t pruned_ = 0;
};

}  // namespace topas::detail
