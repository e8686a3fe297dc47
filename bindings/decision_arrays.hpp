// A decision as NumPy arrays.
#pragma once

#include "arguments.hpp"
#include "topas/decision.hpp"

namespace topas::python {

/// A topas.decision.DecisionArrays.
class DecisionArrays : public py::tuple {
  PYBIND11_OBJECT(DecisionArrays, py::tuple, PyTuple_Check)
};

/// Read-only arrays that own their data; integer ids pass through no Python object.
[[nodiscard]] DecisionArrays decision_arrays(const Decision& decision);

}  // namespace topas::python

namespace pybind11::detail {

template <>
struct handle_type_name<topas::python::DecisionArrays> {
  static constexpr auto name = const_name("topas.decision.DecisionArrays");
};

}  // namespace pybind11::detail
