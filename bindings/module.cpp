#include <pybind11/pybind11.h>

#include "register.hpp"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The compiled decision core. Use it through the names of the package topas.";
  topas::python::register_errors(module);
  topas::python::register_config(module);
  topas::python::register_workflow(module);
  topas::python::register_snapshot(module);
  topas::python::register_decision(module);
  topas::python::register_scheduler(module);
}
