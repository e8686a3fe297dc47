"""Prefixes under random operations: the steps against a model, the store in many threads."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topas.errors import CapacityError, StateError

torch = pytest.importorskip("torch", reason="copies of prefixes need torch")

from prefix_pool import (  # noqa: E402 - only where torch is
    PATIENCE_S,
    Broken,
    WrappedBackend,
    benches,
    bits,
    equal,
    scribble,
)
from topas.sglang.prefix_copy import CopyCancelled, CopyError, PrefixStore, Residency, Transfer  # noqa: E402
from topas.sglang.prefix_copy.arena import HostArena  # noqa: E402
from topas.sglang.prefix_copy.states import Prefix  # noqa: E402

bench = pytest.fixture(benches)


# ---- the state machine against a model of two places


class Places:
    """What a prefix is, told as what each place holds: ``no``, ``yes``, ``filling`` or ``torn``."""

    def __init__(self) -> None:
        self.device, self.host, self.leaving = "no", "no", False

    def step(self, operation: str) -> bool:
        """Whether the operation is legal; does it if so."""
        device, host = self.device, self.host
        legal: dict[str, tuple[bool, tuple[str, str, bool]]] = {
            "place": (device == "no", ("yes", host, False)),
            "begin_save": ((device, host) == ("yes", "no"), ("yes", "filling", False)),
            "begin_evict": (
                device == "yes" and not self.leaving,
                ("no", "yes", False) if host == "yes" else ("yes", "filling", True),
            ),
            "release": (device == "yes" and host != "filling", ("no", host, False)),
            "begin_load": ((device, host) == ("no", "yes"), ("filling", "yes", False)),
            "drop_host": (host == "yes" and device in ("yes", "no"), (device, "no", False)),
            "forget": (
                (device, host) != ("no", "no") and "filling" not in (device, host),
                ("no", "no", False),
            ),
            "saved": (host == "filling", ("no" if self.leaving else "yes", "yes", False)),
            "save_given_up": (host == "filling", ("yes", "no", False)),
            "loaded": (device == "filling", ("yes", "yes", False)),
            "load_given_up": (device == "filling", ("no", "yes", False)),
            "torn": (device == "filling", ("torn", "yes", False)),
            "mended": (device == "torn", ("yes", "yes", False)),
        }
        is_legal, after = legal[operation]
        if is_legal:
            self.device, self.host, self.leaving = after
        return is_legal

    @property
    def state(self) -> Residency:
        return {
            ("no", "no", False): Residency.ABSENT,
            ("yes", "no", False): Residency.RESIDENT,
            ("yes", "filling", False): Residency.SAVING,
            ("yes", "filling", True): Residency.EVICTING,
            ("yes", "yes", False): Residency.RESIDENT_AND_HOST,
            ("no", "yes", False): Residency.HOST,
            ("filling", "yes", False): Residency.LOADING,
            ("torn", "yes", False): Residency.TORN,
        }[self.device, self.host, self.leaving]


OPERATIONS = [
    *("place", "begin_save", "begin_evict", "release", "begin_load", "drop_host", "forget"),
    *("saved", "save_given_up", "loaded", "load_given_up", "torn", "mended"),
]


@given(st.lists(st.sampled_from(OPERATIONS), max_size=40))
def test_every_sequence_of_steps_is_as_the_model_says(operations: list[str]) -> None:
    prefix, model = Prefix("a"), Places()
    slots, host = torch.arange(1), HostArena(torch.empty(256, dtype=torch.uint8)).allocate([])
    arguments: dict[str, list[Any]] = {
        "place": [slots],
        "begin_save": [host],
        "begin_load": [slots],
    }
    for operation in operations:
        given_host = [host] if operation == "begin_evict" and model.host == "no" else []
        call = getattr(prefix, operation)
        before = prefix.state
        if model.step(operation):
            call(*arguments.get(operation, given_host))
        else:
            with pytest.raises(StateError, match=f"agent 'a' is {before.value}: cannot "):
                call(*arguments.get(operation, given_host))
        assert prefix.state is model.state
        assert (prefix.slots is not None) == (model.device != "no")
        assert (prefix.host is not None) == (model.host != "no")


# ---- many operations at once


class Client:
    """Random operations on agents and slots of its own, against what each must hold."""

    def __init__(self, store: PrefixStore, tensors: list[Any], number: int, seed: int) -> None:
        self.store, self.tensors = store, tensors
        self.random = random.Random(seed)
        self.agents = [f"{number}/{index}" for index in range(3)]
        self.first = number * 42  # its part of the pool: 42 slots for three prefixes of up to 14
        self.free = list(range(self.first, self.first + 42))
        self.content: dict[str, list[Any]] = {}
        self.length = {agent: self.random.randint(4, 14) for agent in self.agents}
        self.done: set[str] = set()

    def take(self, agent: str) -> Any:
        self.random.shuffle(self.free)
        taken = [self.free.pop() for _ in range(self.length[agent])]
        scribble(self.tensors, torch.tensor(taken), seed=self.random.randrange(1 << 20))
        return torch.tensor(taken)

    def give(self, slots: Any) -> None:
        """Freed slots are another's at once: a late copy would show."""
        scribble(self.tensors, slots, seed=self.random.randrange(1 << 20))
        self.free += slots.tolist()

    def step(self) -> None:
        agent = self.random.choice(self.agents)
        state = self.store.state(agent)
        if state is Residency.ABSENT:
            self.place(agent)
        elif state in (Residency.RESIDENT, Residency.RESIDENT_AND_HOST):
            self.leave(agent)
        elif state is Residency.HOST:
            self.enter(agent)
        self.done.add(state.value)

    def place(self, agent: str) -> None:
        slots = self.take(agent)
        self.content[agent] = bits(self.tensors, slots)
        self.store.place(agent, range(self.length[agent]), slots)

    def leave(self, agent: str) -> None:
        operation = self.random.choice(["save", "evict", "evict", "release", "check"])
        prefix = self.store._prefixes[agent]
        slots = prefix.slots
        assert equal(bits(self.tensors, slots), self.content[agent])
        try:
            if operation == "release":
                self.give(self.store.release(agent))
            elif operation != "check":
                transfer = getattr(self.store, operation)(agent)
                self.settle(agent, transfer, slots)
        except StateError:
            assert operation == "save"  # it has its copy already
        except CapacityError:
            pass  # others are in flight

    def enter(self, agent: str) -> None:
        slots = self.take(agent)
        try:
            self.settle(agent, self.store.load(agent, slots), slots)
        except StateError:  # its host copy has gone for another's meanwhile
            assert self.store.state(agent) is Residency.ABSENT
            self.give(slots)

    def settle(self, agent: str, transfer: Transfer, slots: Any) -> None:
        """The copy ends, by itself or not; whoever has the slots now is told."""
        try:
            if self.random.random() < 0.3 and not transfer.is_over:
                try:
                    self.store.cancel(agent)
                except StateError:
                    assert transfer.is_over
            transfer.wait()
        except (CopyCancelled, CopyError):
            if transfer.direction == "load":
                self.give(slots)
            else:
                assert equal(bits(self.tensors, slots), self.content[agent])
            return
        if transfer.direction == "load":
            assert equal(bits(self.tensors, slots), self.content[agent])
        elif self.store._prefixes.get(agent) is None or self.store._prefixes[agent].slots is None:
            self.give(slots)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_random_operations(bench: Any, clients: int, seed: int) -> None:
    noise = random.Random(seed)

    def hook(direction: str, step: str) -> None:
        if step.startswith("group"):
            threading.Event().wait(noise.choice([0.0, 0.0, 0.001]))
            if noise.random() < 0.02:
                raise Broken

    b = bench(WrappedBackend(hook), copies=1.2 * clients)
    parts = [Client(b.store, b.tensors, number, 10 * seed + number) for number in range(clients)]
    errors: list[BaseException] = []

    def run(client: Client) -> None:
        try:
            for _ in range(200):
                client.step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE_S)
        assert not thread.is_alive(), "hangs"
    if errors:
        raise errors[0]
    used = sum(p.host.taken for p in b.store._prefixes.values() if p.host is not None)
    assert b.store.host_bytes_used == used
    counts = b.store.counts()
    assert min(counts.saves, counts.loads, counts.failures, counts.cancellations) > 0
    assert counts.host_evictions > 0
