"""
The compiled decision core. Use it through the names of the package topas.
"""
from __future__ import annotations
import collections.abc
import topas.config
import topas.decision
import topas.workflow
import typing
__all__: list[str] = ['Candidate', 'Decision', 'Explanation', 'LeftWaiting', 'Scheduler', 'Snapshot', 'Terms', 'Usage', 'critical_path_s', 'decide', 'expected_longest_path', 'explain', 'validate_config', 'validate_workflow']
class Snapshot:
    """
    The whole state at one scheduling event (SPEC section 1). Immutable, comparable, picklable.
    
    Made by :meth:`from_dict` or :meth:`Scheduler.snapshot`.
    """
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def from_dict(fields: typing.Any) -> Snapshot:
        """
        Read the plain form, such as one parsed line of a snapshot file.
        
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
            An id is neither a string nor an integer of 64 bits.
        """
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    def __getstate__(self) -> dict[str, typing.Any]:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, arg0: dict[str, typing.Any]) -> None:
        ...
    def to_dict(self) -> dict[str, typing.Any]:
        """
        The plain form; the inverse of :meth:`from_dict`.
        """
    @property
    def age_scale_s(self) -> float | None:
        """
        H_age, seconds, or None.
        """
    @property
    def now(self) -> float:
        """
        Time of the event, seconds.
        """
class Terms:
    """
    The five terms of a score, seconds (SPEC section 3).
    """
    __hash__: typing.ClassVar[None] = None
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def to_dict(self) -> dict[str, typing.Any]:
        """
        The terms by name.
        """
    @property
    def admit(self) -> float:
        """
        J_admit: what admitting gains, by paths or services, aged.
        """
    @property
    def move(self) -> float:
        """
        J_move: waiting for prefixes that enter and leave.
        """
    @property
    def redo(self) -> float:
        """
        J_redo: work of preempted requests that is done again.
        """
    @property
    def reuse(self) -> float:
        """
        J_reuse: reloads that resident prefixes will save.
        """
    @property
    def revoke(self) -> float:
        """
        J_revoke: credits of preempted requests, or their worth now.
        """
    @property
    def score(self) -> float:
        """
        J = admit + reuse - move - redo - revoke.
        """
class Decision:
    """
    What to do at one scheduling event (SPEC section 1). Immutable, comparable, picklable.
    """
    __hash__: typing.ClassVar[None] = None
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    def __getstate__(self) -> tuple[float, int, list[int | str], list[int | str], list[int | str], list[int | str], list[int | str], list[tuple[int | str, float, float]], list[int | str], typing.Annotated[list[float], "FixedSize(5)"], int, int]:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, arg0: tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[int | str], collections.abc.Sequence[int | str], collections.abc.Sequence[int | str], collections.abc.Sequence[int | str], collections.abc.Sequence[int | str], collections.abc.Sequence[tuple[int | str, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]], collections.abc.Sequence[int | str], typing.Annotated[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], "FixedSize(5)"], typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    def arrays(self) -> topas.decision.DecisionArrays:
        """
        The decision as NumPy arrays, for callers that index arrays of their own with it.
        
        Returns
        -------
        DecisionArrays
            A named tuple ``resident, admit, credits, preempt, load, drop, unschedulable, terms`` of one-dimensional,
            contiguous, read-only arrays that own their data. Ids are int64, or object where one of the array is a string;
            ``credits`` (one for each of ``admit``) and ``terms`` (5: admit, reuse, move, redo, revoke) are float64, seconds.
        """
    def to_dict(self) -> dict[str, typing.Any]:
        """
        ``resident, admit, preempt, score, terms, credits, unschedulable`` as plain values.
        """
    @property
    def admit(self) -> list[int | str]:
        """
        A: waiting requests to start, in order.
        """
    @property
    def credits(self) -> dict[int | str, float]:
        """
        Credit of each admitted request, seconds.
        """
    @property
    def drop(self) -> list[int | str]:
        """
        Prefixes that leave, ascending.
        """
    @property
    def evaluated_sets(self) -> int:
        """
        Prefix sets that GreedyPack was run on.
        """
    @property
    def load(self) -> list[int | str]:
        """
        Prefixes that enter, ascending.
        """
    @property
    def now(self) -> float:
        """
        Time it was made for, seconds.
        """
    @property
    def preempt(self) -> list[int | str]:
        """
        P: running requests to put back, ascending.
        """
    @property
    def pruned_sets(self) -> int:
        """
        Feasible prefix sets left out: they could not be chosen, or max_evaluations was reached.
        """
    @property
    def resident(self) -> list[int | str]:
        """
        R': agents whose prefixes are resident after it, ascending.
        """
    @property
    def score(self) -> float:
        """
        J, seconds.
        """
    @property
    def terms(self) -> Terms:
        """
        The score term by term.
        """
    @property
    def unschedulable(self) -> list[int | str]:
        """
        Waiting requests that can never fit: prefix + reservation exceed the capacity. Ascending.
        """
class Candidate:
    """
    One evaluated prefix set with its best allocation.
    """
    @property
    def admit(self) -> list[int | str]:
        """
        Requests it admits, in order.
        """
    @property
    def preempt(self) -> list[int | str]:
        """
        Requests it preempts, ascending.
        """
    @property
    def resident(self) -> list[int | str]:
        """
        Agents whose prefixes it keeps, ascending.
        """
    @property
    def terms(self) -> Terms:
        """
        Its score term by term.
        """
class LeftWaiting:
    """
    Why a waiting request was left waiting.
    """
    @property
    def agent(self) -> int | str:
        """
        Its agent.
        """
    @property
    def alternative_score(self) -> float | None:
        """
        Best score of an evaluated candidate that admits it, or None.
        """
    @property
    def free_tokens(self) -> int:
        """
        Free tokens of the chosen state.
        """
    @property
    def gain(self) -> float:
        """
        What admitting it too would gain, aged, seconds.
        """
    @property
    def needs_tokens(self) -> int:
        """
        Its reservation, with its prefix where that is not in the chosen set.
        """
    @property
    def reason(self) -> str:
        """
        ``never_fits``, ``prefix_not_kept``, ``no_slot``, ``no_room``, ``not_worth``, ``held_back`` or
        ``standstill``.
        """
    @property
    def request(self) -> int | str:
        """
        Its id.
        """
class Explanation:
    """
    A decision with its runners-up and its reasons.
    """
    @property
    def candidates(self) -> list[Candidate]:
        """
        Best first; the chosen state is the first.
        """
    @property
    def decision(self) -> Decision:
        """
        The decision itself.
        """
    @property
    def left_waiting(self) -> list[LeftWaiting]:
        """
        Requests left waiting, by id.
        """
class Usage:
    """
    Read-only gauges. When every task has ended and one more decision was committed, all but
    ``agents``, ``workflows`` and ``samples`` are zero.
    """
    @property
    def agents(self) -> int:
        """
        Registered agents.
        """
    @property
    def credits(self) -> int:
        """
        Stored admission credits.
        """
    @property
    def kv_tokens(self) -> int:
        """
        Resident prefixes and running reservations, tokens.
        """
    @property
    def resident(self) -> int:
        """
        Resident prefixes.
        """
    @property
    def running(self) -> int:
        """
        Running requests.
        """
    @property
    def samples(self) -> int:
        """
        Service totals kept, at most 256 for each stage of a workflow.
        """
    @property
    def tasks(self) -> int:
        """
        Live tasks.
        """
    @property
    def waiting(self) -> int:
        """
        Waiting requests.
        """
    @property
    def workflows(self) -> int:
        """
        Registered workflows.
        """
class Scheduler:
    """
    The incremental door: events in, one decision out (SPEC section 9).
    
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
        The event is not legal now, or the clock went back.
    """
    def __init__(self, config: topas.config.Config) -> None:
        ...
    def commit(self, decision: Decision) -> None:
        """
        Apply a decision of this scheduler. StateError when anything has changed since it was made.
        """
    def decide(self, now: float) -> Decision:
        """
        The decision at ``now``, the same as ``decide(self.snapshot(now), config)``. Changes nothing.
        """
    def prefix_changed(self, now: float, agent: int | str, prefix_tokens: int) -> None:
        """
        The prefix of an agent turns out to be shorter or longer. What its live requests hold in all stays the same:
        their own inputs take the difference. StateError when one of them is shorter than the prefix.
        """
    def prefix_evicted(self, now: float, agent: int | str) -> None:
        """
        The engine has lost a resident prefix. StateError while requests of the agent run.
        """
    def prefix_loaded(self, now: float, agent: int | str) -> None:
        """
        The engine holds the prefix of an agent although no decision has loaded it. StateError when it is resident.
        """
    def reconfigure(self, config: topas.config.Config) -> None:
        """
        Change the settings of the running scheduler; ConfigError leaves the old ones.
        """
    def register_agent(self, agent: int | str, prefix_tokens: int) -> None:
        """
        Make an agent known, with the tokens of its static prefix (0 or more). Once more with another length is
        legal while it has neither requests nor a resident prefix, else StateError.
        """
    def register_workflow(self, workflow: topas.workflow.Workflow) -> None:
        """
        Make a workflow known. UnknownId when an agent of it is not registered, StateError when its name is taken.
        """
    def request_aborted(self, now: float, request: int | str) -> None:
        """
        A waiting or running request is gone; its id is free again.
        """
    def request_completed(self, now: float, request: int | str, service_s: float) -> None:
        """
        A running request is done after ``service_s`` seconds of LLM service (no queueing, no tool waits).
        """
    def request_progress(self, now: float, request: int | str, generated_tokens: int) -> None:
        """
        A running request has generated so many tokens in all.
        """
    def request_ready(self, now: float, request: int | str, task: int | str, stage: int | str, input_tokens: int, max_new_tokens: int) -> None:
        """
        A request of a stage waits. Its reservation is ``input_tokens`` (without the agent's prefix) +
        ``max_new_tokens``. StateError when the stage is not open, a predecessor is, or the id is live.
        """
    def request_start_failed(self, now: float, request: int | str) -> None:
        """
        An admitted request could not start; it waits again and its credit is revoked.
        """
    def request_started(self, now: float, request: int | str) -> None:
        """
        The engine has started a waiting request by itself: it runs with its agent's prefix, without a credit.
        StateError when it is running.
        """
    def snapshot(self, now: float) -> Snapshot:
        """
        The whole state as plain data, with H_age as it is now.
        """
    def stage_completed(self, now: float, task: int | str, stage: int | str) -> None:
        """
        A stage has ended; its total enters the stage's profile. StateError while it has live requests, while a
        predecessor is open, or when it is not open itself.
        """
    def stage_skipped(self, now: float, task: int | str, stage: int | str) -> None:
        """
        A stage will not run (a conditional branch), nor will stages that only skipped ones lead to. A second
        time is a no-op. StateError while it has live requests or when it has completed.
        """
    def task_arrived(self, now: float, task: int | str, workflow: int | str, since: typing.Any = None) -> None:
        """
        A task of a registered workflow arrives; its age counts from ``since`` (None: now). StateError when its id is
        live.
        """
    def task_cancelled(self, now: float, task: int | str) -> None:
        """
        A task ends without a result; its requests are removed, running ones too. It does not count for H_age.
        """
    def task_finished(self, now: float, task: int | str) -> None:
        """
        A task ends, although stages are open; its requests are removed. It counts for H_age. (A task whose
        last stage completes or is skipped ends by itself.)
        """
    def unregister_agent(self, agent: int | str) -> None:
        """
        Forget an agent. StateError while a registered workflow names it; its prefix counts as dropped.
        """
    def unregister_workflow(self, name: int | str) -> None:
        """
        Forget a workflow and its profiles. StateError while it has live tasks.
        """
    def usage(self) -> Usage:
        """
        Gauges of what is stored.
        """
    @property
    def age_scale_s(self) -> float:
        """
        H_age now, seconds: the config's constant, else the exponentially weighted mean (weight 0.1) of the LLM
        service of finished tasks, else the mean critical path of the registered workflows, else 0 (no ageing).
        """
def critical_path_s(workflow: topas.workflow.Workflow) -> float:
    """
    Longest path of the profiled totals, seconds.
    """
def decide(snapshot: Snapshot, config: topas.config.Config) -> Decision:
    """
    The decision for a state (SPEC sections 2 to 6). Pure: the same arguments give the same answer.
    
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
        ``samples`` is 0 and an expectation has more than ``exact_limit`` joint outcomes.
    """
def expected_longest_path(snapshot: Snapshot, config: topas.config.Config, task: int | str, completions: collections.abc.Sequence[int | str] = []) -> float:
    """
    E[LP] of one task after hypothetical completions (SPEC section 2).
    
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
        The snapshot has no such task or request.
    """
def explain(snapshot: Snapshot, config: topas.config.Config, top: int = 5) -> Explanation:
    """
    The decision of :func:`decide` with its ``top`` best candidates and why each request was left waiting.
    
    Raises
    ------
    ConfigError, SnapshotError, ArgumentError
        As :func:`decide`, and for ``top`` below 1.
    """
def validate_config(config: topas.config.Config) -> None:
    """
    Raise ConfigError for the first field that is of the wrong type or out of range.
    """
def validate_workflow(workflow: topas.workflow.Workflow) -> None:
    """
    Raise WorkflowError or IdError for the first thing that is wrong with the workflow.
    """
