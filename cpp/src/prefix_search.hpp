// Which prefix sets are tried, and which one is chosen (SPEC section 5).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "greedy_pack.hpp"
#include "instance.hpp"

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

  /// `visit`, when set, sees every evaluated set.
  PrefixSearch(const Instance& instance, GreedyPack& pack, Visitor visit = {});

  /// The chosen set; none when no set is feasible (more is running than the limits allow).
  [[nodiscard]] std::optional<PrefixSet> run();
  [[nodiscard]] std::uint64_t evaluated() const noexcept { return evaluated_; }

 private:
  /// A set and its Phi.
  struct Climbed {
    PrefixSet set;
    double value = 0.0;
  };
  /// One agent, or two when `second` differs.
  struct Addition {
    std::uint32_t first = 0;
    std::uint32_t second = 0;
  };

  double evaluate(std::span<const std::uint32_t> members);
  void enumerate();
  void search_greedily();
  [[nodiscard]] Climbed climb(const PrefixSet& start);
  [[nodiscard]] bool add_best(Climbed& from, std::span<const Addition> additions);
  void extend(const PrefixSet& set, const Addition& addition);
  [[nodiscard]] std::vector<Addition> singles(const PrefixSet& set) const;
  [[nodiscard]] std::vector<Addition> pairs(const PrefixSet& set) const;
  [[nodiscard]] PrefixSet outside(const PrefixSet& set) const;
  void repair(const PrefixSet& set);

  const Instance& instance_;
  GreedyPack& pack_;
  Visitor visit_;
  Shortlist shortlist_;
  PrefixSet trial_;
  std::uint64_t evaluated_ = 0;
};

}  // namespace topas::detail
