"""The commands ``topas decide`` and ``topas explain``, and files that no command can use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import topas
from strategies import random_snapshot
from topas.cli.app import app
from typer.testing import CliRunner

SNAPSHOT = {
    "config": {
        "kv_capacity_tokens": 1000,
        "kv_bytes_per_token": 1e5,
        "swap_bytes_per_s": 1e9,
        "decode_s_per_token": 0.02,
        "age_scale_s": 10.0,
        "reuse_weight": 0.0,
    },
    "now": 1.0,
    "agents": [{"id": "coder", "prefix_tokens": 300}, {"id": "tester", "prefix_tokens": 300}],
    "profiles": [{"id": 0, "totals_s": [4.0], "request_s": 4.0}],
    "tasks": [
        {
            "id": "t",
            "arrival": 0.0,
            "stages": [
                {"agent": name, "after": [], "profile": 0, "completed": False, "service_s": 0.0}
                for name in ("coder", "tester")
            ],
        }
    ],
    "requests": [
        {
            "id": name,
            "task": "t",
            "stage": stage,
            "agent": agent,
            "kv_tokens": tokens,
            "expected_service_s": 4.0,
            "running": False,
            "generated_tokens": 0,
            "credit": 0.0,
        }
        for name, stage, agent, tokens in (
            ("fits", 0, "coder", 100),
            ("late", 1, "tester", 600),
            ("huge", 0, "coder", 800),
        )
    ],
    "resident": [],
}


TOPAS = (sys.executable, "-c", "from topas.cli import main; main()")


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [*TOPAS, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def lines(*snapshots: dict) -> str:
    return "".join(json.dumps(snapshot) + "\n" for snapshot in snapshots)


def refused(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, "one line, no traceback"
    return result.stderr


class TestDecide:
    def test_prints_one_json_line_a_snapshot(self, tmp_path: Path) -> None:
        states = [random_snapshot(seed) for seed in range(20)]
        file = tmp_path / "states.jsonl"
        file.write_text(lines(*states), encoding="utf-8")
        result = run("decide", str(file))
        assert result.returncode == 0, result.stderr
        printed = [json.loads(line) for line in result.stdout.splitlines()]
        assert len(printed) == len(states)
        for state, answer in zip(states, printed, strict=True):
            config = topas.Config.from_dict(state["config"])
            decision = topas.decide(topas.Snapshot.from_dict(state), config)
            assert answer == json.loads(json.dumps(decision.to_dict()))

    def test_the_preset_fills_in_what_the_line_leaves_open(self) -> None:
        state = json.loads(json.dumps(SNAPSHOT))
        state["resident"] = ["tester"]
        state["requests"][1].update(running=True, generated_tokens=100, credit=0.0)
        answers = {
            preset: json.loads(run("decide", "-", "--preset", preset, text=lines(state)).stdout)
            for preset in ("paper", "guarded")
        }
        for preset, weight in (("paper", 1.0), ("guarded", 3.0)):
            config = topas.Config.from_dict(state["config"], preset=preset)
            assert config.redo_weight == weight
            decision = topas.decide(topas.Snapshot.from_dict(state), config)
            assert answers[preset]["terms"] == decision.terms.to_dict()

    def test_blank_lines_are_passed_over(self) -> None:
        result = run("decide", "-", text="\n" + lines(SNAPSHOT) + "  \n")
        assert len(result.stdout.splitlines()) == 1

    def test_samples_and_exact_agree_on_an_expectation_of_one_outcome(self) -> None:
        sampled = run("decide", "-", "--samples", "16", text=lines(SNAPSHOT))
        exact = run("decide", "-", "--exact", text=lines(SNAPSHOT))
        assert sampled.stdout == exact.stdout != ""

    def test_exact_refuses_what_cannot_be_enumerated(self) -> None:
        state = json.loads(json.dumps(SNAPSHOT))
        state["profiles"][0]["totals_s"] = [1.0 + n for n in range(1100)]
        text = lines(SNAPSHOT, state)
        message = refused(run("decide", "-", "--preset", "paper", "--exact", text=text))
        assert "-:2: " in message
        assert "joint outcomes" in message

    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ('{"now": 1', ("-:1: ", "not JSON")),
            ("[1, 2]", ("-:1: ", "must be an object")),
            ("1" * 5000, ("-:1: ", "not JSON")),
            (lines({**SNAPSHOT, "now": "x"}), ("-:1: now: ", "'x'")),
            (lines(SNAPSHOT, {**SNAPSHOT, "now": None}), ("-:2: now: ", "None")),
            (lines({**SNAPSHOT, "resident": ["nobody"]}), ("resident[0]", "'nobody'")),
            (lines({**SNAPSHOT, "config": 3}), ("config: ",)),
            (lines({**SNAPSHOT, "config": {"kv_capacity": 1}}), ("kv_capacity: ", "unknown")),
            (lines({**SNAPSHOT, "config": {}}), ("kv_capacity_tokens: ", "missing")),
        ],
    )
    def test_names_line_and_field_of_bad_input(self, text: str, parts: tuple[str, ...]) -> None:
        message = refused(run("decide", "-", text=text))
        for part in parts:
            assert part in message

    @pytest.mark.parametrize("value", ["-1", "NaN", "Infinity", '"5"', "true", "null", "1e400"])
    def test_names_a_bad_setting(self, value: str) -> None:
        text = lines(SNAPSHOT).replace(
            '"swap_bytes_per_s": 1000000000.0', f'"swap_bytes_per_s": {value}'
        )
        message = refused(run("decide", "-", text=text))
        assert "swap_bytes_per_s: " in message

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            (("/no/such/file",), "No such file"),
            (("-", "--preset", "best"), "'best'"),
            (("-", "--samples", "0"), "--samples"),
            (("-", "--exact", "--samples", "3"), "exclude"),
        ],
    )
    def test_names_bad_arguments(self, arguments: tuple[str, ...], part: str) -> None:
        assert part in refused(run("decide", *arguments, text=lines(SNAPSHOT)))

    def test_prints_the_answers_before_a_bad_line(self) -> None:
        result = run("decide", "-", text=lines(SNAPSHOT) + "{\n")
        assert len(result.stdout.splitlines()) == 1
        assert result.returncode == 2

    def test_not_utf8(self, tmp_path: Path) -> None:
        file = tmp_path / "states.jsonl"
        file.write_bytes(b"\xff\xfe\n")
        assert "not UTF-8" in refused(run("decide", str(file)))


class TestExplain:
    def test_shows_the_choice_the_score_the_runners_up_and_who_waits(self) -> None:
        result = run("explain", "-", "--preset", "paper", text=lines(SNAPSHOT))
        assert result.returncode == 0, result.stderr
        for part in (
            "resident prefixes  'coder'",
            "admit, in order    'fits'",
            "Best candidates (",
            "prefix sets packed",
            "its prefix is not kept",
            "can never fit: needs 800 of 1000 tokens",
        ):
            assert part in result.stdout

    def test_explains_the_line_asked_for(self) -> None:
        other = {**SNAPSHOT, "requests": []}
        result = run("explain", "-", "--line", "2", text=lines(SNAPSHOT, other))
        assert "admit, in order    none" in result.stdout

    def test_says_so_when_nothing_is_feasible(self) -> None:
        state = json.loads(json.dumps(SNAPSHOT))
        state["config"].update(kv_capacity_tokens=500, action_cap=1)
        state["resident"] = ["coder", "tester"]
        state["requests"] = [
            {**state["requests"][0], "id": name, "kv_tokens": tokens, "running": name != "waits"}
            for name, tokens in (("one", 400), ("two", 400), ("three", 400), ("waits", 100))
        ]
        result = run("explain", "-", text=lines(state))
        assert "more is running than the limits allow" in result.stdout

    @pytest.mark.parametrize("line", ["0", "5"])
    def test_refuses_a_line_that_is_not_there(self, line: str) -> None:
        assert "line" in refused(run("explain", "-", "--line", line, text=lines(SNAPSHOT)))

    def test_refuses_no_candidates(self) -> None:
        assert "top" in refused(run("explain", "-", "--top", "0", text=lines(SNAPSHOT)))


class TestFiles:
    """FOLDER is a folder, TEXT a file of something else, BYTES one that is no text."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("simulate --trace FOLDER", "FOLDER: Is a directory"),
            ("simulate --trace BYTES", "BYTES: not UTF-8: invalid start byte at byte 0"),
            ("simulate --workflows TEXT/x", "TEXT/x: Not a directory"),
            ("simulate --workflows TEXT", "TEXT: not JSON: "),
            ("simulate --workflows BYTES", "BYTES: not UTF-8: "),
            ("simulate dag-4 --costs FOLDER", "costs: FOLDER: Is a directory"),
            ("simulate dag-4 --costs BYTES", "costs: BYTES: not UTF-8: "),
            ("advise dag-4 --rate 1 --tasks 2 --resume FOLDER", "resume: FOLDER: Is a directory"),
            ("advise dag-4 --rate 1 --tasks 2 --resume TEXT", "resume: TEXT: its last line"),
            ("phase-map dag-4 --quick --out TEXT", "--out TEXT: File exists"),
            ("phase-map dag-4 --quick --out TEXT/x", "--out TEXT/x: Not a directory"),
            ("reproduce fig2 --out TEXT", "--out TEXT: File exists"),
            ("reproduce fig2 --out TEXT/x", "--out TEXT/x: Not a directory"),
            ("convert-trace FOLDER/x out --to compact", "FOLDER/x: No such file or directory"),
        ],
    )
    def test_are_named_before_anything_runs(
        self, arguments: str, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "notes").write_text("notes")
        (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
        for name, path in (("FOLDER", "folder"), ("TEXT", "notes"), ("BYTES", "bytes")):
            arguments = arguments.replace(name, str(tmp_path / path))
            message = message.replace(name, str(tmp_path / path))
        error = CliRunner().invoke(app, arguments.split()).exception
        assert isinstance(error, topas.TopasError)
        assert str(error).startswith(message)
        assert (tmp_path / "notes").read_text() == "notes"

    def test_a_trace_that_cannot_be_written(self, tmp_path: Path) -> None:
        source = tmp_path / "trace.jsonl"
        source.write_text(
            '{"session":"s","stage":"a","agent":"x","round":0,"after":[],"input_tokens":9,'
            '"output_tokens":5,"shared_tokens":0,"api_s":1,"tool_wait_s":0,"t":0}\n'
        )
        arguments = ["convert-trace", str(source), str(tmp_path), "--to", "compact"]
        error = CliRunner().invoke(app, arguments).exception
        assert isinstance(error, topas.TraceError)
        assert str(error) == f"{tmp_path}: Is a directory"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
    @pytest.mark.parametrize("command", [("profiles", "--json"), ("--version",)])
    def test_output_that_finds_no_room(self, command: tuple[str, ...]) -> None:
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                [*TOPAS, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert result.returncode == 2
        assert result.stderr == "error: output: No space left on device\n"


def test_version() -> None:
    assert run("--version").stdout == f"topas {topas.__version__}\n"
