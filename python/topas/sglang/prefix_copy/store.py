"""The static prefixes of agents: on the device, in host memory, or on their way."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import torch  # type: ignore[import-not-found, unused-ignore]

from topas.errors import ArgumentError, CapacityError, StateError
from topas.sglang.copy_counts import CopyCounts, CopyMeter, Direction
from topas.sglang.prefix_copy.arena import HostArena, HostCopy
from topas.sglang.prefix_copy.backends import Backend, CopyJob, copy_rows
from topas.sglang.prefix_copy.buffers import KvBuffers
from topas.sglang.prefix_copy.cuda import backend_of
from topas.sglang.prefix_copy.slots import SlotChecks
from topas.sglang.prefix_copy.states import Prefix, Residency
from topas.sglang.prefix_copy.transfers import CopyWorker, Outcome, Transfer

__all__ = ["PrefixStore"]

GROUP_BYTES = 8 << 20


class PrefixStore:
    """Copies of static prefixes, made once and used as often as the prefix returns.

    The store reads and writes KV buffers at slots that it is given. It never allocates or frees a
    slot: whoever calls does, and must not free those of a prefix that is ``saving``, ``evicting``
    or ``loading``. One store a rank; all methods are thread-safe. Close it, or use it in ``with``.

    Parameters
    ----------
    buffers : KvBuffers
        The KV pool of this rank.
    host_bytes : int
        Host memory for copies, made (and pinned) at once; each layer group takes a multiple of
        256 bytes of it.
    page_size : int
        Tokens a page of the engine: prefixes are rounded down to whole pages.
    backend : Backend, optional
        How to copy; by default what goes with the device of the buffers.
    group_bytes : int
        Layers are copied in groups of at most so many bytes (one layer at least): small groups
        let the first layer start sooner, large ones cost less. 8 MiB by default.

    Raises
    ------
    ArgumentError
        A number that is not positive, or buffers on a device without a backend.
    """

    def __init__(
        self,
        buffers: KvBuffers,
        *,
        host_bytes: int,
        page_size: int = 1,
        backend: Backend | None = None,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        numbers = {"host_bytes": host_bytes, "page_size": page_size, "group_bytes": group_bytes}
        for name, number in numbers.items():
            if number <= 0:
                raise ArgumentError(f"{name}: must be positive, got {number}")
        self._buffers = buffers
        self._page_size = page_size
        self._group_bytes = group_bytes
        self._backend = backend_of(buffers) if backend is None else backend
        lanes = {d: self._backend.lane(d, buffers) for d in _DIRECTIONS}
        self._memory: torch.Tensor | None = self._backend.host_memory(host_bytes)
        self._arena = HostArena(self._memory)
        self._slots = SlotChecks(buffers.slots, page_size)
        self._prefixes: OrderedDict[str, Prefix] = OrderedDict()  # least recently used first
        self._meter = CopyMeter()
        self._lock = threading.RLock()
        self._workers = {
            direction: CopyWorker(f"topas-prefix-{direction}", lane, self._finished)
            for direction, lane in lanes.items()
        }

    # ---- what the engine does with prefixes

    def place(self, agent: str, tokens: Sequence[int], slots: torch.Tensor) -> int:
        """Tell that the engine has computed a prefix at these slots.

        Parameters
        ----------
        agent : str
            Whose prefix.
        tokens : sequence of int
            Its token ids; the last, incomplete page is left off.
        slots : torch.Tensor
            Its slots, int64, shape [at least the tokens in whole pages]. Those on the host are
            checked in full; those on the GPU only by number, for reading them would make the
            caller wait for the device.

        Returns
        -------
        int
            Tokens of the prefix, in whole pages.

        Raises
        ------
        ArgumentError
            Less than a page, slots that are no whole pages of the pool, or another prefix than the
            one this agent has on the host.
        StateError
            The prefix is neither absent nor on the host alone.
        """
        length = len(tokens) // self._page_size * self._page_size
        if length == 0:
            raise ArgumentError(
                f"tokens: {len(tokens)} are less than a page of {self._page_size} tokens"
            )
        kept = tuple(int(token) for token in tokens[:length])
        with self._lock:
            prefix = self._ready(agent, "place")
            if prefix.tokens and prefix.tokens != kept:
                raise ArgumentError(
                    f"tokens: agent {agent!r} has another prefix of {len(prefix.tokens)} tokens "
                    "on the host; forget it first"
                )
            prefix.tokens = kept
            own = self._slots.checked(slots, length)
            prefix.place(own)
            self._slots.hold(own)
            self._prefixes[agent] = prefix
            self._prefixes.move_to_end(agent)
        return length

    def save(self, agent: str) -> Transfer:
        """Start the copy to the host; the prefix stays usable on the device.

        Raises
        ------
        StateError
            The prefix is not ``resident``: not there, or saved already.
        CapacityError
            No room in host memory, even with all host copies gone that may go; none goes.
        """
        with self._lock:
            prefix = self._ready(agent, "save")
            fence = self._backend.fence()
            host = self._room_for(prefix)
            prefix.begin_save(host)
            return self._start(prefix, "save", fence)

    def evict(self, agent: str) -> Transfer:
        """Give up the device slots and keep a host copy, which is made if there is none yet.

        The slots are free when the transfer is over: at once if the host copy is there. If the
        copy fails or is cancelled the prefix is ``resident`` as before.

        Raises
        ------
        StateError
            The prefix is not on the device.
        CapacityError
            As for :meth:`save`; :meth:`release` goes without a copy.
        """
        with self._lock:
            prefix = self._ready(agent, "evict")
            if prefix.state is Residency.SAVING:
                assert prefix.transfer is not None
                prefix.begin_evict()
                return prefix.transfer
            if prefix.state is Residency.RESIDENT:
                fence = self._backend.fence()
                host = self._room_for(prefix)
                prefix.begin_evict(host)
                return self._start(prefix, "save", fence)
            assert prefix.slots is not None
            assert prefix.host is not None
            slots, host = prefix.slots, prefix.host
            prefix.begin_evict()
            self._slots.let_go(slots)
            self._prefixes.move_to_end(agent)
            prefix.transfer = Transfer.finished(agent, CopyJob("save", slots, host))
            return prefix.transfer

    def release(self, agent: str) -> torch.Tensor:
        """Give up the device slots at once, saved or not, and return them.

        Raises
        ------
        StateError
            The prefix is not on the device, or a copy is under way.
        """
        with self._lock:
            prefix = self._ready(agent, "release")
            slots = prefix.slots
            prefix.release()
            assert slots is not None
            self._slots.let_go(slots)
            self._prune(prefix)
            return slots

    def load(
        self, agent: str, slots: torch.Tensor, *, skip: int = 0, is_shared: bool = False
    ) -> Transfer:
        """Start the copy from the host into slots that the caller has allocated.

        When :meth:`wait_for_layer` or ``wait`` of the transfer raises, the slots are the caller's
        again and the prefix is ``on host``; if it is shared it is ``torn``, until :meth:`mend`.

        Parameters
        ----------
        agent : str
            Whose prefix.
        slots : torch.Tensor
            As many as it has tokens (:meth:`length`), int64; of no other prefix here, but for those
            skipped.
        skip : int
            Tokens at the beginning whose KV is in their slots already; they are only read.
        is_shared : bool
            The caller cannot take the slots back, for others may read them as the layers come.

        Raises
        ------
        StateError
            The prefix is not ``on host``.
        ArgumentError
            Slots of another number, no whole pages of the pool, or in use by a prefix.
        """
        with self._lock:
            prefix = self._ready(agent, "load")
            if slots.numel() != len(prefix.tokens):
                raise ArgumentError(
                    f"slots: {slots.numel()} for the {len(prefix.tokens)} tokens of {agent!r}"
                )
            own = self._slots.checked(slots, len(prefix.tokens))
            self._slots.check_free(own[skip:])
            fence = self._backend.fence()
            prefix.begin_load(own)
            self._slots.hold(own)
            return self._start(prefix, "load", fence, skip, is_shared)

    def mend(self, agent: str) -> None:
        """Copy a ``torn`` prefix from the host once more, in order with the caller's stream.

        Goes without the backend, a little at a time: slow, and of use where a copy has failed.

        Raises
        ------
        StateError
            The prefix is not ``torn``.
        RuntimeError
            Torch could not copy; the prefix is ``torn`` still.
        """
        with self._lock:
            prefix = self._ready(agent, "mend")
            assert prefix.transfer is not None
            copy_rows(self._buffers, prefix.transfer.job)
            prefix.mended()

    def wait_for_layer(self, agent: str, layer: int) -> None:
        """Let what the caller queues from now on read a layer of a prefix.

        Returns at once where the prefix is on the device; see :meth:`Transfer.wait_for_layer`
        where it is being loaded.

        Raises
        ------
        CopyError, CopyCancelled
            Its load has failed (raised once) or was cancelled.
        StateError
            It is neither being loaded nor on the device to stay.
        ArgumentError
            There is no such layer.
        """
        if not 0 <= layer < self._buffers.layers:
            raise ArgumentError(f"layer: {layer} is not in 0..{self._buffers.layers - 1}")
        with self._lock:
            prefix = self._known(agent)
            transfer = prefix.transfer
            if prefix.is_readable:
                return
            if transfer is None or transfer.direction != "load":
                raise StateError(
                    f"agent {agent!r} is {prefix.state.value}: cannot wait for layer {layer}"
                )
        transfer.wait_for_layer(layer)

    def touch(self, agent: str) -> None:
        """A request uses the prefix: its host copy is the last to go. Nothing if it is absent."""
        with self._lock:
            if agent in self._prefixes:
                self._prefixes.move_to_end(agent)

    def cancel(self, agent: str) -> bool:
        """Stop a copy and wait for what of it is under way.

        Returns
        -------
        bool
            True: the copy is off. After a load its slots are the caller's again; after a save or an
            eviction the prefix is ``resident``. False: it had ended before, well or not.

        Raises
        ------
        StateError
            No copy is under way.
        """
        with self._lock:
            prefix = self._known(agent)
            transfer = prefix.transfer
            if not prefix.is_in_flight or transfer is None:
                raise StateError(f"agent {agent!r} is {prefix.state.value}: cannot cancel")
        self._workers[transfer.direction].cancel(transfer)
        return transfer.settle() is Outcome.CANCELLED

    def forget(self, agent: str) -> None:
        """Drop a prefix and its host copy; device slots stay the caller's to free.

        Raises
        ------
        StateError
            It is absent, or a copy is under way.
        """
        with self._lock:
            prefix = self._known(agent)
            prefix.check("forget")
            slots, host = prefix.slots, prefix.host
            prefix.forget()
            if slots is not None:
                self._slots.let_go(slots)
            if host is not None:
                self._arena.free(host)
            self._prune(prefix)

    def flush(self) -> None:
        """Stop all copies, wait for those under way, forget all prefixes."""
        while True:
            with self._lock:
                flying = [p.transfer for p in self._prefixes.values() if p.is_in_flight]
                moving = [transfer for transfer in flying if transfer is not None]
                if not moving:
                    for agent in list(self._prefixes):
                        self.forget(agent)
                    return
            for transfer in reversed(moving):  # those that have not begun first
                self._workers[transfer.direction].cancel(transfer)
            for transfer in moving:
                transfer.settle()

    def close(self) -> None:
        """Flush, end the threads, give the host memory back; a second call does nothing."""
        with self._lock:
            memory, self._memory = self._memory, None
        if memory is None:
            return
        self.flush()
        for worker in self._workers.values():
            worker.close()
        self._backend.free_host_memory(memory)

    def __enter__(self) -> PrefixStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what is known

    def state(self, agent: str) -> Residency:
        """Where the prefix of an agent is; ``absent`` for one that was never placed."""
        with self._lock:
            return self._known(agent).state

    def length(self, agent: str) -> int:
        """Tokens of the prefix, in whole pages; 0 where it is absent."""
        with self._lock:
            return len(self._known(agent).tokens)

    def agents(self) -> dict[str, Residency]:
        """All that is not absent, least recently used first."""
        with self._lock:
            return {agent: prefix.state for agent, prefix in self._prefixes.items()}

    @property
    def host_bytes_used(self) -> int:
        """Bytes of host memory taken, the padding of layer groups included."""
        with self._lock:
            return self._arena.used

    def counts(self) -> CopyCounts:
        """Totals since the start."""
        with self._lock:
            return self._meter.snapshot()

    def measured_bandwidth(self, direction: Direction = "load") -> float | None:
        """Bytes a second that copies have had lately; None before the first."""
        with self._lock:
            return self._meter.bandwidth(direction)

    # ---- under the lock

    def _known(self, agent: str) -> Prefix:
        return self._prefixes.get(agent) or Prefix(agent)

    def _ready(self, agent: str, operation: str) -> Prefix:
        """The prefix, if the operation is legal now."""
        if self._memory is None:
            raise StateError(f"agent {agent!r}: cannot {operation}: the store is closed")
        prefix = self._known(agent)
        prefix.check(operation)
        return prefix

    def _prune(self, prefix: Prefix) -> None:
        if prefix.state is Residency.ABSENT:
            self._prefixes.pop(prefix.agent, None)

    def _start(self, prefix: Prefix, direction: Direction, fence: Any, *more: Any) -> Transfer:
        assert prefix.slots is not None
        assert prefix.host is not None
        job = CopyJob(direction, prefix.slots, prefix.host, *more)
        worker = self._workers[direction]
        prefix.transfer = Transfer(prefix.agent, job, fence, worker.nbytes(job))
        self._prefixes.move_to_end(prefix.agent)
        worker.submit(prefix.transfer)
        return prefix.transfer

    def _room_for(self, prefix: Prefix) -> HostCopy:
        """Host memory for a prefix; the least recently used copies go for it, if that helps."""
        groups = self._buffers.groups(len(prefix.tokens), self._group_bytes)
        idle = [p for p in self._prefixes.values() if p.may_lose_host]
        copies = [p.host for p in idle if p.host is not None]
        count = self._arena.to_free(groups, copies)
        if count is None:
            raise CapacityError(f"agent {prefix.agent!r}: {self._arena.shortage(groups, copies)}")
        for other in idle[:count]:
            self._drop_host(other)
        host = self._arena.allocate(groups)
        assert host is not None
        return host

    def _drop_host(self, prefix: Prefix) -> None:
        assert prefix.host is not None
        self._arena.free(prefix.host)
        prefix.drop_host()
        self._meter.counts.host_evictions += 1
        self._prune(prefix)

    def _finished(
        self, transfer: Transfer, outcome: Outcome, error: BaseException | None, seconds: float
    ) -> None:
        """A copy is over and nothing of it under way: told by a worker, or whoever cancels."""
        with self._lock:
            prefix = self._prefixes[transfer.agent]
            if outcome is Outcome.DONE:
                self._meter.copied(transfer.direction, transfer.nbytes, seconds)
            elif outcome is Outcome.FAILED:
                self._meter.counts.failures += 1
            else:
                self._meter.counts.cancellations += 1
            if transfer.direction == "load":
                self._load_over(prefix, outcome, transfer.job.is_shared)
            else:
                self._save_over(prefix, outcome)
            transfer.finish(outcome, error)

    def _load_over(self, prefix: Prefix, outcome: Outcome, is_shared: bool) -> None:
        if outcome is Outcome.DONE:
            prefix.loaded()
            return
        if is_shared:
            prefix.torn()
            return
        assert prefix.slots is not None
        self._slots.let_go(prefix.slots)
        prefix.load_given_up()

    def _save_over(self, prefix: Prefix, outcome: Outcome) -> None:
        slots, host = prefix.slots, prefix.host
        assert slots is not None
        assert host is not None
        if outcome is not Outcome.DONE:
            prefix.save_given_up()
            self._arena.free(host)
            return
        prefix.saved()
        if prefix.state is Residency.HOST:
            self._slots.let_go(slots)


_DIRECTIONS: tuple[Literal["save"], Literal["load"]] = ("save", "load")
