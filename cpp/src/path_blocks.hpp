// Cutting the remaining DAG of a task where every remaining path passes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "residual.hpp"
#include "topas/workflow.hpp"

namespace topas::detail {

/// A separator is a stage that is before or after every other remaining stage. The longest remaining path passes every
/// separator, so it is the sum over blocks (each separator alone, each run of stages between two separators) of the
/// longest path inside the block; the expectation splits the same way, and a marginal depends on one block only.
/// Finished stages stay in (with residual zero) only where they lie between unfinished ones.
///
/// Blocks in order from the front; the stages of a block in topological order.
using PathBlocks = std::vector<std::vector<std::uint32_t>>;
[[nodiscard]] PathBlocks path_blocks(const StageGraph& graph, std::span<const StageOutlook> stages);

}  // namespace topas::detail
