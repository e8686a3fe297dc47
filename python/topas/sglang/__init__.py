"""Driving SGLang with topas.

:mod:`~topas.sglang.plugin` is what SGLang loads; :mod:`~topas.sglang.bridge` stands between its
scheduler and the core. :mod:`~topas.sglang.hints`, :mod:`~topas.sglang.heads` and
:mod:`~topas.sglang.ledger` say who a request belongs to. Importing this package imports neither
sglang nor torch.
"""

from topas.sglang.agents import Namespace
from topas.sglang.heads import HeadTable
from topas.sglang.hints import Carriers, Hints, read_hints
from topas.sglang.ledger import Arrival, Ledger

__all__ = ["Arrival", "Carriers", "HeadTable", "Hints", "Ledger", "Namespace", "read_hints"]
