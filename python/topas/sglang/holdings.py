"""What is held of prefixes: pins and loads, and how one becomes the other.

======== ============================ ============================ ======================
phase    in the tree                  in the store                 slots
======== ============================ ============================ ======================
pinned   locked                       on the device, perhaps       the tree's, locked
                                      being saved
arriving locked, not whole yet        being loaded, or torn        the tree's, locked
coming   not (or not wholly)          being loaded                 in transit
neither  perhaps, for SGLang to evict on the host, or absent       the tree's, or free
======== ============================ ============================ ======================

A step that raises has changed nothing, but for what is said at it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from topas.errors import CapacityError, StateError
from topas.sglang.agents import Namespace
from topas.sglang.cache import Match, PrefixCache
from topas.sglang.flights import Flights
from topas.sglang.heads import Tokens
from topas.sglang.layers import Arrival, LayerWaits
from topas.sglang.once import OnceLog

if TYPE_CHECKING:
    from topas.sglang.prefix_copy import PrefixStore

__all__ = ["Held", "Holdings", "StaticPrefix"]

logger = logging.getLogger(__name__)

# States of a prefix in the store, by value: its module needs torch.
_UNSAVED, _ON_HOST = "resident", "on host"
_ON_DEVICE = (_UNSAVED, "resident and on host")


@dataclass(frozen=True)
class StaticPrefix:
    """A static prefix, by its contents: agents that have the same share one.

    Parameters
    ----------
    tokens : numpy.ndarray
        Token ids, int64, shape [tokens].
    namespace : tuple
        Of the cache.
    key : str
        A digest of both.
    """

    tokens: Tokens = field(repr=False)
    namespace: Namespace
    key: str

    @classmethod
    def of(cls, tokens: Tokens, namespace: Namespace) -> StaticPrefix:
        """The prefix of these tokens."""
        digest = blake2b(repr(namespace).encode(), digest_size=16)
        digest.update(tokens.tobytes())
        return cls(tokens, namespace, digest.hexdigest())


@dataclass
class Held:
    """A prefix that is pinned or arriving (it has a lock), or coming (it has slots).

    Parameters
    ----------
    prefix : StaticPrefix
        Which.
    lock : object, optional
        Receipt of its lock in the tree.
    slots : torch.Tensor, optional
        Those in transit.

    Attributes
    ----------
    is_leaving : bool
        Whether it leaves as soon as its copy is over.
    frees : bool
        Whether its slots are to be free when it leaves.
    """

    prefix: StaticPrefix
    lock: Any = None
    slots: Any = None
    is_leaving: bool = False
    frees: bool = False


class Holdings:
    """The prefixes that are held, by key, and the steps that each can take.

    Parameters
    ----------
    cache : PrefixCache
        Tree and pool.
    store : PrefixStore
        Makes the copies.
    flights : Flights
        Tells which copies are over.
    layers : LayerWaits or None
        Lets requests read a prefix that arrives; None: none can.

    Attributes
    ----------
    held : dict of str to Held
        All that is held.
    failures : Counter of str
        Steps that failed, by the name of the error.
    log : OnceLog
        Where they are told.
    left : callable
        Told of a prefix whose slots are to be free, when it has left.
    """

    def __init__(
        self,
        cache: PrefixCache,
        store: PrefixStore,
        flights: Flights,
        layers: LayerWaits | None = None,
    ) -> None:
        self.held: dict[str, Held] = {}
        self.failures: Counter[str] = Counter()
        self.log = OnceLog(logger, "a prefix is left to SGLang")
        self.left: Callable[[StaticPrefix], None] = lambda prefix: None
        self._cache = cache
        self._store = store
        self._flights = flights
        self._layers = layers

    # -- what is known

    def __contains__(self, key: str) -> bool:
        return key in self.held

    @property
    def pinned(self) -> tuple[int, int]:
        """How many prefixes are locked in the tree, and their tokens."""
        return self._sum(lambda held: held.lock is not None)

    @property
    def loading(self) -> tuple[int, int]:
        """How many prefixes are being loaded, and their tokens."""
        return self._sum(lambda held: held.lock is None or self._arrives(held.prefix.key))

    def _sum(self, counts: Callable[[Held], bool]) -> tuple[int, int]:
        lengths = [len(held.prefix.tokens) for held in self.held.values() if counts(held)]
        return len(lengths), sum(lengths)

    def is_coming(self, key: str) -> bool:
        """Whether a prefix is being loaded and nobody can use it before that is over."""
        held = self.held.get(key)
        return held is not None and held.lock is None

    def _arrives(self, key: str) -> bool:
        return self._layers is not None and key in self._layers

    def is_on_host(self, key: str) -> bool:
        """Whether a prefix can be loaded."""
        return self._store.state(key) == _ON_HOST

    # -- pins

    def pin(self, prefix: StaticPrefix) -> bool:
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
        self.held[prefix.key] = Held(prefix, lock)
        self._save(prefix)
        return True

    def _place(self, prefix: StaticPrefix, match: Match) -> None:
        slots = self._cache.slots(match)
        self._store.place(prefix.key, prefix.tokens.tolist(), slots)

    def _save(self, prefix: StaticPrefix) -> None:
        if self._store.state(prefix.key) != _UNSAVED:
            return  # there is a copy
        if self._layers is not None:
            self._layers.finish_under(prefix.tokens)  # its slots may be among those being filled
        self._flights.settle()
        if self._layers is not None:
            self._layers.mend()  # the same may go from the host on all ranks
        try:
            self._flights.add(prefix.key, self._store.save(prefix.key))
        except CapacityError as error:  # no room on the host: recomputed when it comes back
            self.failures[self.log(error)] += 1

    def leave(self, held: Held, frees: bool) -> None:
        """The core has let a prefix go; ``frees``: its slots are to be free then."""
        if held.lock is None:
            self.let_go(held.prefix.key)
        elif held.prefix.key in self._flights:
            held.is_leaving, held.frees = True, frees
        else:
            self._unpin(held)
            if frees:
                self.left(held.prefix)

    def _unpin(self, held: Held) -> None:
        self._finish(held.prefix.key)
        del self.held[held.prefix.key]
        try:
            self._store.release(held.prefix.key)
        finally:
            self._cache.unlock(held.lock)

    # -- loads

    def load(self, prefix: StaticPrefix, reserve: int, at_once: bool) -> bool:
        """Begin to copy a prefix in that is on the host.

        Parameters
        ----------
        prefix : StaticPrefix
            Which.
        reserve : int
            Slots to be left for others.
        at_once : bool
            Whether requests may use it from now on, if that can be had.

        Returns
        -------
        bool
            Whether there was room.
        """
        if at_once and self._layers is not None:
            return self._arrive(prefix, reserve, self._layers)
        count = len(prefix.tokens)
        has_room = self._cache.room >= count + reserve
        slots = self._cache.allocate(count) if has_room else None
        if slots is None:
            return False
        try:
            transfer = self._store.load(prefix.key, slots)
        except Exception:
            self._cache.free(slots)
            raise
        self.held[prefix.key] = Held(prefix, slots=slots)
        self._flights.add(prefix.key, transfer)
        return True

    def _arrive(self, prefix: StaticPrefix, reserve: int, layers: LayerWaits) -> bool:
        """Put the slots into the tree first; what it has of the prefix is not written again."""
        match = self._cache.match(prefix.tokens, prefix.namespace)
        there = self._cache.lock(match)  # while room is made
        try:
            count = len(prefix.tokens) - match.length
            has_room = self._cache.room >= count + reserve
            fresh = self._cache.allocate(count) if has_room else None
            if fresh is None:
                return False
            try:
                slots = self._cache.joined(match, fresh)
                transfer = self._store.load(prefix.key, slots, skip=match.length, is_shared=True)
            except Exception:
                self._cache.free(fresh)
                raise
            layers.begin(Arrival(prefix.key, prefix.tokens, match.length, transfer))
            self._publish(prefix, slots, match.length)
            self._flights.add(prefix.key, transfer)
            return True
        finally:
            self._cache.unlock(there)

    def _publish(self, prefix: StaticPrefix, slots: Any, there: int) -> None:
        """The slots of an arriving prefix are in the tree from now on, and locked."""
        is_in = False
        try:
            self._cache.insert(prefix.tokens, prefix.namespace, slots, there)
            is_in = True
            whole = self._cache.match(prefix.tokens, prefix.namespace)
            if whole.length < len(prefix.tokens):  # the rest could go while it is filled
                raise StateError(f"the tree has {whole.length} of {len(slots)} tokens inserted")
            self.held[prefix.key] = Held(prefix, self._cache.lock(whole))
        except Exception:
            self._finish(prefix.key)  # the tree may have taken slots: they are to be right
            self._store.release(prefix.key)
            if not is_in:
                self._cache.give_back(prefix.tokens, prefix.namespace, slots, there)
            raise

    def landed(self, key: str, is_well: bool) -> None:
        """The copy of a prefix is over; ``is_well``: on all ranks."""
        held = self.held[key]
        if not is_well:
            logger.error("topas: the copy of prefix %s failed", key)
            self.failures["CopyError"] += 1
        if held.lock is None:
            self._loaded(held, is_well)
            return
        if not self._finish(key) and not is_well:
            self._forget_save(held)
        if held.is_leaving:
            self.leave(held, held.frees)

    def _forget_save(self, held: Held) -> None:
        """It has failed, here or on another rank: the prefix is as it was before, or let go."""
        prefix = held.prefix
        try:
            self._drop_copy(prefix.key)
            self._place(prefix, self._cache.match(prefix.tokens, prefix.namespace))
        except Exception:
            del self.held[prefix.key]
            self._cache.unlock(held.lock)
            raise

    def _loaded(self, held: Held, is_well: bool) -> None:
        prefix = held.prefix
        del self.held[prefix.key]
        if not is_well:
            self._drop_copy(prefix.key)
            self._cache.free(held.slots)
            return
        self._store.release(prefix.key)  # the tree may prefer slots that it has already
        try:
            self._cache.insert(prefix.tokens, prefix.namespace, held.slots)
        except Exception:
            self._cache.give_back(prefix.tokens, prefix.namespace, held.slots)
            raise
        self.pin(prefix)

    def _finish(self, key: str) -> bool:
        """Wait for a prefix that arrives; say whether it did."""
        if self._layers is None or key not in self._layers:
            return False
        self._layers.finish(key)
        return True

    # -- giving up

    def let_go(self, key: str) -> None:
        """Give a prefix up at once, whatever is under way; the tree may evict what it has of it.

        One that arrives is waited for: requests may read it.
        """
        if self._finish(key):
            self._flights.forget(key)
        held = self.held.pop(key)
        try:
            if key in self._flights:
                self._flights.forget(key)
                with contextlib.suppress(StateError):  # it has ended just now
                    self._store.cancel(key)
                if held.lock is not None:  # a save: whether it was made differs between ranks
                    self._drop_copy(key)
            if self._store.state(key) in _ON_DEVICE:
                self._store.release(key)
        finally:
            if held.lock is None:
                self._cache.free(held.slots)
            else:
                self._cache.unlock(held.lock)

    def outdate(self, key: str) -> None:
        """The prompts of an agent share less than they did: nobody has this prefix any more."""
        if key in self.held:
            self.let_go(key)
        self._drop_copy(key)

    def _drop_copy(self, key: str) -> None:
        """Nothing is left of a prefix in the store, whether its copy went well here or not."""
        if self._store.state(key) in _ON_DEVICE:
            self._store.release(key)
        if self._store.state(key) == _ON_HOST:
            self._store.forget(key)

    def flushed(self) -> None:
        """SGLang has emptied tree and pool: nothing is held, and nothing on the host."""
        self._flights.clear()
        self.held.clear()
        self._cache.in_transit = 0
        if self._layers is not None:
            self._layers.clear()
        self._store.flush()
