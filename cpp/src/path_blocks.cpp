#include "path_blocks.hpp"

#include <algorithm>
#include <limits>

namespace topas::detail {

namespace {

constexpr std::uint32_t kGone = std::numeric_limits<std::uint32_t>::max();

/// Remaining stages in topological order, and the position of each (kGone: not remaining).
struct Remaining {
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> position;
};

/// Marks the stages that have an unfinished stage strictly before (after) them.
template <class Order, class Neighbours>
std::vector<bool> beyond_unfinished(const Order& begin, const Order& end, std::span<const StageOutlook> stages,
                                    const Neighbours& neighbours) {
  std::vector<bool> beyond(stages.size(), false);
  for (auto at = begin; at != end; ++at) {
    const auto near = neighbours(*at);
    beyond[*at] =
        std::any_of(near.begin(), near.end(), [&](auto other) { return beyond[other] || !stages[other].finished; });
  }
  return beyond;
}

Remaining remaining_stages(const StageGraph& graph, std::span<const StageOutlook> stages) {
  const auto order = graph.order();
  Remaining left{{}, std::vector<std::uint32_t>(stages.size(), kGone)};
  const auto keep = [&left](std::uint32_t stage) {
    left.position[stage] = static_cast<std::uint32_t>(left.order.size());
    left.order.push_back(stage);
  };
  const auto after =
      beyond_unfinished(order.begin(), order.end(), stages, [&graph](auto stage) { return graph.predecessors(stage); });
  const auto before =
      beyond_unfinished(order.rbegin(), order.rend(), stages, [&graph](auto stage) { return graph.successors(stage); });
  for (const auto stage : order) {
    if (!stages[stage].finished || (after[stage] && before[stage])) {
      keep(stage);
    }
  }
  return left;
}

/// A stage at position p is a separator exactly when every stage before p has a successor at or before p, and every
/// stage after p a predecessor at or after p (then each walk along those edges ends in p).
std::vector<bool> separators(const StageGraph& graph, const Remaining& left) {
  const auto count = static_cast<std::uint32_t>(left.order.size());
  std::vector<bool> separates(count, true);
  std::uint32_t reach = 0;  // the furthest "nearest successor" of the stages so far
  for (std::uint32_t at = 0; at < count; ++at) {
    separates[at] = at >= reach;
    std::uint32_t nearest = kGone;
    for (const auto next : graph.successors(left.order[at])) {
      nearest = std::min(nearest, left.position[next]);
    }
    reach = std::max(reach, nearest);
  }
  std::uint32_t back = count;  // one past the earliest "nearest predecessor" of the stages so far, from behind
  for (std::uint32_t at = count; at-- > 0;) {
    separates[at] = separates[at] && at < back;
    std::uint32_t nearest = 0;  // one past it, too
    for (const auto before : graph.predecessors(left.order[at])) {
      if (left.position[before] != kGone) {
        nearest = std::max(nearest, left.position[before] + 1);
      }
    }
    back = std::min(back, nearest);
  }
  return separates;
}

}  // namespace

PathBlocks path_blocks(const StageGraph& graph, std::span<const StageOutlook> stages) {
  const Remaining left = remaining_stages(graph, stages);
  const std::vector<bool> separates = separators(graph, left);
  PathBlocks blocks;
  bool open = false;  // whether the last block is a run that goes on
  for (std::size_t at = 0; at < left.order.size(); ++at) {
    if (separates[at] || !open) {
      blocks.emplace_back();
    }
    blocks.back().push_back(left.order[at]);
    open = !separates[at];
  }
  return blocks;
}

}  // namespace topas::detail
