// Every kind of the C++ tree to its namesake in topas.errors, here and nowhere else.
#include <exception>

#include "arguments.hpp"
#include "register.hpp"

namespace topas::python {

namespace {

template <class Failure>
bool translate(const std::exception_ptr& error, const char* name) {
  try {
    std::rethrow_exception(error);
  } catch (const Failure& failure) {
    const py::object kind = py::module_::import("topas.errors").attr(name);
    PyErr_SetString(kind.ptr(), failure.what());
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void register_errors(py::module_& module) {
  static_cast<void>(module);
  py::register_local_exception_translator([](std::exception_ptr error) {
    if (!error) {
      return;
    }
    const bool done =
        translate<ConfigError>(error, "ConfigError") || translate<ArgumentError>(error, "ArgumentError") ||
        translate<WorkflowError>(error, "WorkflowError") || translate<SnapshotError>(error, "SnapshotError") ||
        translate<CapacityError>(error, "CapacityError") || translate<IdError>(error, "IdError") ||
        translate<UnknownId>(error, "UnknownId") || translate<StateError>(error, "StateError");
    if (!done) {
      std::rethrow_exception(error);
    }
  });
}

}  // namespace topas::python
