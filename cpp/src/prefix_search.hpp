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
  /// A set that may have to be packed, made from another one.
  struct Listed {
    std::uint64_t key = 0;  ///< which: orders those that tie
    double upper = 0.0;     ///< bound of its Phi
    double value = 0.0;     ///< its Phi, once it is packed

    [[nodiscard]] static bool comes_later(const Listed& a, const Listed& b) noexcept {
      return a.upper != b.upper ? a.upper < b.upper : a.key > b.key;
    }
  };
  /// Writes the agents in which the set of a key differs from its base to toggled_, ascending.
  using Toggle = void (PrefixSearch::*)(std::uint64_t key);

  [[nodiscard]] static PrefixSet resident_agents(const Instance& instance);
  [[nodiscard]] static PrefixSet firm_agents(const Instance& instance);
  [[nodiscard]] static double density(const Instance& instance, const GreedyPack& pack, const Allocation& started);
  double evaluate(std::span<const std::uint32_t> members);
  double offer(std::span<const std::uint32_t> members, const Allocation& allocation);
  [[nodiscard]] bool is_needless(double upper, double bar) const;
  [[nodiscard]] bool is_spent() const;
  void list(std::uint64_t key, const Sums& sums, double bar);
  [[nodiscard]] std::size_t leave_what_can_be_foretold();
  void rank_listed(const PrefixSet& base, Toggle toggle, double bar);
  [[nodiscard]] Listed& next_listed(std::size_t left);
  void form(const PrefixSet& base, Toggle toggle, std::uint64_t key);
  void evaluate_listed(const PrefixSet& base, Toggle toggle);
  void enumerate();
  void list_subsets(std::uint32_t agent, std::uint64_t subset, const Sums& sums);
  void toggle_to_subset(std::uint64_t subset);
  void search_greedily();
  [[nodiscard]] Climbed climb(const PrefixSet& start);
  void list_singles(const Climbed& from);
  void list_pairs(const Climbed& from);
  void toggle_pair(std::uint64_t pair);
  [[nodiscard]] bool add_best(Climbed& from);
  void list_outside(const PrefixSet& set);
  void repair(const PrefixSet& set);

  const Instance& instance_;
  GreedyPack& pack_;
  Visitor visit_;
  PrefixSet start_;               // the resident active agents
  std::uint64_t start_bits_ = 0;  // the first 64 of them
  Allocation started_;            // packed
  SetBound bound_;
  Shortlist shortlist_;
  PrefixSet trial_;
  PrefixSet toggled_;
  PrefixSet outside_;
  std::vector<Listed> listed_;  // once ranked a heap; those taken out are behind it
  std::uint64_t evaluated_ = 0;
  std::uint64_t pruned_ = 0;
  std::uint64_t walked_ = 0;  // sets foretold, counted where there is a budget
};

}  // namespace topas::detail
