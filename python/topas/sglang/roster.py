"""The requests that the core knows, and where each of them stands in the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import topas
from topas.sglang.clock import RankClock
from topas.sglang.hints import read_hints
from topas.sglang.ledger import Arrival, Ledger
from topas.sglang.view import View

__all__ = ["Entry", "Roster"]


@dataclass
class Entry:
    """A request that the core knows.

    Parameters
    ----------
    id : int
        Its id in the core, in the order of arrival: the same on all ranks, and never used again.
    req : sglang.srt.managers.schedule_batch.Req
        The request.
    running : bool
        Whether SGLang runs it.
    since_s : float
        Start of the present spell of running, seconds.
    service_s : float
        Service in earlier spells, seconds.
    had_tokens : int
        Tokens that it had generated when the present spell began.
    """

    id: int
    req: Any
    running: bool = False
    since_s: float = 0.0
    service_s: float = 0.0
    had_tokens: int = 0

    @property
    def has_gained(self) -> bool:
        """Whether its present spell of running has given a token.

        Who could be thrown out before that might run for ever and get nowhere.
        """
        return len(self.req.output_ids) > self.had_tokens


class Roster:
    """Entries by request and by id; every change of one is an event of the ledger.

    Parameters
    ----------
    view : View
        The engine.
    clock : RankClock
        The time that all ranks share.
    ledger : Ledger
        Where events go.

    Attributes
    ----------
    planned : dict of int to Entry
        Admitted by the core and not yet by SGLang, in the order of admission.
    """

    def __init__(self, view: View, clock: RankClock, ledger: Ledger) -> None:
        self._view = view
        self._clock = clock
        self._ledger = ledger
        self._entries: dict[int, Entry] = {}  # by id() of the request, which the entry keeps
        self._by_id: dict[int, Entry] = {}
        self._next_id = 0
        self.planned: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __getitem__(self, entry_id: int) -> Entry:
        return self._by_id[entry_id]

    def get(self, req: Any) -> Entry | None:
        """The entry of a request, if it has one."""
        return self._entries.get(id(req))

    def check(self, admit: Sequence[Any], preempt: Sequence[Any]) -> None:
        """Raise what a decision cannot be.

        Raises
        ------
        StateError, KeyError
            It names a request twice, one that is not there, admits one that does not wait or
            preempts one that does.
        """
        if len({*admit, *preempt}) < len(admit) + len(preempt):
            raise topas.StateError("a decision names a request twice")
        for rid in (*admit, *preempt):
            waits = not self[rid].running and rid not in self.planned
            if waits is (rid in preempt):
                raise topas.StateError(
                    f"a decision preempts request {rid}, which waits"
                    if waits
                    else f"a decision admits request {rid}, which does not wait"
                )

    def apply(
        self, admit: Sequence[Any], preempt: Sequence[Any], may_go: Callable[[Entry, int], bool]
    ) -> list[Any]:
        """Carry out a decision that was checked; return the requests to throw out.

        Parameters
        ----------
        admit, preempt : sequence of int
            Ids; those admitted are planned from now on.
        may_go : callable
            Whether an entry can be preempted beside so many others. One that cannot stays, and the
            ledger is told.
        """
        victims: list[Any] = []
        for rid in preempt:
            entry = self[int(rid)]
            if not may_go(entry, len(victims)):
                self._ledger.started(self._clock.now, entry.id)
                continue
            if entry.running:
                victims.append(entry.req)
            self.stop(entry)
        for rid in admit:
            self.planned[int(rid)] = self[int(rid)]
        return victims

    def agents(self) -> dict[str, bool]:
        """The agents of running and planned requests; whether one of an agent's runs."""
        found: dict[str, bool] = {}
        for entry in self:
            if entry.running or entry.id in self.planned:
                agent = self._ledger.agent_of(entry.id)
                found[agent] = found.get(agent, False) or entry.running
        return found

    def in_use(self) -> list[str]:
        """The agents of running requests."""
        return [agent for agent, runs in self.agents().items() if runs]

    def add(self, req: Any) -> None:
        """A new request waits."""
        self._next_id += 1
        entry = Entry(self._next_id, req)
        self._entries[id(req)] = self._by_id[entry.id] = entry
        self._announce(entry)

    def _announce(self, entry: Entry) -> None:
        req = entry.req
        arrival = Arrival(
            entry.id,
            req.origin_input_ids,
            self._view.reserve_tokens(req),
            self._view.namespace(req),
            read_hints(self._view.carriers(req)),
        )
        self._ledger.arrived(self._clock.now, arrival)

    def start(self, entry: Entry) -> None:
        """SGLang runs it now, planned or not."""
        self.planned.pop(entry.id, None)
        if not entry.running:
            self._ledger.started(self._clock.now, entry.id)
            entry.running, entry.since_s = True, self._clock.now
            entry.had_tokens = len(entry.req.output_ids)

    def stop(self, entry: Entry) -> None:
        """It waits again, whatever the core may think."""
        self.planned.pop(entry.id, None)
        self._pause(entry)
        self._ledger.stopped(self._clock.now, entry.id)

    def leave(self, entry: Entry, *, aborted: bool) -> None:
        """It has finished, or is gone."""
        del self._entries[id(entry.req)], self._by_id[entry.id]
        self.planned.pop(entry.id, None)
        self._pause(entry)
        if aborted:
            self._ledger.aborted(self._clock.now, entry.id)
        else:
            self._ledger.completed(self._clock.now, entry.id, entry.service_s)

    def _pause(self, entry: Entry) -> None:
        if entry.running:
            entry.running = False
            entry.service_s += self._clock.now - entry.since_s

    def refuse(self, shown: Iterable[Any]) -> bool:
        """The first planned one of those shown waits again; whether there is one."""
        tried = {id(req) for req in shown}
        refused = next((e for e in self.planned.values() if id(e.req) in tried), None)
        if refused is not None:
            self.stop(refused)
        return refused is not None

    def tell_progress(self) -> None:
        """How many tokens each running request has generated."""
        for entry in self:
            if entry.running:
                self._ledger.progress(self._clock.now, entry.id, len(entry.req.output_ids))

    def keep(self, there: Iterable[Any]) -> bool:
        """Entries of requests that are not there are aborted; whether there was one."""
        found = {id(req) for req in there}
        gone = [entry for key, entry in self._entries.items() if key not in found]
        for entry in gone:
            self.leave(entry, aborted=True)
        return bool(gone)

    def keep_planned(self, there: Collection[int]) -> None:
        """Planned ones whose requests are not among these (by ``id``) are aborted."""
        for entry in [e for e in self.planned.values() if id(e.req) not in there]:
            self.leave(entry, aborted=True)

    def tell(self, ledger: Ledger, running: Iterable[Any]) -> list[Any]:
        """Start afresh with another ledger; return the requests that it does not take.

        Parameters
        ----------
        ledger : Ledger
            Knows of no request yet.
        running : iterable of Req
            The requests that SGLang runs.
        """
        self._ledger = ledger
        self.planned.clear()
        runs = {id(req) for req in running}
        refused = []
        for key, entry in list(self._entries.items()):
            try:
                self._announce(entry)
                self._pause(entry)
                if key in runs:
                    self.start(entry)
            except Exception:
                del self._entries[key], self._by_id[entry.id]
                refused.append(entry.req)
        return refused
