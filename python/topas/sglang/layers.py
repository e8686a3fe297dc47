"""Forward passes that read a prefix while it is copied in: they wait for one layer at a time.

SGLang's KV pools ask a counter before attention reads a layer; its own hierarchical cache is what
that is for. The batch carries an index, which the counter is told before each forward pass:

    ``batch.hicache_consumer_index`` -> :meth:`LayerWaits.set_consumer`
    ``pool.get_key_buffer(layer)``   -> :meth:`LayerWaits.wait_until`

Only batches with a request that may read such a prefix have an index; all others wait for nothing.
Decodes are waited for as a whole before they begin: a captured graph asks for no layer. Most that
read a prefix have waited for it when their prompt was computed. A request that computes the prefix
itself while it arrives has not: SGLang hands it over to the slots in the tree afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from topas.sglang.heads import Tokens

if TYPE_CHECKING:
    from topas.sglang.prefix_copy import PrefixStore, Transfer

__all__ = ["Arrival", "LayerWaits"]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Arrival:
    """A prefix that is in the tree and not yet whole.

    Parameters
    ----------
    key : str
        Of the prefix in the store.
    tokens : numpy.ndarray
        Its tokens, int64, shape [tokens].
    skip : int
        Tokens at the beginning that were in the tree before.
    transfer : Transfer
        Fills the slots of the others.

    Attributes
    ----------
    is_mended : bool
        Whether the copy has failed and was made good.
    """

    key: str
    tokens: Tokens = field(repr=False)
    skip: int
    transfer: Transfer
    is_mended: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all of its KV is there by now."""
        return self.is_mended or self.transfer.is_done

    def may_be_read_by(self, prompt: Sequence[int] | Tokens) -> bool:
        """Whether a prompt begins with more of it than was in the tree before, as far as it goes.

        Its namespace, and what was generated after it, are left out: to wait in vain costs little.
        """
        head = np.asarray(prompt[: self.skip + 1], dtype=np.int64)
        return np.array_equal(head, self.tokens[: len(head)])


class LayerWaits:
    """Stands for SGLang's ``LayerDoneCounter``.

    A copy that fails is made again where that is noticed, at the latest by the forward pass that
    reads it, from the copy on the host and in order with its stream. If that fails as well the
    pass raises, as for any other error on the device: there is no answer then, and no wrong one.

    The first pass waits for whole prefixes, and tells whether attention asks for each layer here.

    Parameters
    ----------
    layers : int
        Of the model, on this rank.
    store : PrefixStore
        Copies the prefixes.

    Attributes
    ----------
    num_layers : int
        As given; SGLang reads it.
    consumer_index : int
        Of the batch that runs, -1 if it reads no such prefix; SGLang reads it.
    is_told : bool
        Whether :meth:`launch` has told of a batch: where nobody does, in a fork that has left it
        out, no pass would wait, and no prefix may be in the tree before it is whole.
    is_proven : bool
        Whether a forward pass has asked for every layer.
    overtaken : int
        Layers that forward passes were let read while later ones were on their way.
    """

    def __init__(self, layers: int, store: PrefixStore) -> None:
        self.num_layers = layers
        self.consumer_index = -1
        self.is_told = False
        self.is_proven = False
        self.overtaken = 0
        self._store = store
        self._arriving: dict[str, Arrival] = {}
        self._number = -1  # index of the batch that was launched last
        self._next: list[Arrival] = []  # what it may read
        self._reads: list[Arrival] = []  # what the batch that runs may read
        self._is_decode = self._next_is_decode = False
        self._asked: set[int] = set()  # layers, by the batch that runs

    # -- prefixes

    def __contains__(self, key: str) -> bool:
        return key in self._arriving

    def begin(self, arrival: Arrival) -> None:
        """A prefix is in the tree from now on, and being copied in."""
        self._arriving[arrival.key] = arrival

    def finish(self, key: str) -> None:
        """Return when a prefix is whole; nobody has to wait for it from now on.

        Raises
        ------
        RuntimeError
            Its copy has failed, and could not be made again; as if it had not been called.
        """
        arrival = self._arriving[key]
        arrival.transfer.settle()
        self._mend(arrival)
        del self._arriving[key]

    def finish_under(self, tokens: Tokens) -> None:
        """:meth:`finish` all that a prefix has tokens in common with which are not there yet."""
        for arrival in list(self._arriving.values()):
            if arrival.may_be_read_by(tokens):
                self.finish(arrival.key)

    def mend(self) -> None:
        """Make good what has failed so far."""
        for arrival in self._arriving.values():
            if arrival.transfer.is_over:
                self._mend(arrival)

    def clear(self) -> None:
        """Tree and pool are empty."""
        self._arriving.clear()
        self._next, self._reads = [], []

    def _mend(self, arrival: Arrival) -> None:
        if arrival.is_whole:
            return
        self._store.mend(arrival.key)
        arrival.is_mended = True
        logger.warning("topas: prefix %s was copied in a second time", arrival.key)

    # -- batches

    def launch(self, batch: Any, prompts: Iterable[Sequence[int]], is_decode: bool) -> None:
        """Note which prefixes a batch may read that are not whole, or that are new here.

        Parameters
        ----------
        batch : ScheduleBatch
            About to run.
        prompts : iterable of sequence of int
            Of its requests.
        is_decode : bool
            Whether it computes no prompt.
        """
        self.is_told = True
        coming = [one for one in self._arriving.values() if not (self.is_proven and one.is_whole)]
        given = list(prompts) if coming else []
        self._next = [one for one in coming if any(map(one.may_be_read_by, given))]
        self._next_is_decode = is_decode
        self._number += bool(self._next)
        batch.hicache_consumer_index = self._number if self._next else -1

    def launch_whole(self, batch: Any) -> None:
        """Return when all prefixes are whole: the batch waits for none, whatever it reads.

        Raises
        ------
        RuntimeError
            As :meth:`finish`.
        """
        for key in list(self._arriving):
            self.finish(key)
        self._next = []
        batch.hicache_consumer_index = -1

    def set_consumer(self, index: int) -> None:
        """A forward pass of the batch with this index begins, on the current stream."""
        self._end_pass()
        self.consumer_index = index
        if index < 0:
            return
        self._reads, self._is_decode = self._next, self._next_is_decode
        if self._is_decode or not self.is_proven:
            self._wait_for_all()

    def wait_until(self, threshold: int) -> None:
        """Attention reads a layer next, on the current stream."""
        if self.consumer_index < 0 or threshold in self._asked:
            return
        self._asked.add(threshold)
        for arrival in self._reads:
            self._wait(arrival, threshold)

    def reset(self) -> None:
        """No batch runs."""
        self.set_consumer(-1)

    def _end_pass(self) -> None:
        """All that the last pass read is whole on the stream, whatever it has asked for."""
        self._wait_for_all()
        if not self._is_decode and len(self._asked) == self.num_layers:
            self.is_proven = True
        self._reads = []
        self._asked.clear()

    def _wait_for_all(self) -> None:
        for arrival in self._reads:
            self._wait(arrival, self.num_layers - 1)

    def _wait(self, arrival: Arrival, layer: int) -> None:
        if arrival.is_whole:
            return
        if not arrival.transfer.reach_layer(layer):
            self._mend(arrival)
        elif layer < self.num_layers - 1 and not arrival.transfer.is_over:
            self.overtaken += 1
