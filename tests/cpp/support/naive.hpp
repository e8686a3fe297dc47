// The specification written down a second time, as slowly and as plainly as possible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "greedy_pack.hpp"
#include "instance.hpp"
#include "support/random_cases.hpp"

namespace topas::testing {

using StageSet = std::set<std::uint32_t>;

/// Blocks of the unfinished DAG by the definition of a separator: comparable with every other stage that is kept.
[[nodiscard]] std::vector<StageSet> naive_blocks(const Adjacency& after, const std::vector<bool>& finished);

/// Longest path of stage weights.
[[nodiscard]] double naive_longest_path(const Adjacency& after, const std::vector<double>& weights);

/// E[LP] over all joint residuals, one by one; `reduction[stage]` is what hypothetical completions take off.
[[nodiscard]] double naive_expected_path(const Adjacency& after, const Stages& stages,
                                         const std::vector<double>& reduction);

using Members = std::vector<std::uint32_t>;

/// One allocation of a prefix set: requests as indexes into Instance::waiting, in packing order.
struct NaiveAllocation {
  std::vector<std::uint32_t> admit;
  std::size_t kept = 0;
  std::size_t preempted = 0;
  double score = 0.0;
};

/// GreedyPack of SPEC section 4 with the score of section 3; none: infeasible.
[[nodiscard]] std::optional<NaiveAllocation> naive_pack(const detail::Instance& instance, const Members& members);

/// Search of SPEC section 5 over any evaluation of sets.
class NaiveSearch {
 public:
  using Evaluate = std::function<std::optional<NaiveAllocation>(const Members&)>;

  NaiveSearch(std::uint32_t agents, Evaluate evaluate) : agents_(agents), evaluate_(std::move(evaluate)) {}

  void enumerate();
  /// `firm`: the agents that must stay.
  void search_greedily(const Members& start, const Members& firm = {});
  /// The chosen set among all evaluated ones; none: no set is feasible.
  [[nodiscard]] std::optional<Members> choose() const;
  [[nodiscard]] std::size_t distinct() const noexcept { return known_.size(); }

 private:
  [[nodiscard]] double phi(const Members& members);
  [[nodiscard]] Members climb(Members at);
  [[nodiscard]] bool improve(Members& at, const std::vector<Members>& neighbours);
  [[nodiscard]] std::vector<Members> grown(const Members& members, std::size_t by) const;
  void repair(const Members& members);

  std::uint32_t agents_;
  Evaluate evaluate_;
  std::map<Members, std::optional<NaiveAllocation>> known_;
};

}  // namespace topas::testing
