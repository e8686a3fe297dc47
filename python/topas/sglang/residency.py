"""Static prefixes in the engine: pinned while the core has them resident, copied in and out.

What is resident the core decides; here is what follows from it in each pass, step by step as
:class:`~topas.sglang.holdings.Holdings` takes them.

Nothing here raises: where a step fails the prefix is left to SGLang, which computes it as it would
without topas, and slots and locks are what they were before.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from topas.sglang.agents import Agents, Namespace
from topas.sglang.clock import RankClock
from topas.sglang.costs import CostMeter
from topas.sglang.flights import Flights
from topas.sglang.heads import Tokens
from topas.sglang.holdings import Holdings, StaticPrefix
from topas.sglang.layers import LayerWaits
from topas.sglang.metrics import Copies, Counts
from topas.sglang.no_copies import NoCopies
from topas.sglang.settings import PrefixCopies, Settings
from topas.sglang.view import View

if TYPE_CHECKING:
    from topas.sglang.prefix_copy import KvBuffers, PrefixStore

__all__ = ["Residency", "residency_of"]

logger = logging.getLogger(__name__)


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
    settings : PrefixCopies
        What the user wants.
    layers : LayerWaits or None
        Lets requests read a prefix that arrives; None: none can.

    Attributes
    ----------
    store, buffers
        As given: ``store.counts()``, ``buffers.bytes_per_token``. What the store measures differs
        between ranks: ``load_bytes_per_s`` is what decisions may hang on.
    holdings : Holdings
        What is pinned and what is being loaded.
    gave_way : int
        How often a pin or a load gave way to what SGLang needed the room for.
    failures : Counter of str
        Steps that failed, by the name of the error.
    """

    def __init__(
        self,
        view: View,
        store: PrefixStore,
        buffers: KvBuffers,
        flights: Flights,
        settings: PrefixCopies,
        layers: LayerWaits | None = None,
    ) -> None:
        super().__init__(view)
        self.store = store
        self.buffers = buffers
        self.holdings = Holdings(view.cache, store, flights, layers)
        self.gave_way = 0
        self.failures: Counter[str] = self.holdings.failures
        self._cache = view.cache
        self._flights = flights
        self._settings = settings
        self._layers = layers
        self._wanted: dict[str, StaticPrefix] = {}  # what the core has resident, by key
        self._prefixes: dict[str, StaticPrefix] = {}  # by agent
        self._no_room: set[str] = set()  # wanted, on the host, and there was no room so far
        self._left_alone: set[str] = set()  # wanted, but for now SGLang's business
        self._fresh: set[str] = set()  # of use since this pass or the last
        self._to_free: dict[str, StaticPrefix] = {}  # have left
        self.holdings.left = lambda prefix: self._to_free.update({prefix.key: prefix})
        self._needs = 0
        self._in_use: Callable[[], Iterable[str]] = tuple
        self._is_due = False
        self._has_progressed = False
        self._close = weakref.finalize(self, store.close)

    # -- what is known

    @property
    def pinned(self) -> tuple[int, int]:
        """How many prefixes are pinned, and their tokens."""
        return self.holdings.pinned

    @property
    def loading(self) -> tuple[int, int]:
        """How many prefixes are being loaded, and their tokens."""
        return self.holdings.loading

    @property
    def load_bytes_per_s(self) -> float | None:
        """Bytes a second of loads, the same on all ranks; None before the first."""
        return self._flights.rate

    def is_coming(self, agent: str) -> bool:
        """See :class:`NoCopies`."""
        prefix = self._prefixes.get(agent)
        if prefix is None:
            return False
        return prefix.key in self._no_room or self.holdings.is_coming(prefix.key)

    def is_promised(self, agent: str) -> bool:
        """See :class:`NoCopies`."""
        prefix = self._prefixes.get(agent)
        return self.is_coming(agent) or (prefix is not None and prefix.key in self._fresh)

    def holds(self, tokens: Tokens, namespace: Namespace) -> int:
        """See :class:`NoCopies`."""
        for held in self.holdings.held.values():
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
            self._try(key, self.holdings.landed, key, is_well)
        self._needs, self._in_use = needs, in_use
        self._leave_room()

    def _leave_room(self) -> None:
        """SGLang must find what running requests need: a chunk that it cannot place is the end."""
        for used in (self._in_use, tuple):
            if self.holdings.held and self._cache.room < self._needs:
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
            if key in self.holdings:
                self.holdings.held[key].is_leaving = False
        self._no_room &= self._wanted.keys()
        if self._has_progressed:
            self._left_alone.clear()
        self._left_alone &= self._wanted.keys()
        self._is_due = True

    def _give_up(self, gone: dict[str, str], agents: Agents) -> None:
        """What is held and not wanted leaves; ``gone``: keys no longer wanted, by their agents."""
        for agent, key in gone.items():
            if agent in self._prefixes:  # it has another one now
                self._try(key, self.holdings.outdate, key)
        waited_for = {key for agent, key in gone.items() if agents.is_live(agent)}
        for key, held in list(self.holdings.held.items()):
            if key not in self._wanted:
                frees = self._settings.frees_at_once or key in waited_for
                self._try(key, self.holdings.leave, held, frees)

    @staticmethod
    def _known(before: StaticPrefix | None, tokens: Tokens, namespace: Namespace) -> StaticPrefix:
        if before is not None and np.array_equal(before.tokens, tokens):
            return before
        return StaticPrefix.of(tokens, namespace)

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
                self._try(prefix.key, self._load, prefix, is_idle)
        if self._no_room and is_idle and self.loading[0] == 0:
            self._make_room()
        self._leave_room()

    def _pin(self, prefix: StaticPrefix) -> bool:
        is_pinned = self.holdings.pin(prefix)
        if is_pinned:
            self._no_room.discard(prefix.key)
        return is_pinned

    def _load(self, prefix: StaticPrefix, is_idle: bool) -> None:
        """Begin to copy a prefix in, if there is a copy and room for it."""
        key, when = prefix.key, self._settings.layer_wise
        is_told = self._layers is not None and self._layers.is_told
        at_once = is_told and (when == "always" or (when == "idle" and is_idle))
        if self.holdings.is_on_host(key) and not self.holdings.load(prefix, self._needs, at_once):
            self._no_room.add(key)
            return
        self._no_room.discard(key)
        if key in self.holdings and not self.holdings.is_coming(key):
            self._fresh.add(key)

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
            self._try(prefix.key, self._load, prefix, True)
        self._no_room.clear()

    def _is_settled(self, key: str) -> bool:
        return key in self.holdings or key in self._left_alone

    def launch(self, batch: Any) -> None:
        """See :class:`NoCopies`.

        Raises
        ------
        RuntimeError
            What the batch reads cannot be told, and is not whole on the device.
        """
        if self._layers is None:
            return
        try:
            self._layers.launch(batch, self._view.prompts(batch), self._view.is_decode(batch))
        except Exception as error:
            self.failures[self.holdings.log(error)] += 1
            self._layers.launch_whole(batch)

    def admitted(self) -> None:
        """See :class:`NoCopies`."""
        self._has_progressed = True

    def give_way(self, in_use: Iterable[str]) -> None:
        """See :class:`NoCopies`."""
        used = {prefix.key for agent in in_use if (prefix := self._prefixes.get(agent))}
        for key in [key for key in self.holdings.held if key not in used]:
            self.gave_way += 1
            self._try(key, self.holdings.let_go, key)
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
        for key in list(self.holdings.held):
            self._try(key, self.holdings.let_go, key)
        self._forget_wishes()

    def flushed(self) -> None:
        """See :class:`NoCopies`."""
        self.holdings.flushed()
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
            self.failures[self.holdings.log(error)] += 1
            self._left_alone.add(key)
            self._has_progressed = False
            return None


def residency_of(view: View, settings: Settings, clock: RankClock, costs: CostMeter) -> NoCopies:
    """What carries out residency on an engine: with copies if ``prefix_copies`` is set.

    The meter is told then that prefixes are copied, and how fast.

    Raises
    ------
    ConfigError, ArgumentError
        The KV pool has buffers that cannot be copied, or is on a device without a backend.
    """
    copies = settings.prefix_copies
    if copies is None:
        return NoCopies(view)
    from topas.sglang.prefix_copy import KvBuffers, PrefixStore

    buffers = KvBuffers.of_pool(view.cache.pool)
    store = PrefixStore(
        buffers,
        host_bytes=copies.host_bytes,
        page_size=view.page_size,
        backend=view.copy_backend(buffers.device),
    )
    view.cache.count_in_transit()
    all_well = view.all_well if view.ranks > 1 else None
    flights = Flights(clock, all_well, lambda: store.measured_bandwidth("load"))
    costs.copy_prefixes(buffers.bytes_per_token, lambda: flights.rate)
    layers = None
    if copies.layer_wise != "never":
        if reason := view.reason_against_layer_waits():
            logger.warning("topas: prefixes are loaded as a whole before they are used: %s", reason)
        else:
            layers = LayerWaits(buffers.layers, store)
            view.ask_before_layers(layers)
    return Residency(view, store, buffers, flights, copies, layers)
