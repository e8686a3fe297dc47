"""Fixtures of the tests on the real engine (see ``install.sh`` for their environment).

The plugin is loaded once, switched on, so that its hooks are in place; then ``TOPAS_ENABLE`` is 0:
``start`` builds stock engines, ``drive`` such that topas drives.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

os.environ.update({"SGLANG_PLUGINS": "topas", "TOPAS_ENABLE": "1"})
os.environ.pop("TOPAS_CONFIG", None)

import engine
import pytest
import tiny_model
import yaml

engine.load_plugins()
os.environ["TOPAS_ENABLE"] = "0"

pytest.register_assert_rewrite("driving", "residents")

import driving  # noqa: E402
from topas.sglang import plugin  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the tiny model."""
    return tiny_model.write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the directories of two LoRA adapters for the tiny model, ``a`` and ``b``."""
    directory = tmp_path_factory.mktemp("adapters")
    return {n: tiny_model.write_adapter(directory / n, seed=i) for i, n in enumerate("ab")}


@pytest.fixture
def start(model: Path) -> Iterator[Callable[..., engine.InProcessEngine]]:
    """Return a function that builds an engine (the one before is closed) on the tiny model."""
    running: list[engine.InProcessEngine] = []

    def build(**server_args: Any) -> engine.InProcessEngine:
        while running:
            running.pop().close()
        running.append(engine.InProcessEngine(**{"model_path": str(model), **server_args}))
        return running[-1]

    yield build
    while running:
        running.pop().close()


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> driving.Ticks:
    """Return the clock of the engines of ``drive``: it goes by passes, not by seconds."""
    clock = driving.Ticks()
    monkeypatch.setattr("topas.sglang.clock.time", clock)
    return clock


@pytest.fixture
def drive(
    start: Callable[..., engine.InProcessEngine],
    ticks: driving.Ticks,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Callable[..., engine.InProcessEngine]:
    """Return a function that builds an engine as ``start`` does, driven by topas.

    Its ``config`` is what the file that ``TOPAS_CONFIG`` names holds.
    """

    def build(config: Mapping[str, Any] | None = None, **server_args: Any) -> Any:
        ticks.now = 0.0
        with monkeypatch.context() as patch:
            patch.setenv("TOPAS_ENABLE", "1")
            if config is not None:
                path = tmp_path / "topas.yaml"
                path.write_text(yaml.safe_dump(dict(config)))
                patch.setenv("TOPAS_CONFIG", str(path))
            driven = start(**server_args)
        assert plugin.bridge_of(driven.scheduler) is not None, "topas does not drive"
        return driven

    return build


@pytest.fixture(scope="session")
def _known() -> dict[Any, list[int]]:
    """Return outputs of stock SGLang by request."""
    return {}


@pytest.fixture
def expected(
    start: Callable[..., engine.InProcessEngine], _known: dict[Any, list[int]]
) -> Callable[[list[driving.Asked]], dict[str, list[int]]]:
    """Return a function: what stock SGLang answers to these requests, without any shortage.

    It is to be called before the engine under test is built. What is known is not asked again.
    """

    def answers(asked: list[driving.Asked]) -> dict[str, list[int]]:
        fresh = [one for one in asked if one.key not in _known]
        if fresh:
            stock = start(max_total_tokens=16384, max_running_requests=32)
            assert plugin.bridge_of(stock.scheduler) is None
            for one in fresh:
                one.submit_to(stock)
            stock.run()
            stock.check_idle()
            _known.update({one.key: stock.outputs[one.rid].token_ids for one in fresh})
        return {one.rid: _known[one.key] for one in asked}

    return answers
