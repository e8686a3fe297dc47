"""Count the instructions of recorded decisions and events, and fail where they have grown.

    python bench/instructions.py            compare with bench/instructions.json
    python bench/instructions.py --update   write that file

The count is of one replay of each log under bench/states, inside the calls of the scheduler alone
(callgrind). Unlike a time it is nearly the same on every machine, for the same compiler.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import BENCH, compiler_of

FOLDER = Path(__file__).parent
RECORD = FOLDER / "instructions.json"
GROWTH = 0.05
COUNTED = "topas::bench::measured_call*"


def count(log: Path) -> int:
    """Instructions of the measured calls of a log."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", "-q", f"--toggle-collect={COUNTED}"]
        command += [f"--callgrind-out-file={out}", str(BENCH), "--count", str(log)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(
                f"{log.name}: {done.stderr.strip()}\n"
                "(where its events have become illegal, record anew: python bench/states.py)"
            )
        found = re.search(r"^summary: (\d+)", out.read_text(encoding="ascii"), re.MULTILINE)
    if found is None or not int(found[1]):
        sys.exit(f"{log.name}: nothing was counted in {COUNTED}")
    return int(found[1])


def tools() -> dict[str, str]:
    """What the count depends on besides the code."""
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    libc = " ".join(platform.libc_ver())
    return {"compiler": compiler_of(BENCH), "libc": libc, "valgrind": version.stdout.strip()}


def compare(counts: dict[str, int], recorded: dict[str, int]) -> list[str]:
    """Print each count beside the recorded one; what is wrong."""
    faults = []
    print(f"{'log':20} {'instructions':>14} {'recorded':>14} {'change':>8}")
    for name, now in counts.items():
        before = recorded.get(name)
        if before is None:
            faults.append(f"{name}: not in {RECORD.name}")
            continue
        change = now / before - 1
        print(f"{name:20} {now:14,} {before:14,} {change:+8.2%}")
        if change > GROWTH:
            faults.append(f"{name}: {change:+.1%}, more than {GROWTH:.0%} are not allowed")
    faults += [f"{name}: its log is gone" for name in recorded.keys() - counts.keys()]
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Count, then compare or write; 1 where a count has grown by too much."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--update", action="store_true", help=f"write {RECORD.name}")
    given = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: instructions are not counted (Debian: valgrind)")
        return 0
    if not BENCH.exists():
        print("topas_bench is not built: cmake --preset default && cmake --build --preset default")
        return 1
    logs = sorted((FOLDER / "states").glob("*.log"))
    with ThreadPoolExecutor(2) as pool:
        counts = dict(zip([log.stem for log in logs], pool.map(count, logs), strict=True))
    if given.update:
        RECORD.write_text(json.dumps({**tools(), "counts": counts}, indent=2) + "\n")
        print(f"{RECORD.name}: {sum(counts.values()):,} instructions in {len(counts)} logs")
        return 0
    recorded: dict[str, Any] = json.loads(RECORD.read_text(encoding="ascii"))
    for name, value in tools().items():
        if value != recorded[name]:
            print(f"{name}: {value}, the counts were recorded with {recorded[name]}")
    faults = compare(counts, recorded["counts"])
    print("\n".join(faults) or f"no count has grown by more than {GROWTH:.0%}")
    if faults:
        print("where it is worth it: python bench/instructions.py --update, and say why")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
