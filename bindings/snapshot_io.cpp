#include "snapshot_io.hpp"

#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include "arguments.hpp"

namespace topas::python {

namespace {

/// One object of the snapshot; every read field is noted, so that an unknown one can be named.
class Reader {
 public:
  Reader(py::handle fields, std::string path) : path_(std::move(path)) {
    if (!py::isinstance<py::dict>(fields)) {
      throw SnapshotError((path_.empty() ? "snapshot" : path_) + ": must be an object, got " + shown(fields));
    }
    fields_ = py::reinterpret_borrow<py::dict>(fields);
  }

  [[nodiscard]] std::string name(const char* field) const { return path_.empty() ? field : path_ + "." + field; }

  /// The field, or a null handle.
  py::handle find(const char* field) {
    seen_.insert(field);
    return PyDict_GetItemString(fields_.ptr(), field);
  }
  py::handle need(const char* field) {
    const py::handle value = find(field);
    if (!value) {
      throw SnapshotError(name(field) + ": is missing");
    }
    return value;
  }

  double real(const char* field) { return to_real<SnapshotError>(need(field), name(field)); }
  std::int64_t integer(const char* field) { return to_integer<SnapshotError>(need(field), name(field)); }
  std::int64_t integer_or(const char* field, std::int64_t otherwise) {
    const py::handle value = find(field);
    return value ? to_integer<SnapshotError>(value, name(field)) : otherwise;
  }
  std::optional<double> optional_real(const char* field) {
    const py::handle value = find(field);
    return value && !value.is_none() ? std::optional(to_real<SnapshotError>(value, name(field))) : std::nullopt;
  }
  bool flag(const char* field) { return to_bool<SnapshotError>(need(field), name(field)); }
  Id id(const char* field) { return to_id(need(field), name(field)); }
  std::uint32_t index(const char* field) { return to_index(need(field), name(field)); }

  static std::uint32_t to_index(py::handle value, const std::string& name) {
    const std::int64_t index = to_integer<SnapshotError>(value, name);
    if (index < 0 || index > std::numeric_limits<std::int32_t>::max()) {
      throw SnapshotError(name + ": must be an index, got " + shown(value));
    }
    return static_cast<std::uint32_t>(index);
  }

  /// Calls `read(item, path of the item)` for each item of a list.
  template <class Read>
  void each(const char* field, Read&& read) {
    const py::handle list = need(field);
    if (!py::isinstance<py::list>(list) && !py::isinstance<py::tuple>(list)) {
      throw SnapshotError(name(field) + ": must be a list, got " + shown(list));
    }
    std::size_t at = 0;
    for (const auto item : py::reinterpret_borrow<py::sequence>(list)) {
      read(item, name(field) + "[" + std::to_string(at++) + "]");
    }
  }

  void refuse_unknown() const {
    for (const auto& [key, value] : fields_) {
      const char* field = PyUnicode_Check(key.ptr()) != 0 ? PyUnicode_AsUTF8(key.ptr()) : nullptr;
      if (field == nullptr || !seen_.contains(field)) {
        PyErr_Clear();  // a lone surrogate has no UTF-8
        throw SnapshotError(path_ + ": unknown field " + shown(key));
      }
    }
  }

 private:
  py::dict fields_;
  std::string path_;
  std::unordered_set<std::string> seen_;
};

AgentState read_agent(py::handle fields, const std::string& path) {
  Reader reader(fields, path);
  AgentState out{reader.id("id"), reader.integer("prefix_tokens")};
  reader.refuse_unknown();
  return out;
}

ProfileState read_profile(py::handle fields, const std::string& path) {
  Reader reader(fields, path);
  ProfileState out{reader.id("id"), {}, reader.real("request_s")};
  reader.each("totals_s", [&out](py::handle item, const std::string& name) {
    out.totals_s.push_back(to_real<SnapshotError>(item, name));
  });
  reader.refuse_unknown();
  return out;
}

StageState read_stage(py::handle fields, const std::string& path) {
  Reader reader(fields, path);
  StageState out{reader.id("agent"), {}, reader.id("profile"), reader.flag("completed"), reader.real("service_s")};
  reader.each("after",
              [&out](py::handle item, const std::string& name) { out.after.push_back(Reader::to_index(item, name)); });
  reader.refuse_unknown();
  return out;
}

TaskState read_task(py::handle fields, const std::string& path) {
  Reader reader(fields, path);
  TaskState out{reader.id("id"), reader.real("arrival"), {}};
  reader.each("stages",
              [&out](py::handle item, const std::string& name) { out.stages.push_back(read_stage(item, name)); });
  reader.refuse_unknown();
  return out;
}

RequestState read_request(py::handle fields, const std::string& path) {
  Reader reader(fields, path);
  RequestState out;
  out.id = reader.id("id");
  out.task = reader.id("task");
  out.stage = reader.index("stage");
  out.agent = reader.id("agent");
  out.kv_tokens = reader.integer("kv_tokens");
  out.input_tokens = reader.integer_or("input_tokens", 0);
  out.expected_service_s = reader.real("expected_service_s");
  out.running = reader.flag("running");
  out.generated_tokens = reader.integer("generated_tokens");
  out.credit = reader.real("credit");
  out.age_factor_at_admission = reader.optional_real("age_factor_at_admission");
  reader.refuse_unknown();
  return out;
}

py::dict write_stage(const StageState& stage) {
  using namespace py::literals;
  return py::dict("agent"_a = stage.agent, "after"_a = stage.after, "profile"_a = stage.profile,
                  "completed"_a = stage.completed, "service_s"_a = stage.service_s);
}

py::dict write_request(const RequestState& request) {
  using namespace py::literals;
  return py::dict("id"_a = request.id, "task"_a = request.task, "stage"_a = request.stage, "agent"_a = request.agent,
                  "kv_tokens"_a = request.kv_tokens, "input_tokens"_a = request.input_tokens,
                  "expected_service_s"_a = request.expected_service_s, "running"_a = request.running,
                  "generated_tokens"_a = request.generated_tokens, "credit"_a = request.credit,
                  "age_factor_at_admission"_a = request.age_factor_at_admission);
}

}  // namespace

Snapshot read_snapshot(py::handle fields) {
  Reader reader(fields, "");
  Snapshot out;
  out.now = reader.real("now");
  out.age_scale_s = reader.optional_real("age_scale_s");
  reader.each("agents",
              [&out](py::handle item, const std::string& path) { out.agents.push_back(read_agent(item, path)); });
  reader.each("profiles",
              [&out](py::handle item, const std::string& path) { out.profiles.push_back(read_profile(item, path)); });
  reader.each("tasks",
              [&out](py::handle item, const std::string& path) { out.tasks.push_back(read_task(item, path)); });
  reader.each("requests",
              [&out](py::handle item, const std::string& path) { out.requests.push_back(read_request(item, path)); });
  reader.each("resident",
              [&out](py::handle item, const std::string& path) { out.resident.push_back(to_id(item, path)); });
  return out;
}

Fields write_snapshot(const Snapshot& snapshot) {
  using namespace py::literals;
  py::list agents;
  for (const auto& agent : snapshot.agents) {
    agents.append(py::dict("id"_a = agent.id, "prefix_tokens"_a = agent.prefix_tokens));
  }
  py::list profiles;
  for (const auto& profile : snapshot.profiles) {
    profiles.append(py::dict("id"_a = profile.id, "totals_s"_a = profile.totals_s, "request_s"_a = profile.request_s));
  }
  py::list tasks;
  for (const auto& task : snapshot.tasks) {
    py::list stages;
    for (const auto& stage : task.stages) {
      stages.append(write_stage(stage));
    }
    tasks.append(py::dict("id"_a = task.id, "arrival"_a = task.arrival, "stages"_a = stages));
  }
  py::list requests;
  for (const auto& request : snapshot.requests) {
    requests.append(write_request(request));
  }
  Fields out = py::dict("now"_a = snapshot.now, "agents"_a = agents, "profiles"_a = profiles, "tasks"_a = tasks,
                        "requests"_a = requests, "resident"_a = snapshot.resident);
  if (snapshot.age_scale_s.has_value()) {
    out["age_scale_s"] = *snapshot.age_scale_s;
  }
  return out;
}

}  // namespace topas::python
