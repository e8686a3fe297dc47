"""A decision as NumPy arrays (SPEC section 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["DecisionArrays"]


class DecisionArrays(NamedTuple):
    """What :meth:`topas.Decision.arrays` gives: one array a list, in the order of the lists.

    All are one-dimensional, contiguous and read-only, and own their data, so that they outlive the
    decision. Each array of ids goes by its own ids: int64 when all are integers (or there is none,
    so that an empty one indexes too), else object with the ids as they were given.

    Attributes
    ----------
    resident : ndarray of int64 or object
        R': agents whose prefixes are resident afterwards, ascending.
    admit : ndarray of int64 or object, shape (n,)
        A: waiting requests to start, in order.
    credits : ndarray of float64, shape (n,)
        Credit of each request of ``admit``, seconds.
    preempt : ndarray of int64 or object
        P: running requests to put back, ascending.
    load, drop : ndarray of int64 or object
        Agents whose prefixes enter and leave, ascending.
    unschedulable : ndarray of int64 or object
        Waiting requests that can never fit, ascending.
    terms : ndarray of float64, shape (5,)
        J_admit, J_reuse, J_move, J_redo and J_revoke, seconds. The score is
        ``terms @ [1, 1, -1, -1, -1]`` but for rounding.
    """

    resident: npt.NDArray[Any]
    admit: npt.NDArray[Any]
    credits: npt.NDArray[np.float64]
    preempt: npt.NDArray[Any]
    load: npt.NDArray[Any]
    drop: npt.NDArray[Any]
    unschedulable: npt.NDArray[Any]
    terms: npt.NDArray[np.float64]
