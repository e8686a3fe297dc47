"""What the bridge asks of residency, and how it is without pins and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from topas.sglang.agents import Agents, Namespace
from topas.sglang.heads import Tokens
from topas.sglang.metrics import Counts
from topas.sglang.view import View

__all__ = ["NoCopies"]


class NoCopies:
    """Prefixes are in the tree or not, as SGLang likes: nothing is pinned and nothing copied.

    Parameters
    ----------
    view : View
        The engine.
    """

    def __init__(self, view: View) -> None:
        self._view = view

    def is_coming(self, agent: str) -> bool:
        """Whether the requests of an agent have to wait for the copy of its prefix."""
        return False

    def is_promised(self, agent: str) -> bool:
        """Whether the requests of an agent wait for a copy, or could not start since it came."""
        return False

    def holds(self, tokens: Tokens, namespace: Namespace) -> int:
        """How many of these tokens, counted from the first, the engine has or is about to have."""
        return self._view.holds(tokens, namespace)

    def land(self, needs: int, in_use: Callable[[], Iterable[str]]) -> None:
        """Copies that are over have their consequences; pins give way if room is short.

        Parameters
        ----------
        needs : int
            Slots that SGLang takes for the requests that run in this pass.
        in_use : callable
            Agents with requests that run.
        """

    def decided(self, resident: Iterable[str], agents: Agents) -> None:
        """Prefixes that the core has given up leave; preempted requests may still use them.

        Parameters
        ----------
        resident : iterable of str
            The agents whose prefixes are resident from now on.
        agents : Agents
            Knows their prefixes.
        """

    def computed(self) -> None:
        """Prefixes may have come into the tree."""

    def enter(self, is_idle: bool) -> None:
        """Free what has left, pin what is wanted and in the tree, load what is on the host.

        Parameters
        ----------
        is_idle : bool
            Nothing runs: nobody but pins and loads can make room.
        """

    def launch(self, batch: Any) -> None:
        """A batch is about to run: it may read what is being copied in."""

    def admitted(self) -> None:
        """SGLang has admitted requests: what gave way may be wanted again."""

    def give_way(self, in_use: Iterable[str]) -> None:
        """SGLang needs room: let go of all that no running request uses.

        They stay SGLang's business until it has admitted something: else they would be taken, and
        given up, without end.
        """

    def report(self, counts: Counts) -> None:
        """Say what was copied so far, and how things stand."""

    def reset(self) -> None:
        """The core starts afresh: no prefix is pinned or on its way; copies on the host stay."""

    def flushed(self) -> None:
        """SGLang has emptied tree and pool: forget all, copies on the host too.

        It does so when the weights change, for one.
        """
