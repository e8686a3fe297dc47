// The longest path through a DAG of stages, each with one length.
#pragma once

#include <algorithm>
#include <vector>

#include "topas/workflow.hpp"

namespace topas::detail {

/// Sum of `length_of(stage)` along the longest path; `ends` is scratch.
template <class LengthOf>
[[nodiscard]] double longest_path(const StageGraph& graph, std::vector<double>& ends, const LengthOf& length_of) {
  ends.assign(graph.size(), 0.0);
  double longest = 0.0;
  for (const auto stage : graph.order()) {
    for (const auto before : graph.predecessors(stage)) {
      ends[stage] = std::max(ends[stage], ends[before]);
    }
    ends[stage] += length_of(stage);
    longest = std::max(longest, ends[stage]);
  }
  return longest;
}

}  // namespace topas::detail
