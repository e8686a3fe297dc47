"""SGLang's prefix tree and KV pool: what is in them, and all that is ever done to them.

=====================================  ==========================================================
what                                   difference
=====================================  ==========================================================
tree                                   up to 0.5.18 ``RadixCache``, whose nodes are objects; from
                                       0.5.20 on ``UnifiedRadixCache`` over a core in Rust or
                                       Python, whose nodes are numbers
result of ``match_prefix``             up to 0.5.21 the slots themselves, then their number
``RadixKey``                           from 0.5.18 on it has a ``cache_salt``
``lock``, ``unlock``                   from 0.5.22 on; before, ``inc_lock_ref``, ``dec_lock_ref``
slots that ``insert`` finds there      ``UnifiedRadixCache`` frees the new ones, ``RadixCache``
                                       leaves that to the caller
``collect_path_info``                  from 0.5.22 on; before, a node's place shows in its slots
=====================================  ==========================================================
"""

from __future__ import annotations

import inspect
from array import array
from dataclasses import dataclass
from typing import Any

from topas.sglang.agents import Namespace
from topas.sglang.heads import Tokens

__all__ = ["Match", "PrefixCache"]

_ALL = 1 << 62  # tokens: an eviction that goes on until there is nothing left


@dataclass(frozen=True)
class Match:
    """What the tree has of a prefix.

    Parameters
    ----------
    length : int
        Tokens, counted from the first.
    node : object
        SGLang's handle of the last node; valid until something is evicted, unless it is locked.
    slots : torch.Tensor or None
        Their slots, int64, shape [length], if the match has told them.
    """

    length: int
    node: Any
    slots: Any = None


class PrefixCache:
    """Tree and pool of a scheduler.

    Parameters
    ----------
    scheduler : sglang.srt.managers.scheduler.Scheduler
        The scheduler.

    Attributes
    ----------
    in_transit : int
        Slots that are allocated and neither in the tree nor with a request: a prefix is copied into
        them. SGLang's checks count them with the locked ones (:meth:`count_in_transit`).
    """

    def __init__(self, scheduler: Any) -> None:
        self.in_transit = 0
        self._scheduler = scheduler
        self._key_has_salt: bool | None = None

    @property
    def _tree(self) -> Any:
        return self._scheduler.tree_cache

    @property
    def _allocator(self) -> Any:
        return self._scheduler.token_to_kv_pool_allocator

    @property
    def pool(self) -> Any:
        """The KV pool, with its buffers."""
        return self._allocator.get_kvcache()

    @property
    def room(self) -> int:
        """Slots that are free or can be: what SGLang itself admits by."""
        return int(self._allocator.available_size() + self._tree.evictable_size())

    def reasons_against_copies(self) -> list[str]:
        """Why prefixes of this tree cannot be pinned one by one; empty when they can."""
        name = type(self._tree).__name__
        if name in ("RadixCache", "UnifiedRadixCache"):
            return []
        return [f"prefix_copies with a prefix tree of type {name}"]

    def count_in_transit(self) -> None:
        """From now on slots in transit count as locked ones of the tree.

        SGLang checks that free, evictable, locked and the requests' own slots are all of the pool.
        It only ever takes ``protected_size`` for that and for metrics.
        """
        of_tree = self._tree.protected_size
        self._tree.protected_size = lambda: of_tree() + self.in_transit

    # -- what is there

    def match(self, tokens: Tokens, namespace: Namespace) -> Match:
        """What the tree has of these tokens, int64, shape [tokens]; splits a node at its end."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        match = self._tree.match_prefix(MatchPrefixParams(key=self._key(tokens, namespace)))
        length = getattr(match, "device_prefix_len", None)
        if length is not None:
            return Match(int(length), match.last_device_node)
        return Match(len(match.device_indices), match.last_device_node, match.device_indices)

    def slots(self, match: Match) -> Any:
        """The slots of a match, int64, shape [match.length]."""
        if match.slots is not None:
            return match.slots
        return self._tree.path_device_indices(match.node)[: match.length]

    def _key(self, tokens: Tokens, namespace: Namespace) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        if self._key_has_salt is None:
            self._key_has_salt = "cache_salt" in inspect.signature(RadixKey).parameters
        extra_key, salt, _ = namespace
        more = {"cache_salt": salt} if self._key_has_salt else {}
        return RadixKey(array("q", tokens.tobytes()), extra_key, **more)

    # -- what is done to it

    def lock(self, match: Match) -> Any:
        """From now on nothing up to the end of a match is evicted; the receipt undoes it."""
        return match.node, self._tree.inc_lock_ref(match.node).to_dec_params()

    def unlock(self, receipt: Any) -> None:
        """Undo :meth:`lock`."""
        self._tree.dec_lock_ref(*receipt)

    def allocate(self, count: int) -> Any | None:
        """So many slots in transit, int64, shape [count]; evicts what it takes. None: no room."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        short = count - int(self._allocator.available_size())
        if short > 0:
            self._tree.evict(EvictParams(num_tokens=short))
        slots = self._allocator.alloc(count)
        if slots is not None:
            self.in_transit += count
        return slots

    def free(self, slots: Any) -> None:
        """Give slots in transit back to the pool."""
        self.in_transit -= len(slots)
        self._allocator.free(slots)

    def joined(self, match: Match, slots: Any) -> Any:
        """The slots of a match and more after them, int64, shape [match.length + more]."""
        import torch  # type: ignore[import-not-found, unused-ignore]

        return torch.cat([self.slots(match), slots])

    def insert(self, tokens: Tokens, namespace: Namespace, slots: Any, there: int = 0) -> None:
        """Slots in transit are for the KV of these tokens: they are the tree's now, or free.

        Of the slots, int64, shape [tokens], the first ``there`` are those that the tree has. If
        SGLang raises, all others are in transit still, in the tree or not: see :meth:`give_back`.
        """
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        key = self._key(tokens, namespace)
        result = self._tree.insert(
            InsertParams(key=key, value=slots.clone(), prev_prefix_len=there)
        )
        self.in_transit -= len(slots) - there
        if not self._is_unified and result.prefix_len > there:
            self._allocator.free(slots[there : result.prefix_len])

    def give_back(self, tokens: Tokens, namespace: Namespace, slots: Any, there: int = 0) -> None:
        """After :meth:`insert` has raised: the tree keeps what it took, all others are free."""
        taken = set(self.slots(self.match(tokens, namespace)).tolist())
        left = [at for at, slot in enumerate(slots.tolist()) if slot not in taken and at >= there]
        self.in_transit -= len(slots) - there
        self._allocator.free(slots[left])

    def drop(self, tokens: Tokens, namespace: Namespace) -> None:
        """Free the slots of a prefix and of all under it, deepest first, but for locked ones.

        Only leaves are ever evicted: an inner node would panic the core in Rust, which then
        answers no call any more.
        """
        match = self.match(tokens, namespace)
        if match.length < len(tokens):
            return
        if self._is_unified:
            self._drop_unified(match)
        else:
            self._drop_radix(match.node)

    @property
    def _is_unified(self) -> bool:
        return hasattr(self._tree, "tree_core")

    def _drop_unified(self, match: Match) -> None:
        """SGLang's own walk over the leaves that can be evicted, of which most are passed by.

        It hands out a node whose last child was evicted next.
        """
        tree, core = self._tree, self._tree.tree_core
        full = tree.tree_components[0]  # the only one: models with others are refused
        is_part = self._part_test(match)
        tracker = dict.fromkeys(tree.tree_components, 0)
        core.evict_device_start(full, _ALL)
        try:
            while True:
                node, went_on = tree._evict_device_next_node(full, tracker)
                if node is None and not went_on:
                    return
                if node is not None and is_part(node):
                    tree._evict_device_leaf(node, tracker)
        finally:
            core.evict_device_end(full)

    def _part_test(self, match: Match) -> Any:
        """Whether a node is on the way to the end of the match or under it."""
        core = self._tree.tree_core
        if hasattr(core, "collect_path_info"):
            return _PathTest(core, match.node)
        own = self.slots(match)
        root = self._tree.root_node_handle()

        def is_part(node: Any) -> bool:
            path = core.collect_full_device_indices(node, root)
            last = min(len(path), len(own)) - 1
            return bool(path[last] == own[last])

        return is_part

    def _drop_radix(self, end: Any) -> None:
        above = end.parent
        for node in _deepest_first(end):
            self._evict_radix(node)
        while above is not self._tree.root_node and self._evict_radix(above):
            above = above.parent

    def _evict_radix(self, node: Any) -> bool:
        if node.lock_ref or node.children:
            return False
        self._allocator.free(node.value)
        self._tree._delete_leaf(node)
        self._tree._record_remove_event(node)
        return True


class _PathTest:
    """Whether a node is on the way to ``end`` or under it, by the numbers of nodes."""

    def __init__(self, core: Any, end: Any) -> None:
        self._core = core
        self._end = end
        self._above = set(self._path(end))

    def _path(self, node: Any) -> list[Any]:
        return [step.node_id for step in self._core.collect_path_info([node])[0]]

    def __call__(self, node: Any) -> bool:
        return node in self._above or self._end in self._path(node)


def _deepest_first(top: Any) -> list[Any]:
    """A node of ``RadixCache`` and all under it, children before parents."""
    ahead, found = [top], list[Any]()
    while ahead:
        node = ahead.pop()
        found.append(node)
        ahead.extend(node.children.values())
    found.reverse()
    return found
