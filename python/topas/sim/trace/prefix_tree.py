"""The tree of block ids: which head requests share, and which one a request continues."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topas.sim.trace.mooncake_graph import Request

__all__ = ["PrefixTree"]

_LEAST_SHARE = 3
_LEAST_BRANCHES = 3


class PrefixTree:
    """All requests' full blocks as a tree; a node is a head, its depth the number of blocks.

    Where contexts are known (sessions, links), a static prefix is a head that at least
    :attr:`min_share` contexts have. Where they are not, it is one that as many requests have and
    that goes on in at least three ways: a conversation goes on in one way (two where a turn was
    asked again). The prefix of a request is the deepest such head on its path.

    Parameters
    ----------
    block_tokens : int
        Tokens of a block.
    requests : list of Request
        In order of time.
    contexts : list of int, optional
        The context of each request; ``None``: not known.
    """

    def __init__(
        self, block_tokens: int, requests: list[Request], contexts: list[int] | None = None
    ) -> None:
        self.block_tokens = block_tokens
        self._children: list[dict[int | str, int]] = [{}]
        self._count = [0]
        self._ends: dict[int, list[Request]] = {}
        self._latest: dict[int, Request] = {}
        self._branches: dict[int, int] = {}
        self._grouped = contexts is not None
        owners = list(range(len(requests))) if contexts is None else contexts
        self._owners = len(set(owners))
        last: list[int | None] = [None]
        for index in sorted(range(len(requests)), key=owners.__getitem__):
            self._add(requests[index], owners[index], last)

    @property
    def min_share(self) -> int:
        """How many contexts (or requests) must have a head: 1 % of all, at least 3."""
        return max(_LEAST_SHARE, math.ceil(self._owners / 100))

    def _add(self, request: Request, owner: int, last: list[int | None]) -> None:
        """Count an owner's request; those of an owner come together."""
        node = 0
        for block in request.blocks:
            child = self._children[node].get(block)
            if child is None:
                child = len(self._children)
                self._children[node][block] = child
                self._children.append({})
                self._count.append(0)
                last.append(None)
            node = child
            self._count[node] += last[node] != owner
            last[node] = owner
        self._ends.setdefault(node, []).append(request)

    def static_node(self, request: Request) -> tuple[int, int]:
        """The static prefix of a request: its node (0: none) and its depth in blocks."""
        found, node = (0, 0), 0
        for depth, block in enumerate(request.blocks, start=1):
            node = self._children[node][block]
            if self._count[node] < self.min_share:
                break
            if self._grouped or self._branching(node) >= _LEAST_BRANCHES:
                found = (node, depth)
        return found

    def continued(self, request: Request) -> Request | None:
        """The latest request passed so far with the longest head that this one goes on from.

        That head is longer than the static prefix, and the request can hold the answer too.
        """
        _, static = self.static_node(request)
        path = self._path(request)
        for depth in range(len(path), static, -1):
            before = self._latest.get(path[depth - 1])
            if before is not None and _holds(before, request):
                return before
        return None

    def passed(self, request: Request) -> None:
        """Make a request one that later ones may continue."""
        path = self._path(request)
        if path:
            self._latest[path[-1]] = request

    def _path(self, request: Request) -> list[int]:
        node, path = 0, []
        for block in request.blocks:
            node = self._children[node][block]
            path.append(node)
        return path

    def _branching(self, node: int) -> int:
        """Different continuations: by the next full block, and conversations that end here.

        One of those that end here may be an earlier turn of one that goes on.
        """
        known = self._branches.get(node)
        if known is None:
            known = len(self._children[node])
            ending = _conversations(self._ends.get(node, []))
            known += max(ending - 1, 0) if known else ending
            self._branches[node] = known
        return known


def _holds(before: Request, request: Request) -> bool:
    return request.input_tokens >= before.input_tokens + before.output_tokens


def _conversations(requests: list[Request]) -> int:
    """Into how few conversations requests with the same full blocks can be put.

    They differ in their last, partial block only; a turn that holds the one before and its answer
    may be the same conversation.
    """
    last: list[Request] = []
    tails: set[tuple[int | str, ...]] = set()
    for request in requests:
        if request.tail in tails:  # the same prompt again
            continue
        tails.add(request.tail)
        for index, before in enumerate(last):
            if _holds(before, request):
                last[index] = request
                break
        else:
            last.append(request)
        if len(last) >= _LEAST_BRANCHES:
            break
    return len(last)
