"""Snapshot files: one JSON object a line, in the form of docs/snapshots.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from topas import PRESETS, Config, Snapshot
from topas.errors import ConfigError, SnapshotError, TopasError

__all__ = [
    "Exact",
    "Expectation",
    "PresetName",
    "Samples",
    "SnapshotFile",
    "SnapshotLine",
    "located",
    "read_snapshots",
]

# What the commands that read snapshots ask for.
SnapshotFile = Annotated[
    Path, typer.Argument(help="Snapshots, one JSON object a line; - is stdin.")
]
PresetName = Annotated[
    str, typer.Option("--preset", help=f"What a config leaves out: {', '.join(PRESETS)}.")
]
Samples = Annotated[int | None, typer.Option(help="Sample every expectation with so many draws.")]
Exact = Annotated[bool, typer.Option("--exact", help="Enumerate every expectation.")]

#: The most joint outcomes that can be enumerated.
_EXACT_LIMIT = 1 << 20


@dataclass(frozen=True)
class Expectation:
    """How expectations are taken, when the command line says so.

    Parameters
    ----------
    exact : bool
        Enumerate always; a line with too many outcomes is refused.
    samples : int or None
        Sample always, with so many draws; ``None``: as the line's config says.
    """

    exact: bool = False
    samples: int | None = None

    def fields(self) -> dict[str, Any]:
        """The config fields that it overrides.

        Raises
        ------
        ConfigError
            Both ways at once, or fewer than one draw.
        """
        if self.exact and self.samples is not None:
            raise ConfigError("--exact and --samples exclude each other")
        if self.exact:
            return {"exact_limit": _EXACT_LIMIT, "samples": 0}
        if self.samples is None:
            return {}
        if self.samples < 1:
            raise ConfigError(f"--samples: must be at least 1, got {self.samples}")
        return {"exact_limit": 1, "samples": self.samples}


@dataclass(frozen=True)
class SnapshotLine:
    """One line of a snapshot file."""

    number: int
    snapshot: Snapshot
    config: Config


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    if str(path) == "-":
        yield sys.stdin
        return
    try:
        stream = path.open(encoding="utf-8")
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from None
    with stream:
        yield stream


def _parse(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:  # also an integer with too many digits
        raise SnapshotError(f"not JSON: {error}") from None
    except RecursionError:
        raise SnapshotError("not a snapshot: nested too deeply") from None
    if not isinstance(fields, dict):
        raise SnapshotError(f"snapshot: must be an object, got {text.strip()[:80]}")
    return fields


def _config(fields: dict[str, Any], preset: str, expectation: Expectation) -> Config:
    settings = fields.get("config")
    if not isinstance(settings, dict):
        raise SnapshotError("config: must be an object with the settings of the decision")
    return Config.from_dict({**settings, **expectation.fields()}, preset=preset)


@contextmanager
def located(path: Path, number: int) -> Iterator[None]:
    """Lead the message of an error with file and line number."""
    try:
        yield
    except TopasError as error:
        raise type(error)(f"{path}:{number}: {error}") from None


def read_snapshots(
    path: Path, preset: str, expectation: Expectation | None = None
) -> Iterator[SnapshotLine]:
    """Each line of a snapshot file; blank lines are passed over.

    Parameters
    ----------
    path : Path
        The file; ``-`` is standard input.
    preset : {"paper", "guarded", "default", "rollout"}
        What the line's config builds on.
    expectation : Expectation or None
        Overrides how expectations are taken.

    Raises
    ------
    TopasError
        Of the kind that fits, its message led by file and line number.
    """
    wanted = expectation or Expectation()
    wanted.fields()  # refused before anything is read
    with _open(path) as stream:
        number = 0
        try:
            for number, text in enumerate(stream, start=1):
                if text.strip():
                    with located(path, number):
                        fields = _parse(text)
                        snapshot = Snapshot.from_dict(fields)
                        line = SnapshotLine(number, snapshot, _config(fields, preset, wanted))
                    yield line
        except UnicodeDecodeError as error:
            raise SnapshotError(f"{path}:{number + 1}: not UTF-8: {error.reason}") from None
