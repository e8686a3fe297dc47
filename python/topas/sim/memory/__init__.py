"""Who holds the engine's KV memory, and what leaves it.

:class:`~topas.sim.memory.base.Memory` is the interface of the two kinds of residency:
:mod:`~topas.sim.memory.lru` under a cache, as the baselines have it, and
:mod:`~topas.sim.memory.explicit` under plans that name the resident prefixes.
"""
