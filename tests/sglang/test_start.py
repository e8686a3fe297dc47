"""Topas is active in every scheduler process, once, or the start is refused with the reason."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import sglang
from driving import VERSION, bridge_of, token_ids, tokens
from server import ARGUMENTS, Process, Server, write_plugin
from sglang.srt.plugins.hook_registry import HookRegistry
from topas.errors import ConfigError
from topas.sglang import plugin
from topas.sglang.plugin import HOOKS, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engine import InProcessEngine

    Build = Callable[..., InProcessEngine]

ACTIVE = "policy=topas"
ON = {"SGLANG_PLUGINS": "topas", "TOPAS_ENABLE": "1"}
TARGETS = [target for target, _, _ in HOOKS]
NAMES = [target.rpartition(".")[2] for target in TARGETS]
PROMPT = tokens(3, 40)

processes = pytest.mark.skipif(
    VERSION != (0, 5, 23), reason="in processes of their own only the newest is tried"
)


def owner_of(target: str) -> tuple[type, str]:
    """Return the class and the name that a dotted path means."""
    module, owner, name = target.rsplit(".", 2)
    return getattr(sys.modules[module], owner), name


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if ACTIVE in message]


# ---- in this process: what is active


def test_a_driven_scheduler_says_so_once(drive: Build, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "topas"):
        drive({"preset": "paper"}, max_running_requests=5)
    assert lines(caplog) == [
        f"policy=topas preset=paper rank=0 sglang={sglang.__version__} capacity=4096 tokens "
        "page_size=1 max_running=5"
    ]


def test_a_scheduler_of_a_process_switched_off_is_stock(
    start: Build, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "topas"):
        engine = start()
        engine.submit("a", PROMPT, 4)
        engine.run()
    assert plugin.bridge_of(engine.scheduler) is None
    assert lines(caplog) == []
    assert len(engine.outputs["a"].token_ids) == 4


def test_two_engines_in_turn_are_driven_apart(drive: Build) -> None:
    first = drive()
    first.submit("a", PROMPT, 4)
    first.run()
    before = bridge_of(first)
    second = drive()
    second.submit("a", PROMPT, 4)
    second.run()
    assert bridge_of(second) is not before
    assert before.counts.admissions == bridge_of(second).counts.admissions == 1


# ---- in this process: what is refused


def test_after_a_refusal_the_next_start_is_clean(drive: Build) -> None:
    with pytest.raises(PluginError):
        drive(schedule_policy="lpm")
    engine = drive()
    engine.submit("a", PROMPT, 4)
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize("target", TARGETS[1:], ids=NAMES[1:])
def test_a_method_of_another_name_is_refused(
    drive: Build, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    owner, name = owner_of(target)
    method = getattr(owner, name)
    monkeypatch.delattr(owner, name)
    monkeypatch.setattr(owner, name + "_renamed", method, raising=False)
    message = f"hooks did not take in SGLang {sglang.__version__}: {target}"
    with pytest.raises(PluginError, match=f"^{re.escape(message)}$"):
        drive()


@pytest.mark.parametrize("target", TARGETS[1:], ids=NAMES[1:])
def test_a_hook_that_did_not_take_is_refused(
    drive: Build, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    owner, name = owner_of(target)
    monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)
    with pytest.raises(PluginError, match=f"hooks did not take.*: {re.escape(target)}$"):
        drive()


def test_all_that_is_missing_is_named(drive: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in TARGETS[1:3]:
        monkeypatch.delattr(*owner_of(target))
    with pytest.raises(PluginError, match=re.escape(f": {TARGETS[1]}, {TARGETS[2]}") + "$"):
        drive()


def test_a_hook_of_a_neighbour_on_top_of_ours_is_fine(
    drive: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    passes = []
    owner, name = owner_of(TARGETS[1])

    def neighbour(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        passes.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, _wrap_fn(getattr(owner, name), neighbour, HookType.AROUND))
    engine = drive()
    engine.submit("a", PROMPT, 4)
    engine.run()
    assert len(passes) == bridge_of(engine).counts.passes > 0


def test_a_scheduler_that_was_hooked_before_is_refused_when_the_plugins_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPAS_ENABLE", "1")
    assert TARGETS[0] in HookRegistry._patched
    with pytest.raises(SystemExit, match=r"topas: .*Scheduler.__init__ was hooked before"):
        plugin.activate()


def test_an_sglang_without_a_scheduler_is_refused_when_the_plugins_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPAS_ENABLE", "1")
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.delattr("sglang.srt.managers.scheduler.Scheduler")
    reason = rf"topas: this SGLang \({re.escape(sglang.__version__)}\) has no .*Scheduler.__init__"
    with pytest.raises(SystemExit, match=reason):
        plugin.activate()


@pytest.mark.parametrize("version", ["0.5.15", "0.5.24", "0.6.0", "0.5.23rc1"])
def test_another_version_is_refused_unless_it_is_allowed(
    drive: Build, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(sglang, "__version__", version)
    with pytest.raises(
        PluginError,
        match=f"^SGLang {version} is not supported: topas is tested with 0.5.16 to 0.5.23 ",
    ):
        drive()
    drive({"allow_untested_version": True})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("schedule_policy", "lpm"),
        ("schedule_policy", "dfs-weight"),
        ("enable_priority_scheduling", True),
        ("disable_radix_cache", True),
        ("is_embedding", True),
        ("enable_hierarchical_cache", True),
        ("speculative_algorithm", "NGRAM"),
        ("disaggregation_mode", "prefill"),
    ],
)
def test_a_server_argument_that_topas_does_not_go_with_is_refused(
    drive: Build, option: str, value: Any
) -> None:
    words = re.escape(f"--{option.replace('_', '-')} (now {value!r}): ")
    with pytest.raises(PluginError, match=rf"^cannot start with {words}\w+"):
        drive(**{option: value})


def test_several_reasons_are_all_told(drive: Build) -> None:
    with pytest.raises(PluginError, match=r"--schedule-policy .*; --disable-radix-cache "):
        drive(schedule_policy="lpm", disable_radix_cache=True)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("TOPAS_ENABLE", "maybe", "TOPAS_ENABLE: .*got 'maybe'"),
        ("TOPAS_CONFIG", "/not/there.yaml", "TOPAS_CONFIG: /not/there.yaml: .*No such file"),
    ],
)
def test_a_bad_environment_is_refused(
    start: Build, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv("TOPAS_ENABLE", "1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=reason):
        start()


def test_a_bad_setting_is_refused(drive: Build) -> None:
    with pytest.raises(ConfigError, match=r"TOPAS_CONFIG: .*: reask_s: .*got -1"):
        drive({"reask_s": -1})
    with pytest.raises(ConfigError, match=r"TOPAS_CONFIG: .*: policy.samples: .*got -5"):
        drive({"policy": {"samples": -5}})


# ---- in processes of their own

ENGINE = """
import json, sys
import sglang

if __name__ == "__main__":
    arguments, prompt = json.loads(sys.argv[1])
    engine = sglang.Engine(**arguments)
    sampling = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    answer = engine.generate(input_ids=prompt, sampling_params=sampling)
    print("ANSWER", json.dumps(answer["output_ids"]))
    engine.shutdown()
"""

FORKS = """
import json, multiprocessing, os, sys
from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.server_args import PortArgs, ServerArgs

def neighbour(original, scheduler, *args, **kwargs):
    if not hasattr(scheduler, "neighbour"):
        scheduler.neighbour = print("NEIGHBOUR", flush=True)
    return original(scheduler, *args, **kwargs)

HookRegistry.register(
    "sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw", neighbour, HookType.AROUND
)
load_plugins()
arguments = ServerArgs(**json.loads(sys.argv[1]))
context = multiprocessing.get_context("fork")
for switch in ("1", "0"):
    os.environ["TOPAS_ENABLE"] = switch
    reader, writer = context.Pipe(False)
    ports = PortArgs.init_new(arguments)
    child = context.Process(
        target=run_scheduler_process, args=(arguments, ports, 0, 0, 0, None, writer)
    )
    child.start()
    print("READY", switch, reader.recv()["max_total_num_tokens"], flush=True)
    child.join(1)
    print("ALIVE", child.is_alive(), flush=True)
    child.kill()
    child.join()
"""


def arguments_of(model: Path, **more: Any) -> dict[str, Any]:
    return {"model_path": str(model), **ARGUMENTS, "log_level": "info", **more}


@processes
def test_every_rank_of_the_engine_object_is_driven(
    start: Build, model: Path, tmp_path: Path
) -> None:
    stock = start()
    stock.submit("a", PROMPT, 6)
    stock.run()
    script = tmp_path / "engine_object.py"
    script.write_text(ENGINE)
    sent = json.dumps([arguments_of(model, tp_size=2, skip_tokenizer_init=True), PROMPT])
    with Process([str(script), sent], tmp_path / "log", **ON) as process:
        assert process.wait() == 0, process.log[-4000:]
        ranks = [re.findall(r"rank=(\d)", line) for line in process.lines(ACTIVE)]
        assert sorted(ranks) == [["0"], ["1"]], process.log[-4000:]
        (answer,) = process.lines("ANSWER")
        assert json.loads(answer.removeprefix("ANSWER ")) == token_ids(stock)["a"]
        assert process.gone()


@processes
def test_forked_schedulers_with_arguments_of_ones_own_obey_the_switch(
    model: Path, tmp_path: Path
) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    sent = json.dumps(arguments_of(model, skip_tokenizer_init=True))
    with Process([str(script), sent], tmp_path / "log", **ON) as process:
        assert process.wait() == 0, process.log[-4000:]
        told = [
            line.partition(" preset")[0].rpartition("] ")[2]
            for line in process.log.splitlines()
            if re.search(r"^(READY|ALIVE|NEIGHBOUR)|policy=topas", line)
        ]
        # parent and child print side by side, but "ALIVE" comes last
        assert sorted(told[:3]) == ["NEIGHBOUR", "READY 1 4096", "policy=topas"]
        assert sorted(told[4:6]) == ["NEIGHBOUR", "READY 0 4096"]
        assert told[3] == told[6] == "ALIVE True"
        assert len(told) == 7


EARLY = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def look(original, *args, **kwargs):
    return original(*args, **kwargs)

def activate():
    from sglang.srt.managers.scheduler import Scheduler
    Scheduler.abort_request_renamed = Scheduler.abort_request
    del Scheduler.abort_request
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw", look, HookType.AROUND
    )
    HookRegistry.apply_hooks()
"""


@processes
def test_a_server_whose_hooks_do_not_take_ends_with_the_reason(model: Path, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    write_plugin(plugins, "early", EARLY)
    on = {**ON, "SGLANG_PLUGINS": "early,topas"}
    with Server(model, tmp_path / "log", path=plugins, **on) as server:
        assert server.wait() != 0
        (reason,) = server.lines("hooks did not take")[-1:]
        assert reason.endswith(
            "hooks did not take in SGLang 0.5.23: "
            "sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw, "
            "sglang.srt.managers.scheduler.Scheduler.abort_request"
        )
        assert "PluginError" in reason
        assert server.lines(ACTIVE) == []
        assert server.gone()


@processes
def test_a_server_with_a_bad_switch_ends_with_the_reason(model: Path, tmp_path: Path) -> None:
    on = {**ON, "TOPAS_ENABLE": "ja"}
    with Server(model, tmp_path / "log", **on) as server:
        assert server.wait() == 1
        assert server.log.rstrip().splitlines()[-1].startswith("topas: TOPAS_ENABLE: ")
        assert server.gone()
