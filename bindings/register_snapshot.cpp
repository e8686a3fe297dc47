#include "arguments.hpp"
#include "register.hpp"
#include "snapshot_io.hpp"

namespace topas::python {

void register_snapshot(py::module_& module) {
  py::class_<Snapshot>(module, "Snapshot",
                       "The whole state at one scheduling event (SPEC section 1). Immutable, comparable, picklable.\n\n"
                       "Made by :meth:`from_dict` or :meth:`Scheduler.snapshot`.")
      .def_static("from_dict", &read_snapshot, py::arg("fields"),
                  R"(Read the plain form, such as one parsed line of a snapshot file.

Parameters
----------
fields : dict
    ``now`` (seconds), ``agents``, ``profiles``, ``tasks``, ``requests``, ``resident`` and optionally
    ``age_scale_s`` (H_age, seconds); the form is described in docs/snapshots.md. Other keys at the top
    level (``config``, ``expect``) are not read; unknown ones further in are refused.

Raises
------
SnapshotError
    A field is missing, unknown or of the wrong type; the message gives its path. (Ranges and references
    are checked when a decision is asked for.)
IdError
    An id is neither a string nor an integer of 64 bits.)")
      .def("to_dict", &write_snapshot, "The plain form; the inverse of :meth:`from_dict`.")
      .def_readonly("now", &Snapshot::now, "Time of the event, seconds.")
      .def_readonly("age_scale_s", &Snapshot::age_scale_s, "H_age, seconds, or None.")
      .def("__eq__", &equals<Snapshot>)
      .def("__repr__",
           [](const Snapshot& snapshot) {
             return "<Snapshot now=" + std::to_string(snapshot.now) + ": " + std::to_string(snapshot.tasks.size()) +
                    " tasks, " + std::to_string(snapshot.requests.size()) + " requests, " +
                    std::to_string(snapshot.resident.size()) + " resident prefixes>";
           })
      .def(py::pickle([](const Snapshot& snapshot) { return write_snapshot(snapshot); },
                      [](const Fields& fields) { return read_snapshot(fields); }));
}

}  // namespace topas::python
