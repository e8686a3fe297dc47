"""Driving SGLang with topas.

So far: who a request belongs to (:mod:`~topas.sglang.hints`), static prefixes found by looking
(:mod:`~topas.sglang.heads`) and the events that keep a :class:`topas.Scheduler` true
(:mod:`~topas.sglang.ledger`). Nothing here imports sglang or torch.
"""

from topas.sglang.heads import HeadTable
from topas.sglang.hints import Carriers, Hints, read_hints
from topas.sglang.ledger import Arrival, Ledger, Namespace

__all__ = ["Arrival", "Carriers", "HeadTable", "Hints", "Ledger", "Namespace", "read_hints"]
