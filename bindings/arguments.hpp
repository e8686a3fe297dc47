// Arguments as Python gives them, checked by hand so that a wrong one is named with its value.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "topas/config.hpp"
#include "topas/error.hpp"
#include "topas/id.hpp"
#include "topas/workflow.hpp"

namespace topas::python {

namespace py = pybind11;

/// A plain dictionary by field name.
using Fields = py::typing::Dict<py::str, py::handle>;

/// An id of the wrong type or size; becomes topas.IdError.
class IdError final : public Error {
 public:
  using Error::Error;
};

/// A finite or infinite number that is not a bool; throws `Failure` naming `name`.
template <class Failure>
[[nodiscard]] double to_real(py::handle value, std::string_view name);
/// An integer of 64 bits that is not a bool; throws `Failure` naming `name`.
template <class Failure>
[[nodiscard]] std::int64_t to_integer(py::handle value, std::string_view name);
/// True or False; throws `Failure` naming `name`.
template <class Failure>
[[nodiscard]] bool to_bool(py::handle value, std::string_view name);
/// Throws IdError naming `name`.
[[nodiscard]] Id to_id(py::handle value, std::string_view name);

/// Equality with any object, as Python has it.
template <class Value>
[[nodiscard]] bool equals(const Value& left, const py::object& right) {
  return py::isinstance<Value>(right) && left == py::cast<const Value&>(right);
}

/// repr(value), at most 80 characters of it.
[[nodiscard]] std::string shown(py::handle value);

/// From topas.Config, checked. Throws ConfigError.
[[nodiscard]] Config to_config(py::handle config);
/// From topas.Workflow, checked. Throws WorkflowError or IdError.
[[nodiscard]] Workflow to_workflow(py::handle workflow);

/// Parameters of bound functions: they take whatever comes and are read under their own name.
struct Real {
  py::handle value;
  [[nodiscard]] double get(const char* name) const { return to_real<ArgumentError>(value, name); }
};
struct Integer {
  py::handle value;
  [[nodiscard]] std::int64_t get(const char* name) const { return to_integer<ArgumentError>(value, name); }
};
struct Name {
  py::handle value;
  [[nodiscard]] Id get(const char* name) const { return to_id(value, name); }
};
struct ConfigArgument {
  py::handle value;
};
struct WorkflowArgument {
  py::handle value;
};

template <class Wrapper>
struct AnyCaster {
  Wrapper value;
  bool load(py::handle source, bool) {
    value.value = source;
    return true;
  }
  template <class T>
  using cast_op_type = Wrapper;
  operator Wrapper() const { return value; }  // NOLINT(google-explicit-constructor)
};

}  // namespace topas::python

namespace pybind11::detail {

template <>
struct type_caster<topas::python::Real> : topas::python::AnyCaster<topas::python::Real> {
  static constexpr auto name = const_name("float");
};
template <>
struct type_caster<topas::python::Integer> : topas::python::AnyCaster<topas::python::Integer> {
  static constexpr auto name = const_name("int");
};
template <>
struct type_caster<topas::python::Name> : topas::python::AnyCaster<topas::python::Name> {
  static constexpr auto name = const_name("int | str");
};
template <>
struct type_caster<topas::python::ConfigArgument> : topas::python::AnyCaster<topas::python::ConfigArgument> {
  static constexpr auto name = const_name("topas.config.Config");
};
template <>
struct type_caster<topas::python::WorkflowArgument> : topas::python::AnyCaster<topas::python::WorkflowArgument> {
  static constexpr auto name = const_name("topas.workflow.Workflow");
};

/// Ids on their way out; on the way in inside containers (pickles, lists of completions).
template <>
struct type_caster<topas::Id> {
  PYBIND11_TYPE_CASTER(topas::Id, const_name("int | str"));
  bool load(handle source, bool) {
    value = topas::python::to_id(source, "id");
    return true;
  }
  static handle cast(const topas::Id& id, return_value_policy, handle) {
    if (const auto* number = std::get_if<std::int64_t>(&id.value())) {
      return PyLong_FromLongLong(*number);
    }
    const auto& text = std::get<std::string>(id.value());
    return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  }
};

}  // namespace pybind11::detail
