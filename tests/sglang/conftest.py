"""Fixtures of the tests on the real engine (see ``install.sh`` for their environment)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import engine  # before anything imports SGLang: it sets the environment
import pytest
import tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the tiny model."""
    return tiny_model.write_model(tmp_path_factory.mktemp("models") / "tiny")


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
