// Snapshots from and to the plain dictionaries of a JSON line.
#pragma once

#include "arguments.hpp"
#include "topas/snapshot.hpp"

namespace topas::python {

/// Throws SnapshotError or IdError naming the path of the first field that is missing, unknown or of the wrong type.
[[nodiscard]] Snapshot read_snapshot(py::handle fields);
[[nodiscard]] Fields write_snapshot(const Snapshot& snapshot);

}  // namespace topas::python
