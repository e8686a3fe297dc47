"""One request computes a prefix; the others of its agent follow when it is in the cache.

Requests of one batch cannot use each other's KV: admitted together, each of them would compute the
prefix that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topas.sglang.roster import Entry

__all__ = ["Leaders"]


class Leaders:
    """Who computes the prefix of which agent.

    Parameters
    ----------
    agent_of : callable
        The agent of an entry.
    is_held : callable
        Whether the engine has the whole prefix of an agent in its cache (or there is none).
    is_coming : callable
        Whether an agent's prefix is being copied in, so that nobody has to compute it.
    """

    def __init__(
        self,
        agent_of: Callable[[Entry], str],
        is_held: Callable[[str], bool],
        is_coming: Callable[[str], bool] = lambda agent: False,
    ) -> None:
        self._agent_of = agent_of
        self._is_held = is_held
        self._is_coming = is_coming
        self._leaders: dict[str, Entry] = {}

    def select(self, planned: Iterable[Entry]) -> list[Entry]:
        """Those that may start now, in order: all of an agent whose prefix is there, else one.

        Nobody starts while a request that runs computes the prefix, or while it is copied in.
        """
        held: dict[str, bool] = {}
        leaders: dict[str, Entry] = {}
        chosen = []
        for entry in planned:
            agent = self._agent_of(entry)
            if self._is_coming(agent):
                continue
            if agent not in held:
                held[agent] = self._is_held(agent)
            if not held[agent]:
                leader = leaders.setdefault(agent, self._running_leader(agent) or entry)
                if leader is not entry:
                    continue
            chosen.append(entry)
        self._leaders = leaders
        return chosen

    def _running_leader(self, agent: str) -> Entry | None:
        leader = self._leaders.get(agent)
        return leader if leader is not None and leader.running else None
