#include "decision_arrays.hpp"

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/numpy.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace topas::python {

namespace {

py::array sealed(py::array array) {
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

/// Of as many values as there are items; `value_of` reads one.
template <class Value, class Items, class Read>
py::array numbers(const Items& items, Read value_of) {
  py::array_t<Value> out(static_cast<py::ssize_t>(items.size()));
  std::transform(items.begin(), items.end(), out.mutable_data(), value_of);
  return sealed(std::move(out));
}

py::array objects(const std::vector<Id>& ids) {
  py::array out(py::dtype(py::detail::npy_api::NPY_OBJECT_), static_cast<py::ssize_t>(ids.size()));
  std::transform(ids.begin(), ids.end(), static_cast<PyObject**>(out.mutable_data()), [](const Id& id) {
    py::object object = py::cast(id);
    if (!object) {
      throw py::error_already_set();
    }
    return object.release().ptr();
  });
  return sealed(std::move(out));
}

py::array ids_array(const std::vector<Id>& ids) {
  const auto is_integer = [](const Id& id) { return std::holds_alternative<std::int64_t>(id.value()); };
  if (!std::all_of(ids.begin(), ids.end(), is_integer)) {
    return objects(ids);
  }
  return numbers<std::int64_t>(ids, [](const Id& id) { return *std::get_if<std::int64_t>(&id.value()); });
}

/// DecisionArrays._make: a named tuple of a tuple.
const py::object& from_fields() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> stored;
  return stored
      .call_once_and_store_result(
          []() -> py::object { return py::module_::import("topas.decision").attr("DecisionArrays").attr("_make"); })
      .get_stored();
}

}  // namespace

DecisionArrays decision_arrays(const Decision& decision) {
  const Terms& terms = decision.terms;
  const std::array<double, 5> by_term{terms.admit, terms.reuse, terms.move, terms.redo, terms.revoke};
  const py::tuple fields =
      py::make_tuple(ids_array(decision.resident), ids_array(decision.admit),
                     numbers<double>(decision.credits, [](const Credit& credit) { return credit.value; }),
                     ids_array(decision.preempt), ids_array(decision.load), ids_array(decision.drop),
                     ids_array(decision.unschedulable), numbers<double>(by_term, [](double term) { return term; }));
  return from_fields()(fields);
}

}  // namespace topas::python
