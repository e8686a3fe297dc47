"""Every illegal use of an event is refused by name, with its value, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import topas
from busy import NOW, busy_config, busy_scheduler, fingerprint, fork_and_join
from topas import (
    ArgumentError,
    CapacityError,
    Config,
    ConfigError,
    IdError,
    Scheduler,
    Snapshot,
    SnapshotError,
    Stage,
    StateError,
    TopasError,
    UnknownId,
    Workflow,
    WorkflowError,
    decide,
    expected_longest_path,
    explain,
)

Use = Callable[[Scheduler], object]


def refused(use: Use, error: type[TopasError], *words: str) -> None:
    """Check the type and the words of a refusal, and that the scheduler is as it was."""
    scheduler = busy_scheduler()
    before = fingerprint(scheduler)
    with pytest.raises(error) as caught:
        use(scheduler)
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)
    assert fingerprint(scheduler) == before


# -------------------------------------------------------------- what is not known

UNKNOWN: dict[str, tuple[Use, str]] = {
    "unregister_agent": (lambda s: s.unregister_agent("nobody"), "agent 'nobody'"),
    "unregister_workflow": (lambda s: s.unregister_workflow("none"), "workflow 'none'"),
    "workflow of an unknown agent": (
        lambda s: s.register_workflow(Workflow("w", [Stage(0, "A"), Stage(1, "nobody")])),
        "agent 'nobody'",
    ),
    "task_arrived": (lambda s: s.task_arrived(NOW, "new", "none"), "workflow 'none'"),
    "task_cancelled": (lambda s: s.task_cancelled(NOW, 404), "task 404"),
    "task_finished": (lambda s: s.task_finished(NOW, 404), "task 404"),
    "task that has ended": (lambda s: s.task_cancelled(NOW, "i"), "task 'i'"),
    "request_ready of a task": (
        lambda s: s.request_ready(NOW, "r", 404, "S", 1, 1),
        "task 404",
    ),
    "request_ready of a stage": (
        lambda s: s.request_ready(NOW, "r", "t", "Z", 1, 1),
        "stage 'Z'",
    ),
    "request_progress": (lambda s: s.request_progress(NOW, "r?", 1), "request 'r?'"),
    "request_completed": (lambda s: s.request_completed(NOW, "r?", 1.0), "request 'r?'"),
    "request completed before": (lambda s: s.request_completed(NOW, "r0", 1.0), "request 'r0'"),
    "request of a task that has ended": (lambda s: s.request_aborted(NOW, "ri"), "request 'ri'"),
    "request_aborted": (lambda s: s.request_aborted(NOW, "r?"), "request 'r?'"),
    "request_start_failed": (lambda s: s.request_start_failed(NOW, "r?"), "request 'r?'"),
    "request_started": (lambda s: s.request_started(NOW, "r?"), "request 'r?'"),
    "stage_completed of a task": (lambda s: s.stage_completed(NOW, 404, "S"), "task 404"),
    "stage_completed": (lambda s: s.stage_completed(NOW, "t", "Z"), "stage 'Z'"),
    "stage_skipped of a task": (lambda s: s.stage_skipped(NOW, 404, "S"), "task 404"),
    "stage_skipped": (lambda s: s.stage_skipped(NOW, "t", 0), "stage 0"),
    "prefix_evicted": (lambda s: s.prefix_evicted(NOW, "nobody"), "agent 'nobody'"),
    "prefix_loaded": (lambda s: s.prefix_loaded(NOW, "nobody"), "agent 'nobody'"),
    "prefix_changed": (lambda s: s.prefix_changed(NOW, "nobody", 1), "agent 'nobody'"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_id(name: str) -> None:
    use, what = UNKNOWN[name]
    refused(use, UnknownId, what)


# -------------------------------------------------------------- what is not legal at present

NOT_NOW: dict[str, tuple[Use, tuple[str, ...]]] = {
    "agent of a workflow unregistered": (
        lambda s: s.unregister_agent("A"),
        ("agent 'A'", "in use", "4 stage"),
    ),
    "length of a running agent's prefix changed": (
        lambda s: s.register_agent("B", 301),
        ("agent 'B'", "300", "301"),
    ),
    "length of a waiting agent's prefix changed": (
        lambda s: s.register_agent("A", 1),
        ("agent 'A'", "200"),
    ),
    "length of a resident prefix changed": (
        lambda s: s.register_agent("I", 11),
        ("agent 'I'", "10", "11"),
    ),
    "workflow registered twice": (
        lambda s: s.register_workflow(fork_and_join()),
        ("workflow 'fork'", "already registered"),
    ),
    "workflow with live tasks unregistered": (
        lambda s: s.unregister_workflow("fork"),
        ("workflow 'fork'", "2 live task"),
    ),
    "task arrived twice": (
        lambda s: s.task_arrived(NOW, "t", "fork"),
        ("task 't'", "already arrived"),
    ),
    "request ready twice": (
        lambda s: s.request_ready(NOW, "rs", "s", "S", 1, 1),
        ("request 'rs'", "already"),
    ),
    "request ready under the id of a running one": (
        lambda s: s.request_ready(NOW, "rx", "s", "S", 1, 1),
        ("request 'rx'", "already"),
    ),
    "request ready in a completed stage": (
        lambda s: s.request_ready(NOW, "r", "t", "S", 1, 1),
        ("stage 'S'", "task 't'", "already completed"),
    ),
    "request ready in a skipped stage": (
        lambda s: s.request_ready(NOW, "r", "s", "X", 1, 1),
        ("stage 'X'", "task 's'", "already skipped"),
    ),
    "request ready before its predecessor": (
        lambda s: s.request_ready(NOW, "r", "s", "Y", 1, 1),
        ("stage 'Y'", "task 's'", "not ready", "stage_completed or stage_skipped", "'S'"),
    ),
    "waiting request progresses": (
        lambda s: s.request_progress(NOW, "rs", 1),
        ("request_progress", "request 'rs'", "waiting"),
    ),
    "waiting request completed": (
        lambda s: s.request_completed(NOW, "rs", 1.0),
        ("request_completed", "request 'rs'", "waiting"),
    ),
    "waiting request failed to start": (
        lambda s: s.request_start_failed(NOW, "rs"),
        ("request_start_failed", "request 'rs'", "waiting"),
    ),
    "running request started": (
        lambda s: s.request_started(NOW, "rx"),
        ("request_started", "request 'rx'", "already running"),
    ),
    "stage completed with a running request": (
        lambda s: s.stage_completed(NOW, "t", "X"),
        ("stage 'X'", "task 't'", "1 live request"),
    ),
    "stage completed with a waiting request": (
        lambda s: s.stage_completed(NOW, "s", "S"),
        ("stage 'S'", "task 's'", "1 live request"),
    ),
    "stage completed twice": (
        lambda s: s.stage_completed(NOW, "t", "S"),
        ("stage 'S'", "already completed"),
    ),
    "stage completed after it was skipped": (
        lambda s: s.stage_completed(NOW, "s", "X"),
        ("stage 'X'", "already skipped"),
    ),
    "stage completed before its predecessor": (
        lambda s: s.stage_completed(NOW, "t", "J"),
        ("stage 'J'", "not ready", "'X'"),
    ),
    "stage skipped with a live request": (
        lambda s: s.stage_skipped(NOW, "t", "Y"),
        ("stage 'Y'", "task 't'", "1 live request"),
    ),
    "stage skipped after it was completed": (
        lambda s: s.stage_skipped(NOW, "t", "S"),
        ("stage 'S'", "already completed"),
    ),
    "prefix evicted under a running request": (
        lambda s: s.prefix_evicted(NOW, "B"),
        ("agent 'B'", "1 running request"),
    ),
    "prefix longer than what a request of the agent holds": (
        lambda s: s.prefix_changed(NOW, "A", 231),
        ("prefix_changed", "request 'rs'", "230 input tokens", "agent 'A'", "231"),
    ),
    "resident prefix loaded": (
        lambda s: s.prefix_loaded(NOW, "B"),
        ("prefix_loaded", "agent 'B'", "already resident"),
    ),
    "prefix evicted that is not resident": (
        lambda s: s.prefix_evicted(NOW, "A"),
        ("agent 'A'", "not resident"),
    ),
}


@pytest.mark.parametrize("name", NOT_NOW)
def test_not_legal_at_present(name: str) -> None:
    use, words = NOT_NOW[name]
    refused(use, StateError, *words)


# -------------------------------------------------------------- arguments

HUGE = 2**48 + 1
EVENTS: dict[str, dict[str, Any]] = {
    "register_agent": {"agent": "new", "prefix_tokens": 10},
    "unregister_agent": {"agent": "U"},
    "unregister_workflow": {"name": "chain"},
    "task_arrived": {"now": NOW, "task": "new", "workflow": "fork"},
    "task_cancelled": {"now": NOW, "task": "t"},
    "task_finished": {"now": NOW, "task": "t"},
    "request_ready": {
        "now": NOW,
        "request": "new",
        "task": "s",
        "stage": "S",
        "input_tokens": 10,
        "max_new_tokens": 10,
    },
    "request_progress": {"now": NOW, "request": "rx", "generated_tokens": 30},
    "request_completed": {"now": NOW, "request": "rx", "service_s": 4.0},
    "request_aborted": {"now": NOW, "request": "rx"},
    "request_start_failed": {"now": NOW, "request": "rx"},
    "request_started": {"now": NOW, "request": "rs"},
    "stage_completed": {"now": NOW, "task": "s", "stage": "S"},
    "stage_skipped": {"now": NOW, "task": "s", "stage": "J"},
    "prefix_evicted": {"now": NOW, "agent": "I"},
    "prefix_loaded": {"now": NOW, "agent": "A"},
    "prefix_changed": {"now": NOW, "agent": "U", "prefix_tokens": 10},
    "decide": {"now": NOW},
    "snapshot": {"now": NOW},
}
NOT_REALS = (None, "5", True, False, b"5", [], 1j, 10**400, math.nan, math.inf, -math.inf)
NOT_INTEGERS = (None, "5", True, False, 1.5, 5.0, math.nan, math.inf, [], 2**63, -(2**70))
NOT_IDS = (None, True, False, 1.5, b"x", [], ("a",), 2**63, -(2**63) - 1, "\ud800", math.nan)
BAD_ARGUMENTS = [
    (event, argument, value)
    for event, arguments in EVENTS.items()
    for argument, legal in arguments.items()
    for value in (
        (*NOT_REALS, -1.0)
        if isinstance(legal, float)
        else (*NOT_INTEGERS, -1, HUGE)
        if isinstance(legal, int)
        else NOT_IDS
    )
]


@pytest.mark.parametrize("event", EVENTS)
def test_event_is_legal_with_good_arguments(event: str) -> None:
    """So that each refusal below is because of the one bad argument."""
    scheduler = busy_scheduler()
    if event == "stage_completed":
        scheduler.request_aborted(NOW, "rs")
    getattr(scheduler, event)(**EVENTS[event])


@pytest.mark.parametrize("event", EVENTS)
def test_bad_argument_is_named_with_its_value(event: str) -> None:
    scheduler = busy_scheduler()
    before = fingerprint(scheduler)
    for name, argument, value in BAD_ARGUMENTS:
        if name != event:
            continue
        legal = EVENTS[event][argument]
        expected = IdError if isinstance(legal, str) else ArgumentError
        if argument == "now" and value == -1.0:
            expected = StateError  # a number, but the clock would go back
        with pytest.raises(expected) as caught:
            getattr(scheduler, event)(**{**EVENTS[event], argument: value})
        assert type(caught.value) is expected, (argument, value)
        assert str(caught.value).startswith(f"{argument}: "), (argument, value)
        assert shown(value) in str(caught.value), (argument, value)
    assert fingerprint(scheduler) == before


def shown(value: object) -> str:
    """Give how a message shows a value: numbers plainly, everything else by its repr."""
    if isinstance(value, float) and not math.isfinite(value):
        return ""  # "nan" with or without a sign
    if isinstance(value, float):
        return f"{value:g}"
    text = repr(value)
    return text if len(text) <= 80 else text[:80]


def test_reservation_of_nothing_is_refused() -> None:
    refused(
        lambda s: s.request_ready(NOW, "new", "s", "S", 0, 0),
        ArgumentError,
        "input_tokens + max_new_tokens",
        "0",
    )


def test_reservation_beyond_what_is_counted_exactly_is_refused() -> None:
    refused(
        lambda s: s.request_ready(NOW, "new", "s", "S", 2**48, 1),
        ArgumentError,
        "input_tokens + max_new_tokens",
        str(2**48 + 1),
    )


@pytest.mark.parametrize("event", [name for name in EVENTS if "now" in EVENTS[name]])
def test_clock_that_goes_back_is_refused(event: str) -> None:
    refused(
        lambda s: getattr(s, event)(**{**EVENTS[event], "now": 9.5}),
        StateError,
        "now",
        "10",
        "9.5",
    )


@pytest.mark.parametrize("since", [NOW + 0.5, math.nan, math.inf, -math.inf, "5", True, []])
def test_begin_of_a_task_is_checked(since: Any) -> None:
    refused(lambda s: s.task_arrived(NOW, "new", "fork", since), ArgumentError, "since: ")


def test_long_value_is_cut_between_characters() -> None:
    for letter in ("a", "é", "日", "🦉"):
        for shift in range(4):
            with pytest.raises(ConfigError, match=r"kv_capacity_tokens: .*\.\.\.$"):
                busy_config(kv_capacity_tokens="x" * shift + letter * 100)


def test_control_characters_do_not_cut_or_break_a_message() -> None:
    scheduler = busy_scheduler()
    with pytest.raises(UnknownId, match=r"^task 'a\\x00b\\x0ac' is not known$"):
        scheduler.task_cancelled(NOW, "a\0b\nc")


# -------------------------------------------------------------- commit


def test_commit_of_a_stale_decision_is_refused() -> None:
    scheduler = busy_scheduler()
    stale = scheduler.decide(NOW)
    scheduler.request_progress(NOW, "rx", 21)
    before = fingerprint(scheduler)
    with pytest.raises(StateError, match="the state has changed"):
        scheduler.commit(stale)
    assert fingerprint(scheduler) == before


def test_commit_twice_is_refused() -> None:
    scheduler = busy_scheduler()
    decision = scheduler.decide(NOW)
    scheduler.commit(decision)
    before = fingerprint(scheduler)
    with pytest.raises(StateError, match="the state has changed"):
        scheduler.commit(decision)
    assert fingerprint(scheduler) == before


def test_commit_of_a_pure_decision_is_refused() -> None:
    refused(
        lambda s: s.commit(decide(s.snapshot(NOW), busy_config())), StateError, "version 0", "now"
    )


@pytest.mark.parametrize("change", ["reconfigure", "register_agent", "unregister_agent"])
def test_commit_after_a_change_of_the_tables_is_refused(change: str) -> None:
    arguments = {
        "reconfigure": (busy_config(action_cap=1),),
        "register_agent": ("U", 6),
        "unregister_agent": ("U",),
    }
    scheduler = busy_scheduler()
    decision = scheduler.decide(NOW)
    getattr(scheduler, change)(*arguments[change])
    with pytest.raises(StateError, match="the state has changed"):
        scheduler.commit(decision)


def made_decision(**fields: list[Any]) -> topas.Decision:
    """Make a decision that has the version of the busy scheduler, as another's could by chance."""
    version = busy_scheduler().decide(NOW).__getstate__()[1]
    names = ("resident", "admit", "preempt", "load", "drop", "credits", "unschedulable")
    decision = topas.Decision.__new__(topas.Decision)
    lists = [fields.get(name, []) for name in names]
    decision.__setstate__((NOW, version, *lists, [0.0] * 5, 1, 0))
    return decision


FOREIGN: dict[str, dict[str, list[Any]]] = {
    "preempts an unknown request": {"preempt": ["r?"]},
    "preempts a waiting request": {"preempt": ["rs"]},
    "preempts a request twice": {"preempt": ["rx", "rx"]},
    "admits an unknown request": {"preempt": ["rx"], "credits": [("r?", 1.0, 1.0)]},
    "admits a running request": {"credits": [("rx", 1.0, 1.0)]},
    "admits a request twice": {"credits": [("rs", 1.0, 1.0), ("rs", 1.0, 1.0)]},
    "drops an unknown agent": {"preempt": ["rx"], "drop": ["nobody"]},
    "drops a prefix that is not resident": {"preempt": ["rx"], "drop": ["A"]},
    "loads a resident prefix": {"preempt": ["rx"], "load": ["B"]},
    "loads a prefix twice": {"preempt": ["rx"], "load": ["A", "A"]},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_commit_of_a_decision_that_does_not_fit_changes_nothing(name: str) -> None:
    decision = made_decision(**FOREIGN[name])
    refused(lambda s: s.commit(decision), UnknownId if "unknown" in name else StateError, "")


def test_commit_of_the_decision_of_another_scheduler_that_saw_the_same_events() -> None:
    """One rank decides, the others apply."""
    first, second = busy_scheduler(), busy_scheduler()
    decision = first.decide(NOW)
    first.commit(decision)
    second.commit(decision)
    assert fingerprint(first) == fingerprint(second)


# -------------------------------------------------------------- the tree of errors


def test_every_error_of_the_core_reaches_python_under_its_own_name() -> None:
    """Each is also the builtin that a caller would expect to catch."""
    snapshot = busy_scheduler().snapshot(NOW)
    uses: list[tuple[type[TopasError], type[Exception], Callable[[], object]]] = [
        (ConfigError, ValueError, lambda: busy_config(kv_capacity_tokens=-1)),
        (ArgumentError, ValueError, lambda: busy_scheduler().decide(math.nan)),
        (WorkflowError, ValueError, lambda: Workflow("w", [])),
        (SnapshotError, ValueError, lambda: Snapshot.from_dict({})),
        (IdError, ValueError, lambda: Workflow(2**63, [Stage(0, "A")])),
        (UnknownId, LookupError, lambda: busy_scheduler().task_finished(NOW, 404)),
        (StateError, RuntimeError, lambda: busy_scheduler().decide(0.0)),
        (
            CapacityError,
            RuntimeError,
            lambda: decide(uncertain_snapshot(), busy_config(exact_limit=1, samples=0)),
        ),
    ]
    for error, builtin, use in uses:
        with pytest.raises(builtin) as caught:
            use()
        assert type(caught.value) is error
        assert isinstance(caught.value, TopasError)
    only_in_python = {topas.TraceError, TopasError}
    assert {error for error, _, _ in uses} | only_in_python == {
        value
        for value in vars(topas.errors).values()
        if isinstance(value, type) and issubclass(value, TopasError)
    }
    assert decide(snapshot, busy_config()).now == NOW


def uncertain_snapshot() -> Snapshot:
    """Make a state with one task whose expectation needs four joint outcomes."""
    stage = {"agent": "a", "after": [], "profile": 0, "completed": False, "service_s": 0.0}
    request = {
        "id": "r",
        "task": "t",
        "stage": 0,
        "agent": "a",
        "kv_tokens": 1,
        "expected_service_s": 1.0,
        "running": False,
        "generated_tokens": 0,
        "credit": 0.0,
    }
    return Snapshot.from_dict(
        {
            "now": 0.0,
            "age_scale_s": 1.0,
            "agents": [{"id": "a", "prefix_tokens": 1}],
            "profiles": [{"id": 0, "totals_s": [1.0, 2.0], "request_s": 1.0}],
            "tasks": [{"id": "t", "arrival": 0.0, "stages": [stage, stage]}],
            "requests": [request],
            "resident": [],
        }
    )


def test_expectation_that_may_not_be_sampled_gives_the_numbers() -> None:
    with pytest.raises(CapacityError, match=r"task 't'.*exact_limit = 3.*samples = 0"):
        decide(uncertain_snapshot(), busy_config(exact_limit=3, samples=0))
    assert decide(uncertain_snapshot(), busy_config(exact_limit=4, samples=0)).admit == ["r"]


def test_refusal_in_a_decision_leaves_the_scheduler_as_it_was() -> None:
    scheduler = busy_scheduler()
    for task, service in (("u", 1.0), ("v", 3.0)):  # from now on the length of S is uncertain
        scheduler.task_arrived(NOW, task, "fork")
        scheduler.request_ready(NOW, task, task, "S", 1, 1)
        scheduler.commit(scheduler.decide(NOW))
        scheduler.request_completed(NOW, task, service)
        scheduler.stage_completed(NOW, task, "S")
        scheduler.task_cancelled(NOW, task)
    before = fingerprint(scheduler)
    scheduler.reconfigure(busy_config(exact_limit=1, samples=0))
    for _ in range(2):
        with pytest.raises(CapacityError, match="task 's'"):
            scheduler.decide(NOW)
    scheduler.reconfigure(busy_config())
    after = fingerprint(scheduler)
    assert after[:2] == before[:2]
    assert after[2].to_dict() == before[2].to_dict()


# -------------------------------------------------------------- arguments of other functions


@pytest.mark.parametrize("config", [None, {}, 5, "default"])
def test_what_is_not_a_config_is_refused(config: Any) -> None:
    scheduler = busy_scheduler()
    snapshot = scheduler.snapshot(NOW)
    for use in (
        lambda: Scheduler(config),
        lambda: scheduler.reconfigure(config),
        lambda: decide(snapshot, config),
        lambda: explain(snapshot, config),
        lambda: expected_longest_path(snapshot, config, "t"),
    ):
        with pytest.raises(ConfigError, match=r"^config: must be a topas.Config, got "):
            use()


@pytest.mark.parametrize("workflow", [None, {}, 5, "fork"])
def test_what_is_not_a_workflow_is_refused(workflow: Any) -> None:
    refused(
        lambda s: s.register_workflow(workflow),
        WorkflowError,
        "workflow: must be a topas.Workflow, got ",
    )


@pytest.mark.parametrize("top", [0, -1, None, "5", True, 1.5])
def test_number_of_candidates_is_checked(top: Any) -> None:
    snapshot = busy_scheduler().snapshot(NOW)
    with pytest.raises(ArgumentError, match=r"^top: "):
        explain(snapshot, busy_config(), top)


def test_expectation_names_what_it_does_not_know() -> None:
    snapshot = busy_scheduler().snapshot(NOW)
    with pytest.raises(UnknownId, match="task 404"):
        expected_longest_path(snapshot, busy_config(), 404)
    with pytest.raises(UnknownId, match=r"task 's'.*request 'rx'"):
        expected_longest_path(snapshot, busy_config(), "s", ["rx"])
    with pytest.raises(IdError, match=r"^task: "):
        expected_longest_path(snapshot, busy_config(), None)  # type: ignore[arg-type]


def test_pure_decision_needs_a_scale_when_it_ages() -> None:
    fields = busy_scheduler().snapshot(NOW).to_dict()
    del fields["age_scale_s"]
    snapshot = Snapshot.from_dict(fields)
    with pytest.raises(ConfigError, match="age_scale_s"):
        decide(snapshot, busy_config())
    assert decide(snapshot, busy_config(age_weight=0.0)).now == NOW
    assert decide(snapshot, busy_config(age_scale_s=5.0)).now == NOW


def test_wrong_kind_of_object_is_a_type_error() -> None:
    for use in (
        lambda: decide(None, busy_config()),  # type: ignore[arg-type]
        lambda: busy_scheduler().commit(None),  # type: ignore[arg-type]
        lambda: Config(),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError):
            use()
