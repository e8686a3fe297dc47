"""Agents of the core: named by hints or by a shared head, registered, followed, forgotten."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

import topas
from topas.sglang.heads import HeadTable, Tokens

__all__ = ["Agents", "Namespace", "composite_id"]

Id: TypeAlias = int | str

#: Cache namespace of a request: extra key, cache salt, LoRA id. KV is never shared across.
Namespace: TypeAlias = tuple[str | None, ...]

#: How many tokens of a prefix the engine holds for a namespace.
Holds: TypeAlias = Callable[[Tokens, Namespace], int]

_PRIVATE = "private"  # the agent of prompts whose head nobody shares


def composite_id(*parts: Any) -> str:
    """One id from several parts, without ambiguity: ("ab", "c") and ("a", "bc") differ."""
    return json.dumps(parts, separators=(",", ":"))


@dataclass
class _Agent:
    namespace: Namespace
    head: Hashable | None
    tokens: int
    workflows: int = 0
    live: int = 0
    running: int = 0
    resident: bool = False

    @property
    def can_be_looked_for(self) -> bool:
        return self.head is not None and self.tokens > 0


class Agents:
    """The agents that the core knows.

    Parameters
    ----------
    core : topas.Scheduler
        Registrations and changes go there.
    heads : HeadTable
        Finds static prefixes.
    limit : int
        Beyond so many agents the least recently used idle ones are forgotten.
    """

    def __init__(self, core: topas.Scheduler, heads: HeadTable, limit: int = 4096) -> None:
        self._core = core
        self._heads = heads
        self._limit = limit
        self._agents: OrderedDict[str, _Agent] = OrderedDict()
        self._hot: dict[str, _Agent] = {}  # with live requests or a resident prefix

    def __len__(self) -> int:
        return len(self._agents)

    @staticmethod
    def key(namespace: Namespace, name: Id) -> str:
        """The core's id of a named agent: a namespace has agents of its own."""
        return composite_id("agent", *namespace, name)

    # -- who

    def named(self, now: float, namespace: Namespace, name: Id, prompt: Sequence[int]) -> str:
        """The agent of a prompt that hints or a workflow name."""
        agent = self.key(namespace, name)
        self._know(now, agent, namespace, agent, self._heads.see(agent, prompt))
        return agent

    def head_of(self, namespace: Namespace, prompt: Sequence[int]) -> Hashable | None:
        """What prompts with a common head share in a namespace; ``None`` for short ones."""
        key = self._heads.key_of(prompt)
        return None if key is None else (*namespace, key)

    def of_head(
        self, now: float, namespace: Namespace, head: Hashable | None, prompt: Sequence[int]
    ) -> str:
        """The agent that stands for a head shared with other prompts, or the one of all others."""
        name, tokens = _PRIVATE, 0
        if head is not None and (tokens := self._heads.see(head, prompt)) > 0:
            name = blake2b(repr(head).encode(), digest_size=16).hexdigest()
        agent = composite_id("head", *namespace, name)
        self._know(now, agent, namespace, head if tokens > 0 else None, tokens)
        return agent

    def declare(self, namespace: Namespace, name: Id) -> str:
        """An agent that a workflow names, perhaps before its first request."""
        agent = self.key(namespace, name)
        if agent not in self._agents:
            self._register(agent, _Agent(namespace, agent, 0))
        return agent

    def _know(
        self, now: float, agent: str, namespace: Namespace, head: Hashable | None, tokens: int
    ) -> None:
        known = self._agents.get(agent)
        if known is None:
            self._register(agent, _Agent(namespace, head, tokens))
            return
        self._agents.move_to_end(agent)
        if known.tokens != tokens:
            try:
                self._core.prefix_changed(now, agent, tokens)
            except topas.StateError:
                return  # a live request is shorter: the prefix stays as it was
            known.tokens = tokens

    def _register(self, agent: str, entry: _Agent) -> None:
        if len(self._agents) >= self._limit:
            self._forget_oldest()
        self._core.register_agent(agent, entry.tokens)
        self._agents[agent] = entry

    def _forget_oldest(self) -> None:
        for name, entry in self._agents.items():
            if entry.workflows == 0 and name not in self._hot:
                self._core.unregister_agent(name)
                if entry.head is not None:
                    self._heads.forget(entry.head)
                del self._agents[name]
                return

    # -- what becomes of them

    def tokens(self, agent: str) -> int:
        """Tokens of an agent's static prefix."""
        return self._agents[agent].tokens

    def prefix(self, agent: str) -> tuple[Tokens, Namespace] | None:
        """Token ids, int64, shape [tokens], and namespace of an agent's static prefix, if known."""
        entry = self._agents.get(agent)
        if entry is None or not entry.can_be_looked_for:
            return None
        tokens = self._heads.tokens(entry.head, entry.tokens)
        return (tokens, entry.namespace) if len(tokens) == entry.tokens else None

    def is_live(self, agent: str) -> bool:
        """Whether an agent has live requests."""
        return agent in self._agents and self._agents[agent].live > 0

    def used_by_workflow(self, agent: str, count: int) -> None:
        """So many more (or fewer) stages of registered workflows name it."""
        self._agents[agent].workflows += count

    def came(self, agent: str) -> None:
        """One more live request."""
        entry = self._hot[agent] = self._agents[agent]
        entry.live += 1

    def started(self, agent: str) -> None:
        """One of its requests runs, on its prefix."""
        entry = self._agents[agent]
        entry.running += 1
        entry.resident = True

    def stopped(self, agent: str) -> None:
        """One of its requests runs no more."""
        self._agents[agent].running -= 1

    def left(self, agent: str) -> None:
        """One of its live requests is gone."""
        self._agents[agent].live -= 1

    def resident(self, agents: Sequence[Id]) -> None:
        """These prefixes, and no others, are resident after a decision."""
        kept = set(agents)
        for name, entry in self._hot.items():
            entry.resident = name in kept

    @property
    def resident_tokens(self) -> tuple[int, int]:
        """Resident prefixes with a length, and their tokens."""
        held = [e.tokens for e in self._hot.values() if e.resident and e.tokens > 0]
        return len(held), sum(held)

    def look(self, now: float, holds: Holds) -> None:
        """Tell the core which prefixes of agents without running requests the engine has now.

        An engine drops cached prefixes when it needs room and keeps them when nobody asks; only
        those that running requests use are sure to stay.

        Parameters
        ----------
        now : float
            Seconds.
        holds : callable
            Tokens of a prefix that the engine has in its cache.
        """
        cold = []
        for name, entry in self._hot.items():
            if entry.running > 0:
                continue
            there = entry.live > 0 and self._keeps(entry, holds)
            if there and not entry.resident:
                self._core.prefix_loaded(now, name)
            elif entry.resident and not there:
                self._core.prefix_evicted(now, name)
            entry.resident = there
            if entry.live == 0:
                cold.append(name)
        for name in cold:
            del self._hot[name]

    def _keeps(self, entry: _Agent, holds: Holds) -> bool:
        if not entry.can_be_looked_for:
            return entry.resident
        return holds(self._heads.tokens(entry.head, entry.tokens), entry.namespace) >= entry.tokens

    def is_held(self, agent: str, holds: Holds) -> bool:
        """Whether the engine has an agent's whole prefix in its cache; true if there is none."""
        entry = self._agents[agent]
        return not entry.can_be_looked_for or self._keeps(entry, holds)
