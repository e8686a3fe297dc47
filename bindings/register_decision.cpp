#include <tuple>

#include "arguments.hpp"
#include "decision_arrays.hpp"
#include "register.hpp"
#include "topas/decision.hpp"

namespace topas::python {

namespace {

using namespace py::literals;

const char* name_of(WaitReason reason) {
  switch (reason) {
    case WaitReason::never_fits:
      return "never_fits";
    case WaitReason::prefix_not_kept:
      return "prefix_not_kept";
    case WaitReason::no_slot:
      return "no_slot";
    case WaitReason::no_room:
      return "no_room";
    case WaitReason::not_worth:
      return "not_worth";
    case WaitReason::held_back:
      return "held_back";
    case WaitReason::standstill:
      break;
  }
  return "standstill";
}

Fields terms_to_dict(const Terms& terms) {
  return py::dict("admit"_a = terms.admit, "reuse"_a = terms.reuse, "move"_a = terms.move, "redo"_a = terms.redo,
                  "revoke"_a = terms.revoke);
}

py::typing::Dict<Id, double> credits_to_dict(const Decision& decision) {
  py::typing::Dict<Id, double> out;
  for (const auto& credit : decision.credits) {
    out[py::cast(credit.request)] = credit.value;
  }
  return out;
}

Fields decision_to_dict(const Decision& decision) {
  return py::dict("resident"_a = decision.resident, "admit"_a = decision.admit, "preempt"_a = decision.preempt,
                  "score"_a = decision.score(), "terms"_a = terms_to_dict(decision.terms),
                  "credits"_a = credits_to_dict(decision), "unschedulable"_a = decision.unschedulable);
}

using CreditState = std::tuple<Id, double, double>;
using DecisionState = std::tuple<double, std::uint64_t, std::vector<Id>, std::vector<Id>, std::vector<Id>,
                                 std::vector<Id>, std::vector<Id>, std::vector<CreditState>, std::vector<Id>,
                                 std::array<double, 5>, std::uint64_t, std::uint64_t>;

DecisionState get_state(const Decision& decision) {
  std::vector<CreditState> credits;
  for (const auto& credit : decision.credits) {
    credits.emplace_back(credit.request, credit.value, credit.age_factor);
  }
  const Terms& terms = decision.terms;
  return {decision.now,
          decision.state_version,
          decision.resident,
          decision.admit,
          decision.preempt,
          decision.load,
          decision.drop,
          std::move(credits),
          decision.unschedulable,
          {terms.admit, terms.reuse, terms.move, terms.redo, terms.revoke},
          decision.evaluated_sets,
          decision.pruned_sets};
}

Decision set_state(const DecisionState& state) {
  Decision out;
  std::vector<CreditState> credits;
  std::array<double, 5> terms{};
  std::tie(out.now, out.state_version, out.resident, out.admit, out.preempt, out.load, out.drop, credits,
           out.unschedulable, terms, out.evaluated_sets, out.pruned_sets) = state;
  for (const auto& [request, value, age_factor] : credits) {
    out.credits.push_back({request, value, age_factor});
  }
  out.terms = {terms[0], terms[1], terms[2], terms[3], terms[4]};
  return out;
}

void register_terms(py::module_& module) {
  py::class_<Terms>(module, "Terms", "The five terms of a score, seconds (SPEC section 3).")
      .def_readonly("admit", &Terms::admit, "J_admit: what admitting gains, by paths or services, aged.")
      .def_readonly("reuse", &Terms::reuse, "J_reuse: reloads that resident prefixes will save.")
      .def_readonly("move", &Terms::move, "J_move: waiting for prefixes that enter and leave.")
      .def_readonly("redo", &Terms::redo, "J_redo: work of preempted requests that is done again.")
      .def_readonly("revoke", &Terms::revoke, "J_revoke: credits of preempted requests, or their worth now.")
      .def_property_readonly("score", &Terms::score, "J = admit + reuse - move - redo - revoke.")
      .def("to_dict", &terms_to_dict, "The terms by name.")
      .def("__eq__", &equals<Terms>)
      .def("__repr__",
           [](const Terms& terms) { return "Terms(" + py::str(terms_to_dict(terms)).cast<std::string>() + ")"; });
}

void register_decision_class(py::module_& module) {
  py::class_<Decision>(module, "Decision",
                       "What to do at one scheduling event (SPEC section 1). Immutable, comparable, picklable.")
      .def_readonly("now", &Decision::now, "Time it was made for, seconds.")
      .def_readonly("resident", &Decision::resident, "R': agents whose prefixes are resident after it, ascending.")
      .def_readonly("admit", &Decision::admit, "A: waiting requests to start, in order.")
      .def_readonly("preempt", &Decision::preempt, "P: running requests to put back, ascending.")
      .def_readonly("load", &Decision::load, "Prefixes that enter, ascending.")
      .def_readonly("drop", &Decision::drop, "Prefixes that leave, ascending.")
      .def_readonly("unschedulable", &Decision::unschedulable,
                    "Waiting requests that can never fit: prefix + reservation exceed the capacity. Ascending.")
      .def_readonly("terms", &Decision::terms, "The score term by term.")
      .def_readonly("evaluated_sets", &Decision::evaluated_sets, "Prefix sets that GreedyPack was run on.")
      .def_readonly("pruned_sets", &Decision::pruned_sets,
                    "Feasible prefix sets left out: they could not be chosen, or max_evaluations was reached.")
      .def_property_readonly("score", &Decision::score, "J, seconds.")
      .def_property_readonly("credits", &credits_to_dict, "Credit of each admitted request, seconds.")
      .def("to_dict", &decision_to_dict,
           "``resident, admit, preempt, score, terms, credits, unschedulable`` as plain values.")
      .def("arrays", &decision_arrays,
           R"(The decision as NumPy arrays, for callers that index arrays of their own with it.

Returns
-------
DecisionArrays
    A named tuple ``resident, admit, credits, preempt, load, drop, unschedulable, terms`` of one-dimensional,
    contiguous, read-only arrays that own their data. Ids are int64, or object where one of the array is a string;
    ``credits`` (one for each of ``admit``) and ``terms`` (5: admit, reuse, move, redo, revoke) are float64, seconds.)")
      .def("__eq__", &equals<Decision>)
      .def("__repr__",
           [](const Decision& decision) {
             return "Decision(" + py::str(decision_to_dict(decision)).cast<std::string>() + ")";
           })
      .def(py::pickle(&get_state, &set_state));
}

void register_explanation(py::module_& module) {
  py::class_<CandidateState>(module, "Candidate", "One evaluated prefix set with its best allocation.")
      .def_readonly("resident", &CandidateState::resident, "Agents whose prefixes it keeps, ascending.")
      .def_readonly("admit", &CandidateState::admit, "Requests it admits, in order.")
      .def_readonly("preempt", &CandidateState::preempt, "Requests it preempts, ascending.")
      .def_readonly("terms", &CandidateState::terms, "Its score term by term.");
  py::class_<LeftWaiting>(module, "LeftWaiting", "Why a waiting request was left waiting.")
      .def_readonly("request", &LeftWaiting::request, "Its id.")
      .def_readonly("agent", &LeftWaiting::agent, "Its agent.")
      .def_property_readonly(
          "reason", [](const LeftWaiting& entry) { return name_of(entry.reason); },
          "``never_fits``, ``prefix_not_kept``, ``no_slot``, ``no_room``, ``not_worth``, ``held_back`` or\n"
          "``standstill``.")
      .def_readonly("needs_tokens", &LeftWaiting::needs_tokens,
                    "Its reservation, with its prefix where that is not in the chosen set.")
      .def_readonly("free_tokens", &LeftWaiting::free_tokens, "Free tokens of the chosen state.")
      .def_readonly("gain", &LeftWaiting::gain, "What admitting it too would gain, aged, seconds.")
      .def_property_readonly(
          "alternative_score",
          [](const LeftWaiting& entry) {
            return entry.has_alternative ? std::optional(entry.alternative_score) : std::nullopt;
          },
          "Best score of an evaluated candidate that admits it, or None.");
  py::class_<Explanation>(module, "Explanation", "A decision with its runners-up and its reasons.")
      .def_readonly("decision", &Explanation::decision, "The decision itself.")
      .def_readonly("candidates", &Explanation::candidates, "Best first; the chosen state is the first.")
      .def_readonly("left_waiting", &Explanation::left_waiting, "Requests left waiting, by id.");
}

void register_decide(py::module_& module) {
  module.def(
      "decide",
      [](const Snapshot& snapshot, const ConfigArgument& settings) {
        const Config config = to_config(settings.value);
        const py::gil_scoped_release release;  // nothing of Python is touched from here on
        return decide(snapshot, config);
      },
      py::arg("snapshot"), py::arg("config"),
      R"(The decision for a state (SPEC sections 2 to 6). Pure: the same arguments give the same answer.

Parameters
----------
snapshot : Snapshot
    The state.
config : Config
    The settings. ``age_scale_s`` may be None only if the snapshot has one or ``age_weight`` is 0.

Returns
-------
Decision

Raises
------
ConfigError, SnapshotError
    A setting or a part of the snapshot is out of range or inconsistent.
CapacityError
    ``samples`` is 0 and an expectation has more than ``exact_limit`` joint outcomes.)");
}

void register_explain(py::module_& module) {
  module.def(
      "explain",
      [](const Snapshot& snapshot, const ConfigArgument& settings, const Integer& top) {
        const Config config = to_config(settings.value);
        const std::int64_t count = top.get("top");
        if (count < 1) {
          throw ArgumentError("top: must be at least 1, got " + std::to_string(count));
        }
        const py::gil_scoped_release release;
        return explain(snapshot, config, static_cast<std::size_t>(count));
      },
      py::arg("snapshot"), py::arg("config"), py::arg("top") = 5,
      R"(The decision of :func:`decide` with its ``top`` best candidates and why each request was left waiting.

Raises
------
ConfigError, SnapshotError, ArgumentError
    As :func:`decide`, and for ``top`` below 1.)");
}

void register_expected_longest_path(py::module_& module) {
  module.def(
      "expected_longest_path",
      [](const Snapshot& snapshot, const ConfigArgument& settings, const Name& task,
         const std::vector<Id>& completions) {
        return expected_longest_path(snapshot, to_config(settings.value), task.get("task"), completions);
      },
      py::arg("snapshot"), py::arg("config"), py::arg("task"), py::arg("completions") = std::vector<Id>{},
      R"(E[LP] of one task after hypothetical completions (SPEC section 2).

Parameters
----------
snapshot : Snapshot
    The state.
config : Config
    ``exact_limit``, ``samples`` and ``seed`` matter.
task : int or str
    A task of the snapshot.
completions : list of int or str
    Requests of the task that count as completed.

Returns
-------
float
    Seconds.

Raises
------
UnknownId
    The snapshot has no such task or request.)");
}

}  // namespace

void register_decision(py::module_& module) {
  register_terms(module);
  register_decision_class(module);
  register_explanation(module);
  register_decide(module);
  register_explain(module);
  register_expected_longest_path(module);
}

}  // namespace topas::python
