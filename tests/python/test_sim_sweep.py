"""Sweeps: parallel, resumable, the same bytes however they came about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import topas
from topas.errors import ConfigError
from topas.sim import EngineOptions, Lengths, make_workload, run_policy
from topas.sim.study.resume import code_files, digest_of
from topas.sim.study.sweep import Cell, CellResult, run_cells

SHORT = Lengths(input_tokens=100, output_tokens=40)


def _cell(policy: str = "fcfs", seed: int = 1, **fields: object) -> Cell:
    cell = Cell(workload="chain-3", tasks=3, rate=0.2, seed=seed, policy=policy, lengths=SHORT)
    return replace(cell, **fields)  # type: ignore[arg-type]


CELLS = [_cell(policy, seed) for policy in ("fcfs", "topas") for seed in (1, 2, 3)]


def _bytes(results: list[CellResult]) -> str:
    return json.dumps([[r.cell.name, r.metrics, r.jct_s, r.error] for r in results])


def test_a_cell_has_the_figures_of_the_run() -> None:
    (result,) = run_cells([_cell("topas", with_jct=True)], processes=1)
    workload = make_workload("chain-3", tasks=3, rate=0.2, seed=1, lengths=SHORT)
    run, _ = run_policy(workload, "topas")
    expected = run.to_dict()
    assert result.jct_s == list(expected.pop("jct_s").values())
    del expected["cancelled_tasks"], expected["unfinished_tasks"]
    assert result.metrics == expected
    assert result.error == ""


def test_completion_times_only_if_asked_for() -> None:
    assert run_cells([_cell()], processes=1)[0].jct_s is None


def test_processes_and_interruptions_do_not_show(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "cells.jsonl"
    expected = _bytes(run_cells(CELLS, processes=1))
    assert _bytes(run_cells(CELLS, processes=2, resume=file)) == expected
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(CELLS)
    file.write_bytes(b"".join(lines[:2]) + lines[2][:25])  # as a kill leaves it
    told: list[CellResult] = []
    assert _bytes(run_cells(CELLS, processes=1, resume=file, on_cell=told.append)) == expected
    assert len(told) == len(CELLS)
    assert sorted(file.read_bytes().splitlines()) == sorted(line.strip() for line in lines)
    assert _bytes(run_cells(CELLS[::-1], processes=2, resume=file)) == _bytes(
        run_cells(CELLS, processes=1)[::-1]
    )
    assert len(file.read_bytes().splitlines()) == len(CELLS)  # nothing was run again


def test_what_is_in_the_file_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    run_cells([_cell()], processes=1, resume=file)
    row = json.loads(file.read_text())
    row["metrics"]["mean_jct_s"] = -1.0
    file.write_text(json.dumps(row) + "\n")
    cached, fresh = run_cells([_cell(label="x"), _cell(seed=2)], processes=1, resume=file)
    assert cached.metrics["mean_jct_s"] == -1.0
    assert cached.cell.label == "x"
    assert fresh.metrics["mean_jct_s"] > 0.0


@pytest.mark.parametrize(
    "changed",
    [
        {"workload": "dag-4"},
        {"tasks": 4},
        {"rate": 0.3},
        {"policy": "lpm"},
        {"lengths": None},
        {"options": EngineOptions(max_running=3)},
        {"config": {"age_weight": 0.5}},
        {"with_jct": True},
        {"seed": 2},
    ],
)
def test_all_settings_are_in_the_key(changed: dict[str, object]) -> None:
    assert _cell(**changed).key() != _cell().key()  # type: ignore[arg-type]
    assert _cell(label="other name").key() == _cell().key()


def test_the_version_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _cell().key()
    monkeypatch.setattr("topas.__version__", "999")
    assert _cell().key() != before


def test_the_code_of_every_module_of_a_run_is_in_the_key(tmp_path: Path) -> None:
    package, core = tmp_path / "topas", tmp_path / "core.so"
    files = ("config.py", "sim/engine.py", "sim/cost/linear.py", "policies/base.py")
    for name in (*files, "cli/app.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x = 1")
    core.write_bytes(b"\0")
    digests = {digest_of(package, core)}
    for name in files:
        (package / name).write_text("x = 2")
        digests.add(digest_of(package, core))
    (package / "sim/cost/linear.py").rename(package / "sim/linear.py")
    digests.add(digest_of(package, core))
    core.write_bytes(b"\1")
    digests.add(digest_of(package, core))
    assert len(digests) == 1 + len(files) + 2
    (package / "cli/app.py").write_text("x = 2")
    assert digest_of(package, core) in digests


def test_all_that_a_sweep_imports_is_in_the_digest() -> None:
    script = (
        "import sys, topas.sim.study.sweep\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if name.partition('.')[0] == 'topas' and module.__file__.endswith('.py'):\n"
        "        print(module.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    imported = {Path(line).resolve() for line in done.stdout.splitlines()}
    covered = {file.resolve() for file in code_files(Path(topas.__file__).parent)}
    assert len(imported) > 20
    assert imported <= covered


def test_equal_cells_are_run_once(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    one, two = run_cells([_cell(), _cell(label="again")], processes=1, resume=file)
    assert (one.cell.label, two.cell.label) == ("", "again")
    assert one.metrics == two.metrics
    assert len(file.read_text().splitlines()) == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_names_its_cell_and_spares_the_others(tmp_path: Path, processes: int) -> None:
    file = tmp_path / "cells.jsonl"
    cells = [_cell(), _cell("no-such"), _cell("topas", config={"age_weight": -1.0}), _cell(seed=2)]
    results = run_cells(cells, processes=processes, resume=file)
    assert [bool(result.error) for result in results] == [False, True, True, False]
    assert "chain-3 rate 0.2 seed 1 no-such: ConfigError: policy: unknown" in (
        results[1].describe_error()
    )
    assert "seed 1 topas: ConfigError: age_weight" in results[2].describe_error()
    assert results[1].metrics == {}
    assert results[0].describe_error() == ""
    assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# a list\n", "line 1: is no line of a sweep"),
        ('{"key": "x", "metrics": {}}\n[1]\n', "line 2: is no line of a sweep"),
        ("my notes, without a newline", "last line is none of a sweep's"),
        ("é", "last line is none of a sweep's"),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        run_cells([_cell()], processes=1, resume=file)
    assert file.read_text(encoding="utf-8") == content


def test_bad_arguments() -> None:
    with pytest.raises(ConfigError, match="processes: must be an integer of at least 1, got 0"):
        run_cells([_cell()], processes=0)
    with pytest.raises(ConfigError, match="seed 1 topas: settings must be plain values"):
        _cell("topas", config={"age_weight": object()}).key()
    assert run_cells([]) == []


_SCRIPT = """
import signal
import sys
from topas.sim import Lengths
from topas.sim.study.sweep import Cell, run_cells

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    cells = [
        Cell(workload="metagpt-tl", tasks=60, rate=0.0175, seed=seed, policy="topas")
        for seed in range(400)
    ]
    run_cells(cells, processes=2, resume=sys.argv[1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process groups as a terminal has them")
def test_ctrl_c_leaves_a_file_to_go_on_from(tmp_path: Path) -> None:
    script, file = tmp_path / "sweep.py", tmp_path / "cells.jsonl"
    script.write_text(_SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(file)], start_new_session=True, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and file.read_bytes().count(b"\n") >= 3:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in error
    finished = file.read_bytes().count(b"\n")
    assert 3 <= finished < 400
    seeds = [int(json.loads(line)["cell"].split()[4]) for line in file.read_text().splitlines()]
    cells = [
        Cell(workload="metagpt-tl", tasks=60, rate=0.0175, seed=seed, policy="topas")
        for seed in seeds[:3]
    ]
    before = file.read_bytes()
    assert all(result.metrics for result in run_cells(cells, processes=1, resume=file))
    assert file.read_bytes() == before
