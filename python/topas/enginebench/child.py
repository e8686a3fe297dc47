"""The process that runs one engine: ``python -m topas.enginebench.child SPEC RESULT``.

An engine that dies takes its process tree with it, so each has a process of its own. The clock
starts after a warm-up that leaves nothing in the cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from topas.enginebench.workload import BenchSettings, BenchWorkload

__all__ = ["main"]

_WARM_UP = 3
_LOOK_S, _MOST_LOOKS = 0.25, 20
_COUNTED = ("topas:", "sglang:realtime_tokens", "sglang:num_retracted", "sglang:forward_execution")
_LEARNED = (
    "prefill_fixed_seconds",
    "prefill_token_seconds",
    "decode_token_seconds",
    "swap_bytes_per_second",
    "task_scale_seconds",
)


class _Drive:
    """Sends the tasks of a workload to an engine and writes down what comes back."""

    def __init__(self, engine: Any, bench: BenchWorkload) -> None:
        self._engine = engine
        self._bench = bench
        self._zero_s = 0.0
        self.arrivals: dict[int, float] = {}
        self.requests: list[dict[str, Any]] = []

    def _now(self) -> float:
        return time.time() - self._zero_s  # the engine reports in real time, too

    async def generate(
        self, prompt: list[int], output_tokens: int, hints: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """One greedy request of a fixed length."""
        sampling: dict[str, Any] = {
            "max_new_tokens": output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        if hints is not None:
            sampling["custom_params"] = {"agent_hints": json.dumps(hints)}
        answer = await self._engine.async_generate(input_ids=prompt, sampling_params=sampling)
        reason = answer["meta_info"]["finish_reason"]
        if reason is None or reason["type"] != "length":
            raise RuntimeError(f"a request ended with {reason}")
        return dict(answer)

    async def warm_up(self) -> None:
        """A few requests of no task, one by one and together."""
        prompts = self._bench.warm_up(_WARM_UP)
        for prompt in prompts:
            await self.generate(prompt, 2, None)
        await asyncio.gather(*(self.generate(prompt, 4, None) for prompt in prompts))

    async def run(self) -> None:
        """All tasks, at their arrivals or so many at a time."""
        self._zero_s = time.time()
        settings = self._bench.settings
        tasks = range(settings.tasks)
        if settings.rate is not None:
            await asyncio.gather(*(self._at_its_time(task) for task in tasks))
            return
        queue = iter(tasks)
        await asyncio.gather(*(self._one_by_one(queue) for _ in range(settings.concurrency)))

    async def _at_its_time(self, task: int) -> None:
        await asyncio.sleep(max(self._bench.shape.tasks[task].arrival_s - self._now(), 0.0))
        await self._task(task)

    async def _one_by_one(self, queue: Any) -> None:
        for task in queue:
            await self._task(task)

    async def _task(self, task: int) -> None:
        """A task: each stage as soon as those before it are done."""
        self.arrivals[task] = self._now()
        shape = self._bench.shape.workflows[self._bench.shape.tasks[task].workflow]
        outputs: dict[int, list[int]] = {}
        done = [asyncio.Event() for _ in shape.stages]

        async def stage(index: int) -> None:
            for before in shape.stages[index].after:
                await done[before].wait()
            outputs[index] = await self._request(task, index, outputs)
            done[index].set()

        await asyncio.gather(*(stage(index) for index in range(len(shape.stages))))

    async def _request(self, task: int, stage: int, outputs: Mapping[int, list[int]]) -> list[int]:
        bench = self._bench
        prompt = bench.prompt(task, stage, outputs)
        hints = bench.agent_hints(task, stage)
        submit_s = self._now()
        answer = await self.generate(prompt, bench.settings.output_tokens, hints)
        meta, tokens = answer["meta_info"], list(answer["output_ids"])
        workflow = bench.shape.tasks[task].workflow
        self.requests.append(
            {
                "task": task,
                "stage": stage,
                "agent": bench.shape.workflows[workflow].stages[stage].agent,
                "submit_s": submit_s,
                "end_s": self._now(),
                "prompt_tokens": meta["prompt_tokens"],
                "cached_tokens": meta["cached_tokens"],
                "output_tokens": meta["completion_tokens"],
                "retractions": meta.get("num_retractions", 0),
                "entry_s": self._since(meta, "forward_entry_time"),
                "prefilled_s": self._since(meta, "prefill_finished_time"),
                "finished_s": self._since(meta, "request_finished_ts"),
                "digest": blake2b(json.dumps(tokens).encode(), digest_size=8).hexdigest(),
            }
        )
        return tokens

    def _since(self, meta: Mapping[str, Any], name: str) -> float | None:
        return None if meta.get(name) is None else meta[name] - self._zero_s


def _families() -> list[Any]:
    """All that the engine's processes export now."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=os.environ["PROMETHEUS_MULTIPROC_DIR"])
    return list(registry.collect())


def _learned() -> dict[str, float]:
    """The costs that topas goes by at the end, by the names of its gauges without the prefix."""
    return {
        name: sample.value
        for family in _families()
        if (name := family.name.removeprefix("topas:")) in _LEARNED
        for sample in family.samples
    }


def _counted() -> Counter[str]:
    """What the engine's processes have counted so far, summed over labels (but modes)."""
    totals: Counter[str] = Counter()
    for family in _families():
        if family.type not in ("counter", "histogram") or not family.name.startswith(_COUNTED):
            continue
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                kind = sample.labels.get("mode") or sample.labels.get("category")
                totals[sample.name + (f"/{kind}" if kind else "")] += sample.value
    return totals


def _settled() -> Counter[str]:
    """The same once the engine has counted everything: it does so after it has answered."""
    last = _counted()
    for _ in range(_MOST_LOOKS):
        time.sleep(_LOOK_S)
        now = _counted()
        if now == last:
            break
        last = now
    return last


def _cpu_s() -> float:
    """Processor time of the engine's processes so far, seconds."""
    psutil = import_module("psutil")

    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return float(sum(entry.user + entry.system for entry in times))


def main(spec_path: str, result_path: str) -> None:
    """Run what the file says and write down what came of it."""
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    bench = BenchWorkload(BenchSettings(**spec["workload"]))
    begin = time.perf_counter()
    import sglang

    engine = sglang.Engine(**spec["engine"])
    start_s = time.perf_counter() - begin
    try:
        drive = _Drive(engine, bench)
        loop = engine.loop
        loop.run_until_complete(drive.warm_up())
        engine.flush_cache()
        before, cpu_s = _counted(), _cpu_s()
        loop.run_until_complete(drive.run())
        cpu_s = _cpu_s() - cpu_s
        after, learned = _settled(), _learned()
    finally:
        engine.shutdown()
    result = {
        "policy": spec["policy"],
        "start_s": start_s,
        "cpu_s": cpu_s,
        "arrivals": [drive.arrivals[task] for task in range(bench.settings.tasks)],
        "requests": drive.requests,
        "counters": {name: value - before[name] for name, value in sorted(after.items())},
        "learned": learned,
        "versions": {
            "topas": version("topas"),
            "sglang": str(sglang.__version__),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
    }
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
