"""Copies of prefixes on one GPU: speed, overlap with compute, layer-wise start, correctness.

``python bench/prefix_copy_gpu.py``: at most 5 minutes (``--budget-s``: a size for which too little
is left is skipped, and it says so), 6 GiB of GPU memory and 3 GiB of pinned host memory. Figures go
to ``bench/results/prefix_copy_DEVICE.json`` after each size. Without torch or a GPU it says so in
one line and ends with 0.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefix_copy_goals import DIRECTIONS, goals, is_time_left, line, summary

RESULTS = Path(__file__).resolve().parent / "results"
DEVICE = "cuda"
LAYERS, KV_HEADS, DIM = 64, 8, 128  # a model of 32 B parameters with grouped queries
TOKENS = (256, 512, 1024, 2048, 4096)
SLOTS = 12_288
REPEATS = 5
MATRIX = 8192
BUDGET_S = 300.0


def reason_not_to_run() -> str | None:
    """Why this machine cannot run it."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


def machine() -> dict[str, str]:
    """GPU, driver and versions."""
    import torch
    from machine import commit, processor

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    return {
        "device": torch.cuda.get_device_name(),
        "driver": next(iter(driver.split()), "unknown"),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "processor": processor(),
        "commit": commit(),
    }


class Watch:
    """A CUDA backend that keeps the events at both ends of the latest copy each way.

    Parameters
    ----------
    backend : CudaBackend
        Does the work.

    Attributes
    ----------
    events : dict
        Direction -> the first event and the last.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.events: dict[str, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def lane(self, direction: str, buffers: Any) -> Any:
        """A lane that is asked for the seconds of a copy when it is over, and notes of which."""
        lane = self._backend.lane(direction, buffers)
        seconds = lane.seconds

        def noted(first: Any, last: Any) -> float:
            self.events[direction] = (first.event, last.event)
            return float(seconds(first, last))

        lane.seconds = noted
        return lane


class Rig:
    """A pool of random KV, a store on it, and one prefix at scattered slots."""

    def __init__(self, tokens: int) -> None:
        import torch
        from topas.sglang.prefix_copy import CudaBackend, KvBuffers, PrefixStore

        self.torch = torch
        self.tokens = tokens
        generator = torch.Generator(device=DEVICE).manual_seed(tokens)

        def layer() -> Any:
            shape = (SLOTS, KV_HEADS, DIM * 2)
            options = {"generator": generator, "dtype": torch.uint8, "device": DEVICE}
            return torch.randint(0, 256, shape, **options).view(torch.bfloat16)

        self.tensors = [layer() for _ in range(2 * LAYERS)]
        buffers = KvBuffers.mha(self.tensors[:LAYERS], self.tensors[LAYERS:])
        self.nbytes = tokens * buffers.bytes_per_token
        self.watch = Watch(CudaBackend(buffers.device))
        host_bytes = self.nbytes + (1 << 20)
        self.store = PrefixStore(buffers, host_bytes=host_bytes, backend=self.watch)
        order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(1))
        self.home = order[:tokens].to(DEVICE)
        self.target = order[tokens : 2 * tokens].to(DEVICE)

    def rows(self, slots: Any) -> list[Any]:
        """The bits at these slots."""
        return [tensor.view(self.torch.int16)[slots] for tensor in self.tensors]

    def prepare(self, direction: str) -> None:
        """Make a save one for the first time, or a load one from a host copy that is there."""
        if direction == "load":
            self.leave()
            return
        if self.store.agents():
            self.store.forget("a")
        self.store.place("a", range(self.tokens), self.home)

    def start(self, direction: str) -> Any:
        """Begin the copy; its transfer."""
        return self.store.save("a") if direction == "save" else self.store.load("a", self.target)

    def copy(self, direction: str) -> None:
        """A copy from beginning to end."""
        self.prepare(direction)
        self.start(direction).wait()

    def leave(self) -> None:
        """Give up its slots; the host copy is there, so nothing is copied."""
        if self.store.state("a").value != "on host":
            self.store.evict("a").wait()


def gpu_seconds(work: Callable[[], None]) -> float:
    """Time of what a call queues on the current stream."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def median_of(measure: Callable[[], float]) -> float:
    """Median of some measurements, after one that does not count."""
    measure()
    return statistics.median(measure() for _ in range(REPEATS))


def plain_seconds(nbytes: int) -> dict[str, float]:
    """One pinned copy of the same size each way."""
    import torch

    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)

    def load() -> None:
        device.copy_(host, non_blocking=True)

    def save() -> None:
        host.copy_(device, non_blocking=True)

    return {
        "load": median_of(lambda: gpu_seconds(load)),
        "save": median_of(lambda: gpu_seconds(save)),
    }


def copy_seconds(rig: Rig, direction: str) -> tuple[float, float]:
    """Seconds of a copy by the events of its streams, and from the call to the end of the wait."""
    walls: list[float] = []

    def once() -> float:
        rig.prepare(direction)
        before = getattr(rig.store.counts(), f"{direction}_s")
        start = time.perf_counter()
        rig.start(direction).wait()
        walls.append(time.perf_counter() - start)
        return float(getattr(rig.store.counts(), f"{direction}_s") - before)

    return median_of(once), statistics.median(walls[1:])


def is_exact(rig: Rig) -> bool:
    """Whether a save and a load bring back the bits, while the old slots are overwritten."""
    torch = rig.torch
    content = rig.rows(rig.home)
    rig.copy("save")
    rig.leave()
    for tensor in rig.tensors:
        tensor.view(torch.int16)[rig.home] = 0
        tensor.view(torch.int16)[rig.target] = 0
    rig.copy("load")
    same = all(map(torch.equal, rig.rows(rig.target), content))
    for tensor, rows in zip(rig.tensors, content, strict=True):
        tensor.view(torch.int16)[rig.home] = rows
    torch.cuda.synchronize()
    return same


def layer_times(rig: Rig) -> dict[str, float]:
    """Seconds from the call until layer 0, the middle layer and the last are there."""
    torch = rig.torch
    layers = {"first": 0, "middle": LAYERS // 2, "last": LAYERS - 1}
    samples: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(REPEATS + 1):
        rig.leave()
        torch.cuda.synchronize()
        began = torch.cuda.Event(enable_timing=True)
        began.record()
        transfer = rig.store.load("a", rig.target)
        ready = {}
        for name, layer in layers.items():
            stream = torch.cuda.Stream()
            ready[name] = torch.cuda.Event(enable_timing=True)
            with torch.cuda.stream(stream):
                transfer.wait_for_layer(layer)
                ready[name].record()
        transfer.wait()
        for name, event in ready.items():
            event.synchronize()
            samples[name].append(float(began.elapsed_time(event)) / 1e3)
    return {name: statistics.median(times[1:]) for name, times in samples.items()}


def overlap(rig: Rig, direction: str, copy_s: float) -> dict[str, Any]:
    """A copy beside matrix products that take about as long: alone and together.

    ``runs`` has when each began and ended in each run, in ms after one event before both.
    """
    torch = rig.torch
    left, right = (
        torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)
    )
    out = torch.empty_like(left)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)

    count = max(1, round(copy_s / (median_of(lambda: gpu_seconds(lambda: products(10))) / 10)))
    compute_s = median_of(lambda: gpu_seconds(lambda: products(count)))
    runs: list[dict[str, float]] = []

    def together() -> float:
        rig.prepare(direction)
        torch.cuda.synchronize()
        began, computing, computed = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        began.record()
        transfer = rig.start(direction)
        computing.record()
        products(count)
        computed.record()
        transfer.wait()
        computed.synchronize()
        copying, copied = rig.watch.events[direction]
        events = {
            "copy_start_ms": copying,
            "copy_end_ms": copied,
            "compute_start_ms": computing,
            "compute_end_ms": computed,
        }
        runs.append({name: float(began.elapsed_time(event)) for name, event in events.items()})
        return max(runs[-1]["copy_end_ms"], runs[-1]["compute_end_ms"]) / 1e3

    both_s = median_of(together)
    return {
        "copy_s": copy_s,
        "compute_s": compute_s,
        "both_s": both_s,
        "ratio": both_s / max(copy_s, compute_s),
        "runs": runs[1:],
    }


def measure(tokens: int) -> dict[str, Any]:
    """All figures for a prefix of so many tokens."""
    start = time.perf_counter()
    gc.collect()  # the store before is in a cycle, and has a pool of its own
    rig = Rig(tokens)
    with rig.store:
        row: dict[str, Any] = {"tokens": tokens, "nbytes": rig.nbytes, "exact": is_exact(rig)}
        plain = plain_seconds(rig.nbytes)
        for direction in DIRECTIONS:
            seconds, wall_s = copy_seconds(rig, direction)
            row[direction] = {
                "seconds": seconds,
                "wall_s": wall_s,
                "plain_s": plain[direction],
                "gb_per_s": rig.nbytes / seconds / 1e9,
                "share_of_plain": plain[direction] / seconds,
                "share_of_plain_wall": plain[direction] / wall_s,
            }
        row["layers_s"] = layer_times(rig)
        row["overlap"] = {name: overlap(rig, name, row[name]["seconds"]) for name in DIRECTIONS}
    row["took_s"] = time.perf_counter() - start
    return row


def file_of(device: str) -> Path:
    """Where the figures of a device go unless it is said."""
    return RESULTS / f"prefix_copy_{re.sub('[^a-z0-9]+', '_', device.lower()).strip('_')}.json"


def keep(report: dict[str, Any], out: Path) -> None:
    """Write the figures, whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    part.replace(out)


def measure_all(sizes: list[int], report: dict[str, Any], out: Path, start: float) -> None:
    """Measure size after size while there is time; each is printed and kept at once."""
    rows = report["rows"]
    for index, tokens in enumerate(sizes):
        spent_s = time.perf_counter() - start
        if not is_time_left(tokens, rows, spent_s, report["budget_s"]):
            return
        rows.append(measure(tokens))
        print(line(rows[-1]), flush=True)
        report["goals"], report["not_measured"] = goals(rows), sizes[index + 1 :]
        keep(report, out)


def main(words: Sequence[str] | None = None) -> int:
    """Print the table, write the JSON; 1 when a copy was not exact."""
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON, if not bench/results/prefix_copy_DEVICE")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="how long it may take")
    options = parser.parse_args(words)
    if not all(0 < tokens <= SLOTS // 2 for tokens in options.tokens):
        parser.error(f"--tokens: 1 to {SLOTS // 2}, got {options.tokens}")
    reason = reason_not_to_run()
    if reason is not None:
        print(f"prefix_copy_gpu: not run: {reason}")
        return 0
    report: dict[str, Any] = {"machine": machine(), "budget_s": options.budget_s, "rows": []}
    print(json.dumps(report["machine"]))
    out = options.out or file_of(report["machine"]["device"])
    measure_all(options.tokens, report, out, start)
    print(summary(report))
    print(f"written: {out}")
    return 0 if report["goals"]["exact"]["is_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
