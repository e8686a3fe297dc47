#include <mutex>
#include <utility>

#include "arguments.hpp"
#include "register.hpp"
#include "topas/scheduler.hpp"

namespace topas::python {

namespace {

/// A scheduler with its lock. decide() and snapshot() run without the GIL, so another thread may send an event
/// meanwhile; the lock makes it wait. No Python is touched while the lock is held, so the two cannot block each other.
struct Guarded {
  explicit Guarded(const ConfigArgument& config) : core(to_config(config.value)) {}

  template <class Action>
  auto locked(Action&& action) const {
    const std::lock_guard lock(mutex);
    return action();
  }

  Scheduler core;
  mutable std::mutex mutex;
};

using Bound = py::class_<Guarded>;

/// Binds an event of one id.
void def_event(Bound& bound, const char* name, void (Scheduler::*event)(double, const Id&), const char* subject,
               const char* doc) {
  bound.def(
      name,
      [event, subject](Guarded& self, const Real& now, const Name& id) {
        const double time = now.get("now");
        const Id key = id.get(subject);
        self.locked([&] { (self.core.*event)(time, key); });
      },
      py::arg("now"), py::arg(subject), doc);
}

/// Binds an event of a task and one more id.
void def_event(Bound& bound, const char* name, void (Scheduler::*event)(double, const Id&, const Id&),
               const char* object, const char* doc) {
  bound.def(
      name,
      [event, object](Guarded& self, const Real& now, const Name& task, const Name& id) {
        const double time = now.get("now");
        const Id key = task.get("task");
        const Id other = id.get(object);
        self.locked([&] { (self.core.*event)(time, key, other); });
      },
      py::arg("now"), py::arg("task"), py::arg(object), doc);
}

void register_usage(py::module_& module) {
  py::class_<Usage>(module, "Usage",
                    "Read-only gauges. When every task has ended and one more decision was committed, all but\n"
                    "``agents``, ``workflows`` and ``samples`` are zero.")
      .def_readonly("agents", &Usage::agents, "Registered agents.")
      .def_readonly("workflows", &Usage::workflows, "Registered workflows.")
      .def_readonly("tasks", &Usage::tasks, "Live tasks.")
      .def_readonly("waiting", &Usage::waiting, "Waiting requests.")
      .def_readonly("running", &Usage::running, "Running requests.")
      .def_readonly("resident", &Usage::resident, "Resident prefixes.")
      .def_readonly("kv_tokens", &Usage::kv_tokens, "Resident prefixes and running reservations, tokens.")
      .def_readonly("credits", &Usage::credits, "Stored admission credits.")
      .def_readonly("samples", &Usage::samples, "Service totals kept, at most 256 for each stage of a workflow.");
}

void register_tables(Bound& bound) {
  bound
      .def(
          "register_agent",
          [](Guarded& self, const Name& agent, const Integer& prefix_tokens) {
            const Id key = agent.get("agent");
            const std::int64_t tokens = prefix_tokens.get("prefix_tokens");
            self.locked([&] { self.core.register_agent(key, tokens); });
          },
          py::arg("agent"), py::arg("prefix_tokens"),
          "Make an agent known, with the tokens of its static prefix (0 or more). Once more with another length is\n"
          "legal while it has neither requests nor a resident prefix, else StateError.")
      .def(
          "unregister_agent",
          [](Guarded& self, const Name& agent) {
            const Id key = agent.get("agent");
            self.locked([&] { self.core.unregister_agent(key); });
          },
          py::arg("agent"),
          "Forget an agent. StateError while a registered workflow names it; its prefix counts as dropped.")
      .def(
          "register_workflow",
          [](Guarded& self, const WorkflowArgument& workflow) {
            Workflow checked = to_workflow(workflow.value);
            self.locked([&] { self.core.register_workflow(std::move(checked)); });
          },
          py::arg("workflow"),
          "Make a workflow known. UnknownId when an agent of it is not registered, StateError when its name is taken.")
      .def(
          "unregister_workflow",
          [](Guarded& self, const Name& name) {
            const Id key = name.get("name");
            self.locked([&] { self.core.unregister_workflow(key); });
          },
          py::arg("name"), "Forget a workflow and its profiles. StateError while it has live tasks.")
      .def(
          "reconfigure",
          [](Guarded& self, const ConfigArgument& config) {
            const Config checked = to_config(config.value);
            self.locked([&] { self.core.reconfigure(checked); });
          },
          py::arg("config"), "Change the settings of the running scheduler; ConfigError leaves the old ones.");
}

void register_task_events(Bound& bound) {
  bound.def(
      "task_arrived",
      [](Guarded& self, const Real& now, const Name& task, const Name& workflow, const py::object& since) {
        const double time = now.get("now");
        const Id key = task.get("task");
        const Id name = workflow.get("workflow");
        const std::optional<double> start =
            since.is_none() ? std::nullopt : std::optional(to_real<ArgumentError>(since, "since"));
        self.locked([&] { self.core.task_arrived(time, key, name, start); });
      },
      py::arg("now"), py::arg("task"), py::arg("workflow"), py::arg("since") = py::none(),
      "A task of a registered workflow arrives; its age counts from ``since`` (None: now). StateError when its id is\n"
      "live.");
  def_event(bound, "task_cancelled", &Scheduler::task_cancelled, "task",
            "A task ends without a result; its requests are removed, running ones too. It does not count for H_age.");
  def_event(bound, "task_finished", &Scheduler::task_finished, "task",
            "A task ends, although stages are open; its requests are removed. It counts for H_age. (A task whose\n"
            "last stage completes or is skipped ends by itself.)");
  def_event(bound, "stage_completed", &Scheduler::stage_completed, "stage",
            "A stage has ended; its total enters the stage's profile. StateError while it has live requests, while a\n"
            "predecessor is open, or when it is not open itself.");
  def_event(bound, "stage_skipped", &Scheduler::stage_skipped, "stage",
            "A stage will not run (a conditional branch), nor will stages that only skipped ones lead to. A second\n"
            "time is a no-op. StateError while it has live requests or when it has completed.");
}

void register_request_events(Bound& bound) {
  bound
      .def(
          "request_ready",
          [](Guarded& self, const Real& now, const Name& request, const Name& task, const Name& stage,
             const Integer& input_tokens, const Integer& max_new_tokens) {
            const double time = now.get("now");
            const Id key = request.get("request");
            const Id owner = task.get("task");
            const Id place = stage.get("stage");
            const std::int64_t input = input_tokens.get("input_tokens");
            const std::int64_t output = max_new_tokens.get("max_new_tokens");
            self.locked([&] { self.core.request_ready(time, key, owner, place, input, output); });
          },
          py::arg("now"), py::arg("request"), py::arg("task"), py::arg("stage"), py::arg("input_tokens"),
          py::arg("max_new_tokens"),
          "A request of a stage waits. Its reservation is ``input_tokens`` (without the agent's prefix) +\n"
          "``max_new_tokens``. StateError when the stage is not open, a predecessor is, or the id is live.")
      .def(
          "request_progress",
          [](Guarded& self, const Real& now, const Name& request, const Integer& generated_tokens) {
            const double time = now.get("now");
            const Id key = request.get("request");
            const std::int64_t tokens = generated_tokens.get("generated_tokens");
            self.locked([&] { self.core.request_progress(time, key, tokens); });
          },
          py::arg("now"), py::arg("request"), py::arg("generated_tokens"),
          "A running request has generated so many tokens in all.")
      .def(
          "request_completed",
          [](Guarded& self, const Real& now, const Name& request, const Real& service_s) {
            const double time = now.get("now");
            const Id key = request.get("request");
            const double service = service_s.get("service_s");
            self.locked([&] { self.core.request_completed(time, key, service); });
          },
          py::arg("now"), py::arg("request"), py::arg("service_s"),
          "A running request is done after ``service_s`` seconds of LLM service (no queueing, no tool waits).");
  def_event(bound, "request_aborted", &Scheduler::request_aborted, "request",
            "A waiting or running request is gone; its id is free again.");
  def_event(bound, "request_start_failed", &Scheduler::request_start_failed, "request",
            "An admitted request could not start; it waits again and its credit is revoked.");
  def_event(bound, "request_started", &Scheduler::request_started, "request",
            "The engine has started a waiting request by itself: it runs with its agent's prefix, without a credit.\n"
            "StateError when it is running.");
}

void register_prefix_events(Bound& bound) {
  def_event(bound, "prefix_evicted", &Scheduler::prefix_evicted, "agent",
            "The engine has lost a resident prefix. StateError while requests of the agent run.");
  def_event(
      bound, "prefix_loaded", &Scheduler::prefix_loaded, "agent",
      "The engine holds the prefix of an agent although no decision has loaded it. StateError when it is resident.");
  bound.def(
      "prefix_changed",
      [](Guarded& self, const Real& now, const Name& agent, const Integer& prefix_tokens) {
        const double time = now.get("now");
        const Id key = agent.get("agent");
        const std::int64_t tokens = prefix_tokens.get("prefix_tokens");
        self.locked([&] { self.core.prefix_changed(time, key, tokens); });
      },
      py::arg("now"), py::arg("agent"), py::arg("prefix_tokens"),
      "The prefix of an agent turns out to be shorter or longer. What its live requests hold in all stays the same:\n"
      "their own inputs take the difference. StateError when one of them is shorter than the prefix.");
}

void register_decisions(Bound& bound) {
  bound
      .def(
          "decide",
          [](const Guarded& self, const Real& now) {
            const double time = now.get("now");
            const py::gil_scoped_release release;
            return self.locked([&] { return self.core.decide(time); });
          },
          py::arg("now"),
          "The decision at ``now``, the same as ``decide(self.snapshot(now), config)``. Changes nothing.")
      .def(
          "commit", [](Guarded& self, const Decision& decision) { self.locked([&] { self.core.commit(decision); }); },
          py::arg("decision"),
          "Apply a decision of this scheduler. StateError when anything has changed since it was made.")
      .def(
          "snapshot",
          [](const Guarded& self, const Real& now) {
            const double time = now.get("now");
            const py::gil_scoped_release release;
            return self.locked([&] { return self.core.snapshot(time); });
          },
          py::arg("now"), "The whole state as plain data, with H_age as it is now.")
      .def(
          "usage", [](const Guarded& self) { return self.locked([&] { return self.core.usage(); }); },
          "Gauges of what is stored.")
      .def_property_readonly(
          "age_scale_s", [](const Guarded& self) { return self.locked([&] { return self.core.age_scale_s(); }); },
          "H_age now, seconds: the config's constant, else the exponentially weighted mean (weight 0.1) of the LLM\n"
          "service of finished tasks, else the mean critical path of the registered workflows, else 0 (no ageing).");
}

}  // namespace

void register_scheduler(py::module_& module) {
  register_usage(module);
  Bound bound(module, "Scheduler",
              R"(The incremental door: events in, one decision out (SPEC section 9).

Every event takes the time it happened at, in seconds of any monotonic clock; time never goes back. An illegal
event raises and changes nothing. Ids are integers or strings and come back unchanged. Safe to use from several
threads.

Parameters
----------
config : Config
    The settings.

Raises
------
ArgumentError
    An argument of an event is of the wrong type or out of range.
IdError
    An id is neither a string nor an integer of 64 bits.
UnknownId
    An id is not known, or no longer.
StateError
    The event is not legal now, or the clock went back.)");
  bound.def(py::init<const ConfigArgument&>(), py::arg("config"));
  register_tables(bound);
  register_task_events(bound);
  register_request_events(bound);
  register_prefix_events(bound);
  register_decisions(bound);
}

}  // namespace topas::python
