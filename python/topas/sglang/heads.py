"""Static prefixes, found by looking: the common head of an agent's prompts.

An agent that is named by hints has its own head from its first request on; its length is settled by
the second. Prompts without hints share a head when they begin with the same ``min_tokens`` tokens;
the head becomes an agent when it is seen a second time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Head", "HeadTable", "Tokens"]

Tokens = npt.NDArray[np.int64]


@dataclass
class Head:
    """The head that an agent's prompts have in common.

    Parameters
    ----------
    tokens : ndarray of int64, shape (n,)
        Their longest common head so far; of one prompt, all of it.
    seen : int
        How many prompts it was taken from.
    """

    tokens: Tokens = field(repr=False)
    seen: int = 1

    def narrow(self, prompt: Tokens) -> None:
        """Keep what the head has in common with one more prompt."""
        self.seen += 1
        length = min(len(self.tokens), len(prompt))
        differs = np.flatnonzero(self.tokens[:length] != prompt[:length])
        kept = int(differs[0]) if len(differs) else length
        if kept < len(self.tokens):
            self.tokens = self.tokens[:kept].copy()


class HeadTable:
    """Heads by key, the least recently used forgotten first.

    Parameters
    ----------
    min_tokens : int
        Shorter common heads count as none.
    page_size : int
        Prefixes are whole pages of so many tokens.
    limit : int
        At most so many heads are remembered.
    """

    def __init__(self, min_tokens: int, page_size: int, limit: int = 4096) -> None:
        self._min_tokens = max(min_tokens, page_size)
        self._page_size = page_size
        self._limit = limit
        self._heads: OrderedDict[Hashable, Head] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heads)

    def key_of(self, prompt: Sequence[int]) -> bytes | None:
        """What prompts with a common head share; ``None`` for one too short to have a head."""
        if len(prompt) < self._min_tokens:
            return None
        return np.asarray(prompt[: self._min_tokens], dtype=np.int64).tobytes()

    def see(self, key: Hashable, prompt: Sequence[int]) -> int:
        """Note one more prompt under a key.

        Parameters
        ----------
        key : hashable
            Who the prompt belongs to.
        prompt : sequence of int
            Its token ids.

        Returns
        -------
        int
            Tokens of the common head now, in whole pages and always short of the whole prompt; 0 as
            long as only one prompt is known or the head is too short.
        """
        tokens = np.asarray(prompt, dtype=np.int64)[:-1]  # the last one is computed in any case
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = Head(tokens.copy())
            if len(self._heads) > self._limit:
                self._heads.popitem(last=False)
        else:
            head.narrow(tokens)
            self._heads.move_to_end(key)
        return self.length(key)

    def length(self, key: Hashable) -> int:
        """Tokens of the common head of a key, in whole pages; 0 for none."""
        head = self._heads.get(key)
        if head is None or head.seen < 2:
            return 0
        pages = len(head.tokens) // self._page_size
        length = pages * self._page_size
        return length if length >= self._min_tokens else 0

    def tokens(self, key: Hashable, count: int) -> Tokens:
        """The first ``count`` tokens of the head of a key; none when it is not known (any more)."""
        head = self._heads.get(key)
        return np.empty(0, dtype=np.int64) if head is None else head.tokens[:count]

    def forget(self, key: Hashable) -> None:
        """Drop a key, if it is there."""
        self._heads.pop(key, None)
