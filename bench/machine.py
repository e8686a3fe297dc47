"""Where figures come from: processor, compiler, commit, versions."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "build" / "default" / "bench" / "cpp" / "topas_bench"


def compiler_of(binary: Path) -> str:
    """The compiler that a binary says it was made with."""
    found = re.findall(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", binary.read_bytes())
    return ", ".join(sorted({name.decode() for name in found})) or "unknown"


def processor() -> str:
    """Model of the processor and how many there are."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return f"{found[1] if found else platform.processor() or platform.machine()} x {os.cpu_count()}"


def commit() -> str:
    """The commit of the working tree, with ``+`` where it has changes."""
    short = _output("git", "rev-parse", "--short", "HEAD") or "unknown"
    return short + ("+" if _output("git", "status", "--porcelain", "-uno") else "")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def description() -> dict[str, str]:
    """All of it, for the head of a report."""
    from topas import _core

    return {
        "processor": processor(),
        "compiler": compiler_of(Path(_core.__file__)),
        "commit": commit(),
        "python": platform.python_version(),
        "topas": metadata.version("topas"),
        "numpy": metadata.version("numpy"),
        "system": platform.platform(),
    }
