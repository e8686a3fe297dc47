"""A copy under way, and the thread that makes copies one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from topas.errors import ArgumentError, StateError
from topas.sglang.prefix_copy.backends import CopyJob, Lane, Mark
from topas.sglang.prefix_copy.errors import CopyCancelled, CopyError

__all__ = ["CopyWorker", "Outcome", "Transfer"]


_AHEAD = 8  # groups that may be queued and not yet copied: cancelling waits for no more


class Outcome(Enum):
    """How a copy has ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Transfer:
    """A copy of one prefix, as those who wait for it see it. Thread-safe.

    Once a method here has raised, nothing reads or writes the slots any more.

    Attributes
    ----------
    agent : str
        Whose prefix.
    direction : str
        ``save`` or ``load``.
    slots : torch.Tensor
        The device slots, shape [tokens].
    nbytes : int
        Bytes that its lane copies: rows that a load skips count only where they are copied too; 0
        for an eviction that finds its host copy there.
    """

    def __init__(self, agent: str, job: CopyJob, fence: Any = None, nbytes: int = 0) -> None:
        self.agent = agent
        self.direction = job.direction
        self.slots = job.slots
        self.job = job
        self.fence = fence
        self.nbytes = nbytes
        self.is_cancelling = False
        self._marks: list[Mark] = []
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._is_reported = False
        self._changed = threading.Condition()

    @classmethod
    def finished(cls, agent: str, job: CopyJob) -> Transfer:
        """A transfer that had nothing to copy."""
        transfer = cls(agent, job)
        transfer.finish(Outcome.DONE)
        return transfer

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not; does not wait."""
        return self._outcome is not None

    @property
    def is_done(self) -> bool:
        """Whether it has ended well; does not wait."""
        return self._outcome is Outcome.DONE

    def wait(self) -> None:
        """Return when all is copied.

        Raises
        ------
        CopyError
            The copy has failed. Raised once; whoever waits after that gets a ``StateError``.
        CopyCancelled
            It was cancelled.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_over)
            self._raise_unless_done()

    def wait_for_layer(self, layer: int) -> None:
        """Let what the caller queues from now on read a layer of the prefix.

        The load is over only when :meth:`wait` returns: a later layer may still fail. On a GPU the
        current stream waits, and the caller only until the copy of that layer is queued; on a CPU
        the caller waits until it is copied.

        Raises
        ------
        ArgumentError
            There is no such layer.
        CopyError, CopyCancelled, StateError
            As for :meth:`wait`.
        """
        if not self.reach_layer(layer):
            with self._changed:
                self._raise_unless_done()

    def reach_layer(self, layer: int) -> bool:
        """As :meth:`wait_for_layer`, but a copy that failed or was cancelled is told by False.

        Raises
        ------
        ArgumentError
            There is no such layer.
        """
        groups = self.job.host.groups
        index = next((i for i, group in enumerate(groups) if layer in group.layers), None)
        if index is None:
            raise ArgumentError(f"layer: {layer} is not in 0..{groups[-1].layers[-1]}")
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or len(self._marks) > index)
            if self.is_over and self._outcome is not Outcome.DONE:
                return False
            mark = self._marks[index] if index < len(self._marks) else None
        if mark is not None:
            mark.hold_stream()
        return True

    def _raise_unless_done(self) -> None:
        if self._outcome is Outcome.CANCELLED:
            raise CopyCancelled(f"agent {self.agent!r}: the {self.direction} was cancelled")
        if self._outcome is Outcome.FAILED:
            if self._is_reported:
                raise StateError(
                    f"agent {self.agent!r}: cannot wait for the {self.direction}: "
                    "it has failed, as was reported"
                )
            self._is_reported = True
            raise CopyError(
                f"agent {self.agent!r}: the {self.direction} failed: {self._error}"
            ) from self._error

    def settle(self) -> Outcome:
        """Return when it has ended: how; reports no error."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_over)
            assert self._outcome is not None
            return self._outcome

    def publish(self, mark: Mark) -> None:
        """The next group is copied, or will be when its mark is reached."""
        with self._changed:
            self._marks.append(mark)
            self._changed.notify_all()

    def finish(self, outcome: Outcome, error: BaseException | None = None) -> None:
        """It is over, and nothing of it is under way."""
        with self._changed:
            self._outcome, self._error = outcome, error
            self.fence = None
            self._changed.notify_all()


#: What a worker tells of a transfer that is over: how it ended, its error, its seconds.
Finished = Callable[[Transfer, Outcome, "BaseException | None", float], None]


class CopyWorker:
    """A thread that makes the copies of one direction, first come, first served.

    Parameters
    ----------
    name : str
        Of the thread.
    lane : Lane
        Does the copying; only the thread has it copy.
    finished : callable
        Told of each transfer that is over, in the thread, before anybody who waits.
    """

    def __init__(self, name: str, lane: Lane, finished: Finished) -> None:
        self._lane = lane
        self._finished = finished
        self._queue: deque[Transfer] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def nbytes(self, job: CopyJob) -> int:
        """Bytes that are copied for a job."""
        return self._lane.nbytes(job)

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer."""
        with self._changed:
            self._queue.append(transfer)
            self._changed.notify()

    def cancel(self, transfer: Transfer) -> None:
        """Stop a transfer before its next group; one that has not begun is over at once."""
        transfer.is_cancelling = True
        with self._changed:
            if transfer not in self._queue:
                return
            self._queue.remove(transfer)
        self._finished(transfer, Outcome.CANCELLED, None, 0.0)

    def close(self) -> None:
        """Return when the queue is empty and the thread has ended."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():  # engines make their buffers under it
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._is_closing)
                    if not self._queue:
                        return
                    transfer = self._queue.popleft()
                self._copy(transfer)

    def _copy(self, transfer: Transfer) -> None:
        outcome, error, seconds = Outcome.DONE, None, 0.0
        lane = self._lane
        try:
            first = last = lane.begin(transfer.job, transfer.fence)
            ahead: deque[Mark] = deque()
            for index in range(len(transfer.job.host.groups)):
                if len(ahead) == _AHEAD:
                    ahead.popleft().wait()
                if transfer.is_cancelling:
                    outcome = Outcome.CANCELLED
                    break
                last = lane.copy_group(index)
                ahead.append(last)
                transfer.publish(last)
            lane.drain()
            if outcome is Outcome.DONE:
                seconds = lane.seconds(first, last)
        except BaseException as caught:  # whatever it is: somebody waits
            outcome, error = Outcome.FAILED, caught
            with contextlib.suppress(Exception):
                lane.drain()
        self._finished(transfer, outcome, error, seconds)
