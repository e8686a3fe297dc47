"""What a decision costs beside SGLang's own policies, on equal queues.

    .venv-sglang/bin/python bench/sglang_policies.py

The queue is that of a stock SGLang scheduler in this process (tests/sglang): requests of eight
agents, each with the 1,024 tokens of its agent and 64 of its own, half of the agents' prefixes in
the radix tree. ``SchedulePolicy.calc_priority``, which SGLang calls for every prefill batch, orders
it as fcfs and as lpm; ``topas.Scheduler.decide`` decides on the same requests, after an event each
time.
"""

from __future__ import annotations

import gc
import importlib.util
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import topas
from figures import Figures, figures
from rows import PRESETS

AGENTS, CACHED, PREFIX, TAIL, OUTPUT, RUNNING = 8, 4, 1024, 64, 64, 8
WAITING = (10, 100, 1000)
VOCAB, PREFIX_POOL = 500, 16384


def installed() -> bool:
    """SGLang can be imported here."""
    return importlib.util.find_spec("sglang") is not None


def time_calls(before: Callable[[], Any], call: Callable[[Any], Any], rounds: int) -> Figures:
    """Microseconds of ``call(before())``; ``before`` is not timed."""
    took = []
    gc.disable()
    try:
        for _ in range(rounds):
            argument = before()
            begin = time.perf_counter_ns()
            call(argument)
            took.append((time.perf_counter_ns() - begin) / 1000)
    finally:
        gc.enable()
    return figures(took)


def prompt(request: int) -> list[int]:
    """Tokens of a request: its agent's prefix and its own tail."""
    shared = random.Random(request % AGENTS)
    own = random.Random(1000 + request)
    draw = [shared.randrange(VOCAB) for _ in range(PREFIX)]
    return draw + [own.randrange(VOCAB) for _ in range(TAIL)]


def time_sglang(waiting: int, rounds: int) -> dict[str, Figures]:
    """Each of SGLang's policies on a queue of so many."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sglang"))
    from engine import InProcessEngine
    from tiny_model import write_model

    out = {}
    for policy in ("fcfs", "lpm"):
        with tempfile.TemporaryDirectory() as folder:
            engine = InProcessEngine(
                model_path=str(write_model(Path(folder) / "model", "tiny")),
                max_total_tokens=PREFIX_POOL,
                schedule_policy=policy,
            )
        with engine:
            for agent in range(CACHED):
                engine.submit(f"first-{agent}", prompt(agent), 1)
            engine.run()
            queue = _queue(engine, waiting)
            scheduler = engine.scheduler
            batch = scheduler.running_batch
            out[policy] = time_calls(
                lambda queue=queue: list(queue),
                lambda queue, by=scheduler.policy, batch=batch: by.calc_priority(queue, batch),
                rounds,
            )
            scheduler.waiting_queue.clear()
    return out


def _queue(engine: Any, waiting: int) -> list[Any]:
    """Requests as the scheduler holds them, received and not yet looked at."""
    from engine import _receive

    for request in range(waiting):
        engine.submit(f"waiting-{request}", prompt(request), OUTPUT)
    _receive(engine.scheduler)
    queue = list(engine.scheduler.waiting_queue)
    assert len(queue) == waiting
    return queue


def time_topas(waiting: int, rounds: int, preset: str) -> Figures:
    """A decision on the same queue: tasks of three stages, observed services."""
    scheduler, draw = _warm_scheduler(preset), random.Random(1)
    for request in range(waiting + RUNNING):
        agent = request % AGENTS if request < waiting else request % CACHED
        scheduler.task_arrived(100.0, f"task-{request}", agent)
        scheduler.request_ready(100.0, request, f"task-{request}", 0, TAIL, OUTPUT)
    for request in range(waiting, waiting + RUNNING):
        scheduler.request_started(100.0, request)
    now = 100.0

    def event() -> float:
        """A waiting request is gone, another is ready, a running one has gone on."""
        nonlocal now
        now += 0.05
        request = draw.randrange(waiting)
        scheduler.request_aborted(now, request)
        scheduler.request_ready(now, request, f"task-{request}", 0, TAIL, OUTPUT)
        scheduler.request_progress(now, waiting + draw.randrange(RUNNING), draw.randrange(OUTPUT))
        return now

    return time_calls(event, scheduler.decide, rounds)


def _warm_scheduler(preset: str) -> topas.Scheduler:
    """Eight agents, half of them resident, a chain of three for each, twenty executions of each."""
    config = topas.Config.preset(
        preset,
        kv_capacity_tokens=CACHED * PREFIX + 2 * RUNNING * (TAIL + OUTPUT),
        kv_bytes_per_token=131072.0,
        swap_bytes_per_s=20e9,
        decode_s_per_token=0.02,
        prefill_fixed_s=0.01,
        prefill_s_per_token=5e-5,
    )
    scheduler, draw = topas.Scheduler(config), random.Random(2)
    for agent in range(AGENTS):
        scheduler.register_agent(agent, PREFIX)
    for flow in range(AGENTS):
        stages = [
            topas.Stage(at, (flow + at) % AGENTS, after=(at - 1,) if at else (), service_s=2.0)
            for at in range(3)
        ]
        scheduler.register_workflow(topas.Workflow(flow, tuple(stages)))
        for _ in range(20):
            scheduler.task_arrived(0.0, "warm-up", flow)
            for stage in range(3):
                scheduler.request_ready(0.0, "warm-up", "warm-up", stage, TAIL, OUTPUT)
                scheduler.request_started(0.0, "warm-up")
                service_s = 2.0 * draw.lognormvariate(-0.125, 0.5)
                scheduler.request_completed(0.0, "warm-up", service_s)
                scheduler.stage_completed(0.0, "warm-up", stage)
    for agent in range(CACHED, AGENTS):
        scheduler.prefix_evicted(0.0, agent)
    return scheduler


def compare(*, waiting: tuple[int, ...] = WAITING, rounds: int = 300) -> list[dict[str, Any]]:
    """A row for each length of the queue and each policy."""
    rows = []
    for count in waiting:
        costs = time_sglang(count, rounds)
        costs = {f"SGLang {policy}": cost for policy, cost in costs.items()}
        for preset in PRESETS:
            costs[f"topas {preset}"] = time_topas(count, rounds, preset)
        rows += [{"waiting": count, "policy": name, **cost} for name, cost in costs.items()]
    return rows


def report(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    import sglang

    lines = [
        f"SGLang {sglang.__version__} beside topas, µs a call (above 128 waiting lpm is fcfs):\n",
        "| waiting | policy | mean | p50 | p99 | max |\n|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = " | ".join(f"{row[name]:,.1f}" for name in ("mean", "p50", "p99", "max"))
        lines.append(f"| {row['waiting']:,} | {row['policy']} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(compare()) if installed() else "SGLang is not installed here")
