// Whether a snapshot makes sense.
#pragma once

#include "topas/snapshot.hpp"

namespace topas::detail {

/// Throws SnapshotError naming the path of the first wrong field: values out of range, duplicate or unknown ids.
/// (Cycles are found where the graphs are built.)
void check(const Snapshot& snapshot);

}  // namespace topas::detail
