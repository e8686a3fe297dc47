"""Starting the process that runs one engine, and what to say if it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from topas.enginebench.results import EngineRun, is_driven
from topas.enginebench.workload import BenchSettings
from topas.errors import ConfigError, StateError
from topas.sglang.settings import Settings

__all__ = [
    "POLICIES",
    "EnginePlan",
    "check_engine",
    "engine_arguments",
    "environment",
    "other_models",
    "run_engine",
]

#: Policies that can be run: SGLang's own two, topas, and topas with ``prefix_copies``.
POLICIES: tuple[str, ...] = ("fcfs", "lpm", "topas", "topas+copies")

_PLATFORM = "topas-test-cpu"
_PLATFORMS = "sglang.srt.platforms"
_KEPT_MODELS = ("qwen2", "llama", "registry", "utils")
_LAST_LINES = 25
_HOST_BYTES = 1 << 30  # for copies, where the user's TOPAS_CONFIG does not say


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """How engines are started.

    Parameters
    ----------
    model : Path
        Directory (or name) of the model.
    device : {"cpu", "cuda"}
        Where it runs.
    pool : int or None
        KV pool, tokens; ``None``: what SGLang makes of the memory.
    max_running : int or None
        Limit on running requests; ``None``: SGLang's.
    few_models : bool
        Import only the model code that the random model needs, which saves seconds at the start.
    arguments : mapping
        More fields of SGLang's ``ServerArgs``.
    timeout_s : float
        A run that takes longer has failed.
    """

    model: Path
    device: str = "cpu"
    pool: int | None = 4096
    max_running: int | None = 8
    few_models: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 3600.0


def check_engine(device: str) -> None:
    """Refuse early what cannot start.

    Raises
    ------
    ConfigError
        SGLang is missing, or has no way to run on a CPU here.
    """
    if find_spec("sglang") is None:
        raise ConfigError(
            "bench-engine: SGLang is not installed: pip install 'topas[sglang,sim]', or, without "
            "a GPU, tests/sglang/install.sh"
        )
    if device != "cpu" or "SGLANG_PLATFORM" in os.environ:
        return
    if not any(entry.name == _PLATFORM for entry in entry_points(group=_PLATFORMS)):
        raise ConfigError(
            f"bench-engine: stock SGLang does not run on this CPU without the platform plugin "
            f"{_PLATFORM}, which tests/sglang/install.sh installs (or set SGLANG_PLATFORM)"
        )


def environment(
    plan: EnginePlan, policy: str, outer: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """Environment of the process that runs a policy: topas is off for all but its own.

    With ``prefix_copies`` a configuration of its own goes into the folder, made of the user's.
    """
    driven = is_driven(policy)
    result = {**outer, "SGLANG_PLUGINS": "topas" if driven else "none"}
    result["TOPAS_ENABLE"] = "1" if driven else "0"
    if policy.endswith("+copies"):
        own = outer.get("TOPAS_CONFIG")
        fields = Settings.from_file(Path(own)).model_dump(exclude_unset=True) if own else {}
        path = folder / "topas.json"
        path.write_text(json.dumps({"prefix_copies": {"host_bytes": _HOST_BYTES}, **fields}))
        result["TOPAS_CONFIG"] = str(path)
    result.pop("PROMETHEUS_MULTIPROC_DIR", None)
    if plan.device != "cpu":
        return result
    defaults = {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "SGLANG_PLATFORM": _PLATFORM,
    }
    if plan.few_models:
        defaults["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(other_models())
    return {**defaults, **result}


def other_models() -> list[str]:
    """Model modules that the random model does not need: SGLang would import all of them."""
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0], "srt", "models")
    return sorted({path.stem for path in folder.glob("*.py")} - set(_KEPT_MODELS))


def engine_arguments(plan: EnginePlan, policy: str) -> dict[str, Any]:
    """Fields of SGLang's ``ServerArgs`` for a policy; topas goes with SGLang's ``fcfs``."""
    arguments: dict[str, Any] = {
        "model_path": str(plan.model),
        "device": plan.device,
        "skip_tokenizer_init": True,
        "enable_metrics": True,
        "random_seed": 1,
        "log_level": "warning",
    }
    if plan.pool is not None:
        arguments["max_total_tokens"] = plan.pool
    if plan.max_running is not None:
        arguments["max_running_requests"] = plan.max_running
    if plan.device == "cpu":
        arguments |= {
            "dtype": "float32",
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            "chunked_prefill_size": -1,
            "mem_fraction_static": 0.5,  # of what is free; the pool is given
        }
    arguments |= plan.arguments
    return arguments | {"schedule_policy": "lpm" if policy == "lpm" else "fcfs"}


def run_engine(plan: EnginePlan, settings: BenchSettings, policy: str) -> EngineRun:
    """Run a workload under a policy in a fresh engine, in a process of its own.

    Raises
    ------
    StateError
        The process failed; the message has the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="topas-bench-") as folder:
        spec, result, log = (Path(folder, name) for name in ("spec.json", "result.json", "log"))
        spec.write_text(
            json.dumps(
                {
                    "policy": policy,
                    "workload": settings.to_dict(),
                    "engine": engine_arguments(plan, policy),
                }
            ),
            encoding="utf-8",
        )
        code = _call(
            [str(spec), str(result)], log, environment(plan, policy, os.environ, Path(folder)), plan
        )
        if code != 0 or not result.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
            why = "took too long" if code is None else f"ended with status {code}"
            raise StateError("\n".join([f"the engine for {policy} {why}; its last words:", *lines]))
        return EngineRun.from_dict(json.loads(result.read_text(encoding="utf-8")))


def _call(
    arguments: list[str], log: Path, variables: Mapping[str, str], plan: EnginePlan
) -> int | None:
    """Run the child to its end; ``None`` when it took too long."""
    command = [sys.executable, "-m", "topas.enginebench.child", *arguments]
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        try:
            return child.wait(plan.timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave no process of the child's session behind."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
