// The families of bindings, one file each.
#pragma once

#include <pybind11/pybind11.h>

namespace topas::python {

void register_errors(pybind11::module_& module);
void register_config(pybind11::module_& module);
void register_workflow(pybind11::module_& module);
void register_snapshot(pybind11::module_& module);
void register_decision(pybind11::module_& module);
void register_scheduler(pybind11::module_& module);

}  // namespace topas::python
