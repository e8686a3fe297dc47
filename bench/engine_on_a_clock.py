"""SGLang's scheduler and the plugin on a clock of modelled costs: the same figures on any machine.

    .venv-sglang/bin/python bench/engine_on_a_clock.py chain-3 --tasks 60 --seeds 1,2 --spread 6

The engine is the real one, in this process (tests/sglang); only the time is made up, from what each
batch computes. So a change of the policy shows without a machine's noise, in half a minute. The
costs are those that `topas bench-engine` fits to its CPU engine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sglang"))
os.environ |= {
    "SGLANG_PLUGINS": "topas",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "0",  # a look at the whole tree at every pass
    "TOPAS_ENABLE": "1",  # for the hooks; each run says anew
}

from engine import InProcessEngine
from sglang.srt.plugins import load_plugins
from tiny_model import write_model
from topas.enginebench.workload import WORKLOADS, BenchSettings, BenchWorkload
from topas.sglang import bridge, clock, plugin

load_plugins()  # hooks are installed once, whatever the first run is

PREFILL_S, PREFILL_TOKEN_S = 0.066, 129e-6  # of a request, of a token
DECODE_S, CONTEXT_TOKEN_S = 8.45e-3, 5.14e-6  # of a step, of a token of context
CLIENT_S, MESSAGE_S = 0.01, 1e-3  # from an answer to the next request, and between two messages
POOL, RUNNING, VOCAB = 4096, 8, 500


@dataclass
class Clock:
    """Time made of batches."""

    now: float = 0.0
    prompt_tokens: int = 0
    decode_steps: int = 0

    def monotonic(self) -> float:
        """Seconds, as the plugin's clock reads them."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let an idle nap pass."""
        self.now += seconds

    def charge(self, batch: Any) -> None:
        """Let the time of a batch pass."""
        if batch.forward_mode.is_extend():
            tokens = int(batch.extend_num_tokens)
            self.prompt_tokens += tokens
            self.now += PREFILL_S * len(batch.reqs) + PREFILL_TOKEN_S * tokens
        else:
            self.decode_steps += 1
            self.now += DECODE_S + CONTEXT_TOKEN_S * int(batch.seq_lens.sum())


@dataclass
class Tasks:
    """The client: so many tasks in flight, each stage when those before it are done."""

    bench: BenchWorkload
    time: Clock
    spread: int
    outbox: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    last_s: float = 0.0
    begun: dict[int, float] = field(default_factory=dict)
    took: dict[int, float] = field(default_factory=dict)
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    done: dict[int, set[int]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def stages(self, task: int) -> Any:
        """Stages of a task's workflow."""
        return self.bench.shape.workflows[self.bench.shape.tasks[task].workflow].stages

    def before_pass(self, engine: InProcessEngine) -> bool:
        """Take in what has finished, send what is ready; say whether there is more to come."""
        for name, output in list(engine.outputs.items()):
            if output.finish and name in self.sent and name not in self.read:
                self.read.add(name)
                task, stage = self.sent[name]
                self.done[task].add(stage)
                if len(self.done[task]) == len(self.stages(task)):
                    self.took[task] = self.time.now - self.begun[task]
                self.send_ready(engine, task)
        settings = self.bench.settings
        while len(self.begun) < settings.tasks and (
            len(self.begun) - len(self.took) < settings.concurrency
        ):
            task = len(self.begun)
            self.begun[task], self.done[task] = self.time.now, set()
            self.send_ready(engine, task)
        while self.outbox and self.outbox[0][0] <= self.time.now:
            self.outbox.popleft()[1]()
        if self.outbox and engine.idle:
            self.time.now = self.outbox[0][0]
        return len(self.took) < settings.tasks

    def post(self, send: Callable[[], None]) -> None:
        """Let a message arrive later, each a little after the one before."""
        self.last_s = max(self.last_s + MESSAGE_S, self.time.now + CLIENT_S)
        self.outbox.append((self.last_s, send))

    def send_ready(self, engine: InProcessEngine, task: int) -> None:
        """Send the stages of a task that wait for nothing."""
        for stage, shape in enumerate(self.stages(task)):
            name = f"{task}.{stage}."
            if name in self.sent or not self.done[task].issuperset(shape.after):
                continue
            outputs = {at: engine.outputs[f"{task}.{at}."].token_ids for at in self.done[task]}
            hints = self.bench.agent_hints(task, stage)
            extra = (task * 7919 + stage * 31) % (2 * self.spread + 1) - self.spread
            self.sent[name] = task, stage
            self.post(
                partial(
                    engine.submit,
                    name,
                    self.bench.prompt(task, stage, outputs),
                    self.bench.settings.output_tokens + extra,
                    custom_params=hints and {"agent_hints": json.dumps(hints)},
                )
            )


def run(policy: str, settings: BenchSettings, spread: int, options: str) -> dict[str, float]:
    """Figures of one run; ``options``: the settings of the plugin, as JSON."""
    time = Clock()
    clock.time = time  # type: ignore[assignment]
    bridge.time = SimpleNamespace(perf_counter=time.monotonic, sleep=time.sleep)  # type: ignore[assignment]
    os.environ["TOPAS_ENABLE"] = "1" if policy == "topas" else "0"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plugin.json"
        file.write_text(options)
        os.environ["TOPAS_CONFIG"] = str(file)
        model = write_model(Path(folder) / "model", "tiny")
        engine = InProcessEngine(
            model_path=str(model),
            max_total_tokens=POOL,
            max_running_requests=RUNNING,
            schedule_policy="lpm" if policy == "lpm" else "fcfs",
        )
    assert (plugin.bridge_of(engine.scheduler) is not None) == (policy == "topas")
    forward = engine.scheduler.run_batch

    def run_batch(batch: Any, *args: Any, **kwargs: Any) -> Any:
        time.charge(batch)
        return forward(batch, *args, **kwargs)

    engine.scheduler.run_batch = run_batch
    tasks = Tasks(BenchWorkload(settings), time, spread)
    with engine:
        engine.run(tasks.before_pass, pass_limit=10**6)
    took = sorted(tasks.took.values())
    return {
        "mean": statistics.fmean(took),
        "p50": took[len(took) // 2],
        "p99": took[min(int(0.99 * len(took)), len(took) - 1)],
        "makespan": time.now,
        "ktok": time.prompt_tokens / 1000,
        "steps": time.decode_steps,
        "retracted": sum(output.retractions for output in engine.outputs.values()),
    }


def main() -> None:
    """Print the means over the seeds, beside those of the first policy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--policies", default="lpm,topas", help="of fcfs, lpm, topas")
    parser.add_argument("--spread", type=int, default=0, help="outputs are 12 tokens, ± this")
    parser.add_argument("--plugin", default="{}", help="settings of the plugin, JSON")
    given = parser.parse_args()
    first: dict[str, float] = {}
    for policy in given.policies.split(","):
        rows = [
            run(
                policy,
                BenchSettings(
                    workload=given.workload, tasks=given.tasks, seed=int(seed), vocab=VOCAB
                ),
                given.spread,
                given.plugin,
            )
            for seed in given.seeds.split(",")
        ]
        mean = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
        first = first or mean
        cells = [
            f"{name} {value:.2f}"
            + (f" ({value / first[name] - 1:+.1%})" if first[name] and mean is not first else "")
            for name, value in mean.items()
        ]
        print(f"{given.workload} {policy:5}", *cells, sep="  ", flush=True)


if __name__ == "__main__":
    main()
