"""Static prefixes in the engine: pinned while the core has them resident, copied in and out.

What is resident the core decides; here that is carried out. A prefix is known by its contents, its
token ids in a namespace of the cache: agents that have the same share one.

======== ==================================== ============================ ======================
phase    in the tree                          in the store                 slots
======== ==================================== ============================ ======================
pinned   locked                               on the device, perhaps       the tree's, locked
                                              being saved
coming   not (or not wholly)                  being loaded                 in transit
neither  perhaps, for SGLang to evict         on the host, or absent       the tree's, or free
======== ==================================== ============================ ======================

Nothing here raises: where a step fails the prefix is left to SGLang, which computes it as it would
without topas, and slots and locks are what they were before.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from topas.errors import CapacityError, StateError
from topas.sglang.agents import Agents, Namespace
from topas.sglang.cache import Match
from topas.sglang.clock import RankClock
from topas.sglang.costs import CostMeter
from topas.sglang.flights import Flights
from topas.sglang.heads import Tokens
from topas.sglang.metrics import Copies, Counts
from topas.sglang.no_copies import NoCopies
from topas.sglang.once import OnceLog
from topas.sglang.settings import Settings
from topas.sglang.view import View

if TYPE_CHECKING:
    from topas.sglang.prefixes import KvBuffers, PrefixStore

__all__ = ["Residency", "residency_of"]

logger = logging.getLogger(__name__)

# States of a prefix in the store, by value: its module needs torch.
_UNSAVED, _ON_HOST = "resident", "on host"
_ON_DEVICE = (_UNSAVED, "resident and on host")


@dataclass(frozen=True)
class _Prefix:
    """A static prefix, by its contents."""

    tokens: Tokens = field(repr=False)
    namespace: Namespace
    key: str

    @classmethod
    def of(cls, tokens: Tokens, namespace: Namespace) -> _Prefix:
        digest = blake2b(repr(namespace).encode(), digest_size=16)
        digest.update(tokens.tobytes())
        return cls(tokens, namespace, digest.hexdigest())


@dataclass
class _Held:
    """A prefix that is pinned (it has a lock) or coming (it has slots)."""

    prefix: _Prefix
    lock: Any = None
    slots: Any = None
    is_leaving: bool = False  # as soon as its copy to the host is made
    frees: bool = False  # its slots when it leaves


class Residency(NoCopies):
    """Pins, copies and their bookkeeping for one scheduler.

    Parameters
    ----------
    view : View
        The engine, with its tree and pool.
    store : PrefixStore
        Makes the copies; closed when this object is gone.
    buffers : KvBuffers
        Those of the store.
    flights : Flights
        Tells which copies are over.

    Attributes
    ----------
    store, buffers
        As given: ``store.counts()``, ``buffers.bytes_per_token``. What the store measures differs
        between ranks: ``load_bytes_per_s`` is what decisions may hang on.
    gave_way : int
        How often a pin or a load gave way to what SGLang needed the room for.
    failures : Counter of str
        Steps that failed, by the name of the error.
    """

    def __init__(
        self, view: View, store: PrefixStore, buffers: KvBuffers, flights: Flights
    ) -> None:
        super().__init__(view)
        self.store = store
        self.buffers = buffers
        self.gave_way = 0
        self.failures: Counter[str] = Counter()
        self._cache = view.cache
        self._flights = flights
        self._held: dict[str, _Held] = {}
        self._wanted: dict[str, _Prefix] = {}  # what the core has resident, by key
        self._prefixes: dict[str, _Prefix] = {}  # by agent
        self._no_room: set[str] = set()  # wanted, on the host, and there was no room so far
        self._left_alone: set[str] = set()  # wanted, but for now SGLang's business
        self._fresh: set[str] = set()  # loaded in this pass
        self._to_free: dict[str, _Prefix] = {}  # have left, for others that wait for the room
        self._needs = 0
        self._in_use: Callable[[], Iterable[str]] = tuple
        self._log = OnceLog(logger, "a prefix is left to SGLang")
        self._is_due = False
        self._has_progressed = False
        self._close = weakref.finalize(self, store.close)

    # -- what is known

    @property
    def pinned(self) -> tuple[int, int]:
        """How many prefixes are pinned, and their tokens."""
        return self._sum(lambda held: held.lock is not None)

    @property
    def loading(self) -> tuple[int, int]:
        """How many prefixes are being loaded, and their tokens."""
        return self._sum(lambda held: held.lock is None)

    @property
    def load_bytes_per_s(self) -> float | None:
        """Bytes a second of loads, the same on all ranks; None before the first."""
        return self._flights.rate

    def _sum(self, counts: Callable[[_Held], bool]) -> tuple[int, int]:
        lengths = [len(held.prefix.tokens) for held in self._held.values() if counts(held)]
        return len(lengths), sum(lengths)

    def is_coming(self, agent: str) -> bool:
        """See :class:`NoCopies`."""
        prefix = self._prefixes.get(agent)
        if prefix is None:
            return False
        held = self._held.get(prefix.key)
        return prefix.key in self._no_room or (held is not None and held.lock is None)

    def is_promised(self, agent: str) -> bool:
        """See :class:`NoCopies`."""
        prefix = self._prefixes.get(agent)
        return self.is_coming(agent) or (prefix is not None and prefix.key in self._fresh)

    def holds(self, tokens: Tokens, namespace: Namespace) -> int:
        """See :class:`NoCopies`."""
        for held in self._held.values():
            prefix = held.prefix
            if (
                held.lock is None
                and prefix.namespace == namespace
                and np.array_equal(prefix.tokens, tokens)
            ):
                return len(tokens)
        return super().holds(tokens, namespace)

    # -- in the order of a pass

    def land(self, needs: int, in_use: Callable[[], Iterable[str]]) -> None:
        """See :class:`NoCopies`."""
        for key, is_well in self._flights.over():
            self._is_due = True
            self._fresh.add(key)
            self._try(key, self._landed, self._held[key], is_well)
        self._needs, self._in_use = needs, in_use
        self._leave_room()

    def _leave_room(self) -> None:
        """SGLang must find what running requests need: a chunk that it cannot place is the end."""
        for used in (self._in_use, tuple):
            if self._held and self._cache.room < self._needs:
                self.give_way(used())

    def decided(self, resident: Iterable[str], agents: Agents) -> None:
        """See :class:`NoCopies`."""
        before, self._prefixes = self._prefixes, {}
        for agent in resident:
            if (found := agents.prefix(agent)) is not None:
                self._prefixes[agent] = self._known(before.get(agent), *found)
        self._wanted = {prefix.key: prefix for prefix in self._prefixes.values()}
        self._give_up({a: p.key for a, p in before.items() if p.key not in self._wanted}, agents)
        for key in self._wanted:
            self.store.touch(key)
            if key in self._held:
                self._held[key].is_leaving = False
        self._no_room &= self._wanted.keys()
        if self._has_progressed:
            self._left_alone.clear()
        self._left_alone &= self._wanted.keys()
        self._is_due = True

    def _give_up(self, gone: dict[str, str], agents: Agents) -> None:
        """What is held and not wanted leaves; ``gone``: keys no longer wanted, by their agents."""
        for agent, key in gone.items():
            if agent in self._prefixes:  # it has another one now
                self._try(key, self._outdate, key)
        waited_for = {key for agent, key in gone.items() if agents.is_live(agent)}
        for key in [key for key in self._held if key not in self._wanted]:
            self._try(key, self._leave, self._held[key], key in waited_for)

    @staticmethod
    def _known(before: _Prefix | None, tokens: Tokens, namespace: Namespace) -> _Prefix:
        if before is not None and np.array_equal(before.tokens, tokens):
            return before
        return _Prefix.of(tokens, namespace)

    def computed(self) -> None:
        """See :class:`NoCopies`."""
        self._is_due = True

    def enter(self, is_idle: bool) -> None:
        """See :class:`NoCopies`."""
        self._fresh.clear()
        self._free_what_left()
        if not self._is_due and not self._no_room:
            return
        self._is_due = False
        missing = [prefix for prefix in self._wanted.values() if not self._is_settled(prefix.key)]
        absent = [prefix for prefix in missing if not self._try(prefix.key, self._pin, prefix)]
        for prefix in absent:
            if not self._is_settled(prefix.key):
                self._try(prefix.key, self._load, prefix)
        if self._no_room and is_idle and self.loading[0] == 0:
            self._make_room()
        self._leave_room()

    def _free_what_left(self) -> None:
        while self._to_free:
            key, prefix = self._to_free.popitem()
            if key not in self._wanted:
                self._try(key, self._cache.drop, prefix.tokens, prefix.namespace)

    def _make_room(self) -> None:
        """Nobody else will: all pins give way to what waits for room.

        What finds none even now is computed, as soon as SGLang has the room.
        """
        stuck = [self._wanted[key] for key in sorted(self._no_room)]
        self.give_way(())
        for prefix in stuck:
            self._try(prefix.key, self._load, prefix)
        self._no_room.clear()

    def _is_settled(self, key: str) -> bool:
        return key in self._held or key in self._left_alone

    def admitted(self) -> None:
        """See :class:`NoCopies`."""
        self._has_progressed = True

    def give_way(self, in_use: Iterable[str]) -> None:
        """See :class:`NoCopies`."""
        used = {prefix.key for agent in in_use if (prefix := self._prefixes.get(agent))}
        for key in [key for key in self._held if key not in used]:
            self.gave_way += 1
            self._try(key, self._let_go, key)
        self._left_alone |= (self._wanted.keys() - used) | self._no_room
        self._no_room.clear()
        self._has_progressed = False

    # -- when things go wrong

    def report(self, counts: Counts) -> None:
        """See :class:`NoCopies`."""
        pinned, tokens = self.pinned
        counts.set_copies(
            Copies(
                **vars(self.store.counts()),
                pins_dropped=self.gave_way,
                pinned_prefixes=pinned,
                pinned_tokens=tokens,
                loads_in_flight=self.loading[0],
            )
        )

    def reset(self) -> None:
        """See :class:`NoCopies`."""
        for key in list(self._held):
            self._try(key, self._let_go, key)
        self._forget_wishes()

    def flushed(self) -> None:
        """See :class:`NoCopies`."""
        self._flights.clear()
        self._held.clear()
        self._cache.in_transit = 0
        self.store.flush()
        self._forget_wishes()

    def _forget_wishes(self) -> None:
        self._wanted, self._prefixes = {}, {}
        self._to_free.clear()
        self._no_room.clear()
        self._left_alone.clear()

    def close(self) -> None:
        """Give everything up, host memory and threads too; a second call does nothing."""
        self.reset()
        self._close()

    def _try(self, key: str, step: Callable[..., Any], *args: Any) -> Any:
        """Take a step; if it fails the prefix is SGLang's business until something is admitted."""
        try:
            return step(*args)
        except Exception as error:
            self.failures[self._log(error)] += 1
            self._left_alone.add(key)
            self._has_progressed = False
            return None

    # -- pins

    def _pin(self, prefix: _Prefix) -> bool:
        """Lock a prefix, if the tree has all of it, and have it copied if it never was."""
        match = self._cache.match(prefix.tokens, prefix.namespace)
        if match.length < len(prefix.tokens):
            return False
        lock = self._cache.lock(match)
        try:
            self._place(prefix, match)
        except Exception:
            self._cache.unlock(lock)
            raise
        self._held[prefix.key] = _Held(prefix, lock)
        self._no_room.discard(prefix.key)
        self._save(prefix.key)
        return True

    def _place(self, prefix: _Prefix, match: Match) -> None:
        slots = self._cache.slots(match)
        self.store.place(prefix.key, prefix.tokens.tolist(), slots)

    def _save(self, key: str) -> None:
        if self.store.state(key) != _UNSAVED:
            return  # there is a copy
        self._flights.settle()
        try:
            self._flights.add(key, self.store.save(key))
        except CapacityError as error:  # no room on the host: recomputed when it comes back
            self.failures[self._log(error)] += 1

    def _leave(self, held: _Held, frees: bool) -> None:
        """The core has let a prefix go; ``frees``: its slots at once, for requests wait for it."""
        if held.lock is None:
            self._let_go(held.prefix.key)
        elif held.prefix.key in self._flights:
            held.is_leaving, held.frees = True, frees
        else:
            self._unpin(held)
            if frees:  # once the preempted requests that still lock it are released
                self._to_free[held.prefix.key] = held.prefix

    def _unpin(self, held: _Held) -> None:
        del self._held[held.prefix.key]
        try:
            self.store.release(held.prefix.key)
        finally:
            self._cache.unlock(held.lock)

    # -- copies

    def _load(self, prefix: _Prefix) -> None:
        """Begin to copy a prefix in, if there is a copy and room for it."""
        if self.store.state(prefix.key) != _ON_HOST:
            self._no_room.discard(prefix.key)
            return
        count = len(prefix.tokens)
        has_room = self._cache.room >= count + self._needs
        slots = self._cache.allocate(count) if has_room else None
        if slots is None:
            self._no_room.add(prefix.key)
            return
        try:
            transfer = self.store.load(prefix.key, slots)
        except Exception:
            self._cache.free(slots)
            raise
        self._no_room.discard(prefix.key)
        self._held[prefix.key] = _Held(prefix, slots=slots)
        self._flights.add(prefix.key, transfer)

    def _landed(self, held: _Held, is_well: bool) -> None:
        key = held.prefix.key
        if held.lock is None:
            self._loaded(held, is_well)
            return
        if not is_well:
            self._copy_failed(key)
            self._drop_copy(key)
            self._place(held.prefix, self._cache.match(held.prefix.tokens, held.prefix.namespace))
        if held.is_leaving:
            self._leave(held, held.frees)

    def _loaded(self, held: _Held, is_well: bool) -> None:
        prefix = held.prefix
        del self._held[prefix.key]
        if not is_well:
            self._copy_failed(prefix.key)
            self._drop_copy(prefix.key)
            self._cache.free(held.slots)
            return
        self.store.release(prefix.key)  # the tree may prefer slots that it has already
        self._cache.insert(prefix.tokens, prefix.namespace, held.slots)
        self._pin(prefix)

    def _copy_failed(self, key: str) -> None:
        logger.error("topas: the copy of prefix %s failed", key)
        self.failures["CopyError"] += 1

    def _let_go(self, key: str) -> None:
        """Give a prefix up at once, whatever is under way; the tree may evict what it has of it."""
        held = self._held.pop(key)
        try:
            if key in self._flights:
                self._flights.forget(key)
                with contextlib.suppress(StateError):  # it has ended just now
                    self.store.cancel(key)
                if held.lock is not None:  # a save: whether it was made differs between ranks
                    self._drop_copy(key)
            if self.store.state(key) in _ON_DEVICE:
                self.store.release(key)
        finally:
            if held.lock is None:
                self._cache.free(held.slots)
            else:
                self._cache.unlock(held.lock)

    def _outdate(self, key: str) -> None:
        """The prompts of an agent share less than they did: nobody has this prefix any more."""
        if key in self._held:
            self._let_go(key)
        self._drop_copy(key)

    def _drop_copy(self, key: str) -> None:
        """Nothing is left of a prefix in the store, whether its copy went well here or not."""
        if self.store.state(key) in _ON_DEVICE:
            self.store.release(key)
        if self.store.state(key) == _ON_HOST:
            self.store.forget(key)


def residency_of(view: View, settings: Settings, clock: RankClock, costs: CostMeter) -> NoCopies:
    """What carries out residency on an engine: with copies if ``prefix_copies`` is set.

    The meter is told then that prefixes are copied, and how fast.

    Raises
    ------
    ConfigError, ArgumentError
        The KV pool has buffers that cannot be copied, or is on a device without a backend.
    """
    if settings.prefix_copies is None:
        return NoCopies(view)
    from topas.sglang.prefixes import KvBuffers, PrefixStore

    buffers = KvBuffers.of_pool(view.cache.pool)
    store = PrefixStore(
        buffers,
        host_bytes=settings.prefix_copies.host_bytes,
        page_size=view.page_size,
        backend=view.copy_backend(buffers.device),
    )
    view.cache.count_in_transit()
    all_well = view.all_well if view.ranks > 1 else None
    flights = Flights(clock, all_well, lambda: store.measured_bandwidth("load"))
    costs.copy_prefixes(buffers.bytes_per_token, lambda: flights.rate)
    return Residency(view, store, buffers, flights)
