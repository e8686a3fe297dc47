"""Where the KV of a prefix is, and which steps lead from one state to another."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from topas.errors import StateError

if TYPE_CHECKING:
    import torch  # type: ignore[import-not-found, unused-ignore]

    from topas.sglang.prefix_copy.arena import HostCopy
    from topas.sglang.prefix_copy.transfers import Transfer

__all__ = ["Prefix", "Residency"]


class Residency(str, Enum):
    """States of a prefix; the values are what messages show."""

    ABSENT = "absent"
    RESIDENT = "resident"
    SAVING = "saving"
    EVICTING = "evicting"
    RESIDENT_AND_HOST = "resident and on host"
    HOST = "on host"
    LOADING = "loading"
    TORN = "torn"


_S = Residency

#: Operation -> state before -> state after. What is not here is not legal.
_STEPS: dict[str, dict[Residency, Residency]] = {
    "place": {_S.ABSENT: _S.RESIDENT, _S.HOST: _S.RESIDENT_AND_HOST},
    "save": {_S.RESIDENT: _S.SAVING},
    "evict": {_S.RESIDENT: _S.EVICTING, _S.SAVING: _S.EVICTING, _S.RESIDENT_AND_HOST: _S.HOST},
    "release": {_S.RESIDENT: _S.ABSENT, _S.RESIDENT_AND_HOST: _S.HOST},
    "load": {_S.HOST: _S.LOADING},
    "drop the host copy": {_S.RESIDENT_AND_HOST: _S.RESIDENT, _S.HOST: _S.ABSENT},
    "forget": {
        _S.RESIDENT: _S.ABSENT,
        _S.RESIDENT_AND_HOST: _S.ABSENT,
        _S.HOST: _S.ABSENT,
        _S.TORN: _S.ABSENT,
    },
    "end a save": {_S.SAVING: _S.RESIDENT_AND_HOST, _S.EVICTING: _S.HOST},
    "give up a save": {_S.SAVING: _S.RESIDENT, _S.EVICTING: _S.RESIDENT},
    "end a load": {_S.LOADING: _S.RESIDENT_AND_HOST},
    "give up a load": {_S.LOADING: _S.HOST},
    "tear a load": {_S.LOADING: _S.TORN},
    "mend": {_S.TORN: _S.RESIDENT_AND_HOST},
}

_READABLE = {_S.RESIDENT, _S.SAVING, _S.RESIDENT_AND_HOST}
_IN_FLIGHT = {_S.SAVING, _S.EVICTING, _S.LOADING}


class Prefix:
    """The static prefix of an agent: one method a legal step, all else is a :class:`StateError`.

    Not thread-safe: its store locks.

    Parameters
    ----------
    agent : str
        Whose prefix it is.
    tokens : tuple of int
        Its token ids, in whole pages; fixed for life.

    Attributes
    ----------
    state : Residency
        Where its KV is.
    slots : torch.Tensor or None
        Its device slots, shape [tokens]; in ``loading`` those that are being filled, in ``torn``
        those that were not all filled.
    host : HostCopy or None
        Its copy in host memory; in ``saving`` and ``evicting`` the one that is being filled.
    transfer : Transfer or None
        The latest copy, under way or over.
    """

    def __init__(self, agent: str, tokens: tuple[int, ...] = ()) -> None:
        self.agent = agent
        self.tokens = tokens
        self.state = Residency.ABSENT
        self.slots: torch.Tensor | None = None
        self.host: HostCopy | None = None
        self.transfer: Transfer | None = None

    @property
    def is_readable(self) -> bool:
        """Whether its slots hold all of its KV and stay its own."""
        return self.state in _READABLE

    @property
    def is_in_flight(self) -> bool:
        """Whether a copy is under way."""
        return self.state in _IN_FLIGHT

    @property
    def may_lose_host(self) -> bool:
        """Whether its host copy may go for others."""
        return self.state in _STEPS["drop the host copy"]

    def check(self, operation: str) -> None:
        """Raise :class:`StateError` if the operation is not legal in the present state."""
        if self.state not in _STEPS[operation]:
            raise StateError(f"agent {self.agent!r} is {self.state.value}: cannot {operation}")

    def _step(self, operation: str) -> None:
        self.check(operation)
        self.state = _STEPS[operation][self.state]

    def place(self, slots: torch.Tensor) -> None:
        """The engine has computed it: ``absent`` or ``on host`` -> on the device."""
        self._step("place")
        self.slots = slots
        self.transfer = None

    def begin_save(self, host: HostCopy) -> None:
        """``resident`` -> ``saving``."""
        self._step("save")
        self.host = host

    def begin_evict(self, host: HostCopy | None = None) -> None:
        """-> ``evicting`` (with a new copy, or the one under way), or ``on host`` at once."""
        self._step("evict")
        if host is not None:
            self.host = host
        if self.state is Residency.HOST:
            self.slots = None

    def release(self) -> None:
        """Give up the slots without a copy."""
        self._step("release")
        self.slots = self.transfer = None

    def begin_load(self, slots: torch.Tensor) -> None:
        """``on host`` -> ``loading``."""
        self._step("load")
        self.slots = slots

    def drop_host(self) -> None:
        """Give up the host copy."""
        self._step("drop the host copy")
        self.host = None

    def forget(self) -> None:
        """Give up everything."""
        self._step("forget")
        self.slots = self.host = None

    def saved(self) -> None:
        """``saving`` -> ``resident and on host``, ``evicting`` -> ``on host``."""
        self._step("end a save")
        if self.state is Residency.HOST:
            self.slots = None

    def save_given_up(self) -> None:
        """``saving`` or ``evicting`` -> ``resident``: failed or cancelled."""
        self._step("give up a save")
        self.host = None

    def loaded(self) -> None:
        """``loading`` -> ``resident and on host``."""
        self._step("end a load")

    def load_given_up(self) -> None:
        """``loading`` -> ``on host``: failed or cancelled."""
        self._step("give up a load")
        self.slots = None

    def torn(self) -> None:
        """``loading`` -> ``torn``: failed or cancelled, and others may read the slots."""
        self._step("tear a load")

    def mended(self) -> None:
        """``torn`` -> ``resident and on host``."""
        self._step("mend")
