"""Size limits of the house: lines of a file, lines and complexity of a function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lizard

FILE_LINES, TEST_FILE_LINES = 500, 800
FUNCTION_LINES, COMPLEXITY = 60, 15
SUFFIXES = {".py", ".cpp", ".hpp"}


def _sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    return [Path(name) for name in listed if Path(name).suffix in SUFFIXES and Path(name).exists()]


def _faults(path: Path) -> list[str]:
    limit = TEST_FILE_LINES if "tests" in path.parts else FILE_LINES
    lines = len(path.read_text(encoding="utf-8").splitlines())
    faults = [f"{path}: {lines} lines, at most {limit}"] if lines > limit else []
    for function in lizard.analyze_file(str(path)).function_list:
        where = f"{path}:{function.start_line}: {function.name}"
        if function.length > FUNCTION_LINES:
            faults.append(f"{where}: {function.length} lines, at most {FUNCTION_LINES}")
        if function.cyclomatic_complexity > COMPLEXITY:
            faults.append(
                f"{where}: complexity {function.cyclomatic_complexity}, at most {COMPLEXITY}"
            )
    return faults


def main() -> int:
    """Print each fault; 1 when there is one."""
    sources = _sources()
    faults = [fault for path in sources for fault in _faults(path)]
    print("\n".join(faults) or f"size limits hold in {len(sources)} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
