#include "arguments.hpp"
#include "register.hpp"

namespace topas::python {

void register_workflow(py::module_& module) {
  module.def(
      "validate_workflow", [](const WorkflowArgument& workflow) { static_cast<void>(to_workflow(workflow.value)); },
      py::arg("workflow"), "Raise WorkflowError or IdError for the first thing that is wrong with the workflow.");
  module.def(
      "critical_path_s", [](const WorkflowArgument& workflow) { return to_workflow(workflow.value).critical_path_s(); },
      py::arg("workflow"), "Longest path of the profiled totals, seconds.");
}

}  // namespace topas::python
