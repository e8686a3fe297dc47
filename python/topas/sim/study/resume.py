"""Files of finished runs, with which an interrupted command goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import topas
from topas.errors import ConfigError
from topas.sim.checks import file_errors

__all__ = ["ResumeFile", "code_files", "digest_of", "key_of"]

_LINE_START = '{"key": "'


def key_of(name: str, settings: Mapping[str, Any]) -> str:
    """Digest of all that a run depends on: its settings, and the code of topas.

    Parameters
    ----------
    name : str
        What errors call the run.
    settings : mapping
        Plain values.

    Raises
    ------
    ConfigError
        ``settings`` has a value that JSON has no form for.
    """
    everything = {**settings, "topas": [topas.__version__, _code_digest()]}
    try:
        text = json.dumps(everything, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: settings must be plain values: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def code_files(package: Path) -> list[Path]:
    """The modules that runs depend on, in a fixed order."""
    inside = [path for name in ("policies", "sim") for path in (package / name).rglob("*.py")]
    return sorted([*package.glob("*.py"), *inside])


def digest_of(package: Path, core: Path) -> str:
    """Digest of these modules and the core."""
    digest = hashlib.sha256()
    for file in code_files(package):
        digest.update(file.relative_to(package).as_posix().encode())
        digest.update(file.read_bytes())
    digest.update(core.read_bytes())
    return digest.hexdigest()


@cache
def _code_digest() -> str:
    """Digest of the modules that runs depend on: an edited policy is another cell."""
    return digest_of(Path(topas.__file__).parent, Path(topas._core.__file__ or ""))


class ResumeFile:
    """The finished runs of a sweep and of any others, one JSON line each.

    Parameters
    ----------
    path : Path
        The file; it, and its folder, are made where there is none. A last line that was interrupted
        is cut off.

    Raises
    ------
    ConfigError
        It is a file of something else, or cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, dict[str, Any]] = {}
        with file_errors(f"resume: {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()  # refused before the first run, not after it
            whole, _, rest = path.read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            self._read(number, line)
        if rest:  # an interrupted write
            if not rest.decode(errors="replace").startswith(_LINE_START[: len(rest)]):
                raise ConfigError(f"resume: {path}: its last line is none of a sweep's")
            os.truncate(path, path.stat().st_size - len(rest))

    def _read(self, number: int, line: bytes) -> None:
        try:
            row = json.loads(line)
            figures = {"metrics": row["metrics"]}
            if "jct_s" in row:
                figures["jct_s"] = row["jct_s"]
            self.found[row["key"]] = figures
        except (ValueError, TypeError, KeyError):
            raise ConfigError(
                f"resume: {self._path} line {number}: is no line of a sweep"
            ) from None

    def append(self, key: str, name: str, figures: Mapping[str, Any]) -> None:
        """Write one run; it is in the file when this returns.

        Parameters
        ----------
        key : str
            Of :func:`key_of`.
        name : str
            For who reads the file.
        figures : mapping
            ``metrics``, plain values, and ``jct_s`` if there are completion times.

        Raises
        ------
        ConfigError
            The file cannot be written.
        """
        line = json.dumps({"key": key, "cell": name, **figures}, allow_nan=False) + "\n"
        with file_errors(f"resume: {self._path}"), self._path.open("a", encoding="utf-8") as file:
            file.write(line)
