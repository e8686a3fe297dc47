#include "arguments.hpp"
#include "register.hpp"

namespace topas::python {

void register_config(py::module_& module) {
  module.def(
      "validate_config", [](const ConfigArgument& config) { static_cast<void>(to_config(config.value)); },
      py::arg("config"), "Raise ConfigError for the first field that is of the wrong type or out of range.");
}

}  // namespace topas::python
