#include "arguments.hpp"

#include <utility>
#include <vector>

namespace topas::python {

namespace {

[[noreturn]] void refuse_id(py::handle value, std::string_view name) {
  PyErr_Clear();
  throw IdError(std::string(name) + ": must be a string or an integer of 64 bits, got " + shown(value));
}

template <class Failure>
[[noreturn]] void refuse(py::handle value, std::string_view name, const char* wanted) {
  PyErr_Clear();
  throw Failure(std::string(name) + ": must be " + wanted + ", got " + shown(value));
}

/// The integer, or false with or without a Python error set.
bool read_integer(py::handle value, std::int64_t& out) {
  if (PyBool_Check(value.ptr()) != 0 || PyIndex_Check(value.ptr()) == 0) {
    return false;
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) {
    return false;
  }
  out = PyLong_AsLongLong(number.ptr());
  return PyErr_Occurred() == nullptr;
}

/// One of the values that go by a name.
template <class Value, std::size_t count>
Value to_choice(py::handle value, std::string_view field, const std::pair<const char*, Value> (&known)[count]) {
  std::string names;
  for (std::size_t at = 0; at < count; ++at) {
    if (py::isinstance<py::str>(value) && value.equal(py::str(known[at].first))) {
      return known[at].second;
    }
    names += (at == 0 ? "'" : at + 1 < count ? ", '" : " or '") + std::string(known[at].first) + "'";
  }
  refuse<ConfigError>(value, field, names.c_str());
}

RedoModel to_redo_model(py::handle value) {
  return to_choice<RedoModel>(
      value, "redo_model", {{"decode", RedoModel::decode}, {"prefill", RedoModel::prefill}, {"kept", RedoModel::kept}});
}

MoveModel to_move_model(py::handle value) {
  return to_choice<MoveModel>(value, "move_model", {{"tasks", MoveModel::tasks}, {"once", MoveModel::once}});
}

GainModel to_gain_model(py::handle value) {
  return to_choice<GainModel>(value, "gain_model", {{"path", GainModel::path}, {"service", GainModel::service}});
}

AdmitOrder to_admit_order(py::handle value) {
  return to_choice<AdmitOrder>(value, "admit_order",
                               {{"density", AdmitOrder::density}, {"arrival", AdmitOrder::arrival}});
}

std::uint64_t to_seed(py::handle value) {
  if (PyBool_Check(value.ptr()) == 0 && PyIndex_Check(value.ptr()) != 0) {
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    const auto seed = number ? PyLong_AsUnsignedLongLong(number.ptr()) : 0;
    if (PyErr_Occurred() == nullptr) {
      return seed;
    }
  }
  refuse<ConfigError>(value, "seed", "an integer between 0 and 2**64 - 1");
}

StageSpec to_stage(py::handle stage) {
  if (!py::hasattr(stage, "request_s")) {
    refuse<WorkflowError>(stage, "stage", "a topas.Stage");
  }
  StageSpec out;
  out.name = to_id(stage.attr("name"), "stage name");
  const std::string prefix = "stage " + to_string(out.name) + ": ";
  out.agent = to_id(stage.attr("agent"), prefix + "agent");
  for (const auto predecessor : stage.attr("after")) {
    out.after.push_back(to_id(predecessor, prefix + "after"));
  }
  out.service_s = to_real<WorkflowError>(stage.attr("service_s"), prefix + "service_s");
  const py::object request_s = stage.attr("request_s");
  out.request_s = request_s.is_none() ? out.service_s : to_real<WorkflowError>(request_s, prefix + "request_s");
  return out;
}

}  // namespace

std::string shown(py::handle value) {
  std::string text;
  try {
    text = py::cast<std::string>(py::repr(value));
  } catch (const std::exception&) {
    text = std::string("a ") + Py_TYPE(value.ptr())->tp_name;
  }
  constexpr std::size_t most = 80;
  if (text.size() <= most) {
    return text;
  }
  std::size_t end = most;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;  // not inside a UTF-8 character
  }
  return text.substr(0, end) + "...";
}

template <class Failure>
double to_real(py::handle value, std::string_view name) {
  if (PyFloat_CheckExact(value.ptr()) != 0) {
    return PyFloat_AS_DOUBLE(value.ptr());
  }
  if (PyBool_Check(value.ptr()) != 0) {
    refuse<Failure>(value, name, "a number");
  }
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    refuse<Failure>(value, name, "a number");
  }
  return number;
}

template <class Failure>
std::int64_t to_integer(py::handle value, std::string_view name) {
  std::int64_t out = 0;
  if (!read_integer(value, out)) {
    refuse<Failure>(value, name, "an integer of 64 bits");
  }
  return out;
}

template <class Failure>
bool to_bool(py::handle value, std::string_view name) {
  if (PyBool_Check(value.ptr()) == 0) {
    refuse<Failure>(value, name, "True or False");
  }
  return value.ptr() == Py_True;
}

template double to_real<ArgumentError>(py::handle, std::string_view);
template double to_real<ConfigError>(py::handle, std::string_view);
template double to_real<SnapshotError>(py::handle, std::string_view);
template std::int64_t to_integer<ArgumentError>(py::handle, std::string_view);
template std::int64_t to_integer<SnapshotError>(py::handle, std::string_view);
template bool to_bool<SnapshotError>(py::handle, std::string_view);

Id to_id(py::handle value, std::string_view name) {
  if (PyUnicode_Check(value.ptr()) != 0) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (text == nullptr) {
      refuse_id(value, name);
    }
    return std::string(text, static_cast<std::size_t>(size));
  }
  std::int64_t number = 0;
  if (!read_integer(value, number)) {
    refuse_id(value, name);
  }
  return number;
}

Config to_config(py::handle config) {
  if (!py::hasattr(config, "kv_capacity_tokens")) {
    refuse<ConfigError>(config, "config", "a topas.Config");
  }
  const auto integer = [config](const char* name) { return to_integer<ConfigError>(config.attr(name), name); };
  const auto real = [config](const char* name) { return to_real<ConfigError>(config.attr(name), name); };
  const auto flag = [config](const char* name) { return to_bool<ConfigError>(config.attr(name), name); };
  Config out;
  out.kv_capacity_tokens = integer("kv_capacity_tokens");
  out.kv_bytes_per_token = real("kv_bytes_per_token");
  out.swap_bytes_per_s = real("swap_bytes_per_s");
  out.decode_s_per_token = real("decode_s_per_token");
  out.prefill_fixed_s = real("prefill_fixed_s");
  out.prefill_s_per_token = real("prefill_s_per_token");
  out.enumerate_max_agents = integer("enumerate_max_agents");
  out.max_evaluations = integer("max_evaluations");
  out.action_cap = integer("action_cap");
  out.max_running_requests = integer("max_running_requests");
  out.reuse_weight = real("reuse_weight");
  out.age_weight = real("age_weight");
  if (const py::object scale = config.attr("age_scale_s"); !scale.is_none()) {
    out.age_scale_s = to_real<ConfigError>(scale, "age_scale_s");
  }
  out.exact_limit = integer("exact_limit");
  out.samples = integer("samples");
  out.seed = to_seed(config.attr("seed"));
  out.count_running = flag("count_running");
  out.age_credit = flag("age_credit");
  out.redo_weight = real("redo_weight");
  out.redo_model = to_redo_model(config.attr("redo_model"));
  out.move_model = to_move_model(config.attr("move_model"));
  out.move_weight = real("move_weight");
  out.work_conserving = flag("work_conserving");
  out.gain_model = to_gain_model(config.attr("gain_model"));
  out.urgency = real("urgency");
  out.admit_order = to_admit_order(config.attr("admit_order"));
  out.preempt_limit = real("preempt_limit");
  out.overtake_limit = real("overtake_limit");
  out.backlog_weight = real("backlog_weight");
  out.reserve_limit = real("reserve_limit");
  out.rollout_scenarios = integer("rollout_scenarios");
  out.rollout_steps = integer("rollout_steps");
  out.rollout_margin = real("rollout_margin");
  out.rollout_power = real("rollout_power");
  out.validate();
  return out;
}

Workflow to_workflow(py::handle workflow) {
  if (!py::hasattr(workflow, "stages")) {
    refuse<WorkflowError>(workflow, "workflow", "a topas.Workflow");
  }
  std::vector<StageSpec> stages;
  for (const auto stage : workflow.attr("stages")) {
    stages.push_back(to_stage(stage));
  }
  return {to_id(workflow.attr("name"), "workflow name"), std::move(stages)};
}

}  // namespace topas::python
