"""Copies of prefixes on one GPU: speed, overlap with compute, layer-wise start, correctness.

``python bench/prefix_copy_gpu.py --out results.json``: about a minute, 6 GiB of GPU memory and
3 GiB of pinned host memory. Without torch or a GPU it says so in one line and ends with 0.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS, KV_HEADS, DIM = 64, 8, 128  # a model of 32 B parameters with grouped queries
TOKENS = (256, 512, 1024, 2048, 4096)
SLOTS = 12_288
REPEATS = 5
MATRIX = 8192
WANTED_SHARE = 0.9  # of the bandwidth of a plain pinned copy
WANTED_OVERLAP = 1.15  # time of copy and compute together, of the longer alone


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


class Rig:
    """A pool of random KV, a store on it, and one prefix at scattered slots."""

    def __init__(self, tokens: int) -> None:
        import torch
        from topas.sglang.prefixes import KvBuffers, PrefixStore

        self.torch = torch
        self.tokens = tokens
        generator = torch.Generator(device="cuda").manual_seed(tokens)

        def layer() -> Any:
            shape = (SLOTS, KV_HEADS, DIM * 2)
            options = {"generator": generator, "dtype": torch.uint8, "device": "cuda"}
            return torch.randint(0, 256, shape, **options).view(torch.bfloat16)

        self.tensors = [layer() for _ in range(2 * LAYERS)]
        buffers = KvBuffers.mha(self.tensors[:LAYERS], self.tensors[LAYERS:])
        self.nbytes = tokens * buffers.bytes_per_token
        self.store = PrefixStore(buffers, host_bytes=self.nbytes + (1 << 20))
        order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(1))
        self.home = order[:tokens].cuda()
        self.target = order[tokens : 2 * tokens].cuda()

    def rows(self, slots: Any) -> list[Any]:
        """The bits at these slots."""
        return [tensor.view(self.torch.int16)[slots] for tensor in self.tensors]

    def save(self) -> None:
        """Save the prefix as if for the first time."""
        if self.store.agents():
            self.store.forget("a")
        self.store.place("a", range(self.tokens), self.home)
        self.store.save("a").wait()

    def load(self) -> None:
        """Load it, from a host copy that is there."""
        self.leave()
        self.store.load("a", self.target).wait()

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
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

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
        if direction == "load":
            rig.leave()
        before = getattr(rig.store.counts(), f"{direction}_s")
        start = time.perf_counter()
        getattr(rig, direction)()
        walls.append(time.perf_counter() - start)
        return float(getattr(rig.store.counts(), f"{direction}_s") - before)

    return median_of(once), statistics.median(walls[1:])


def is_exact(rig: Rig) -> bool:
    """Whether a save and a load bring back the bits, while the old slots are overwritten."""
    torch = rig.torch
    content = rig.rows(rig.home)
    rig.save()
    rig.leave()
    for tensor in rig.tensors:
        tensor.view(torch.int16)[rig.home] = 0
        tensor.view(torch.int16)[rig.target] = 0
    rig.load()
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


def overlap(rig: Rig, load_s: float) -> dict[str, float]:
    """A load beside matrix products that take about as long: alone and together."""
    torch = rig.torch
    left, right = (
        torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device="cuda") for _ in range(2)
    )
    out = torch.empty_like(left)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)

    count = max(1, round(load_s / (median_of(lambda: gpu_seconds(lambda: products(10))) / 10)))
    compute_s = median_of(lambda: gpu_seconds(lambda: products(count)))
    side = torch.cuda.Stream()

    def together() -> float:
        rig.leave()
        torch.cuda.synchronize()
        began, computed, loaded = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        began.record()
        transfer = rig.store.load("a", rig.target)
        products(count)
        computed.record()
        with torch.cuda.stream(side):
            transfer.wait_for_layer(LAYERS - 1)
            loaded.record()
        transfer.wait()
        computed.synchronize()
        loaded.synchronize()
        return max(float(began.elapsed_time(event)) / 1e3 for event in (computed, loaded))

    both_s = median_of(together)
    return {
        "load_s": load_s,
        "compute_s": compute_s,
        "both_s": both_s,
        "ratio": both_s / max(load_s, compute_s),
    }


def measure(tokens: int) -> dict[str, Any]:
    """All figures for a prefix of so many tokens."""
    gc.collect()  # the store before is in a cycle, and has a pool of its own
    rig = Rig(tokens)
    with rig.store:
        row: dict[str, Any] = {"tokens": tokens, "nbytes": rig.nbytes, "exact": is_exact(rig)}
        plain = plain_seconds(rig.nbytes)
        for direction in ("save", "load"):
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
        row["overlap"] = overlap(rig, row["load"]["seconds"])
    return row


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    copies = "  ".join(
        f"{name} {row[name]['gb_per_s']:5.1f} GB/s ({row[name]['share_of_plain']:.0%} of plain, "
        f"{row[name]['share_of_plain_wall']:.0%} by the clock)"
        for name in ("save", "load")
    )
    layers = row["layers_s"]
    return (
        f"{row['tokens']:5} tokens  {copies}  layer 0 after {layers['first'] * 1e3:.2f} of "
        f"{layers['last'] * 1e3:.2f} ms  with compute x{row['overlap']['ratio']:.2f}  "
        f"{'exact' if row['exact'] else 'WRONG BITS'}"
    )


def goals(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Which goals all sizes meet."""
    return {
        "exact": all(row["exact"] for row in rows),
        "bandwidth": all(
            row[name]["share_of_plain"] >= WANTED_SHARE for row in rows for name in ("save", "load")
        ),
        "overlap": all(row["overlap"]["ratio"] < WANTED_OVERLAP for row in rows),
    }


def main() -> int:
    """Print the table, write the JSON; 1 when a copy was not exact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    options = parser.parse_args()
    if not all(0 < tokens <= SLOTS // 2 for tokens in options.tokens):
        parser.error(f"--tokens: 1 to {SLOTS // 2}, got {options.tokens}")
    reason = reason_not_to_run()
    if reason is not None:
        print(f"prefix_copy_gpu: not run: {reason}")
        return 0
    report: dict[str, Any] = {"machine": machine(), "rows": []}
    print(json.dumps(report["machine"]))
    for tokens in options.tokens:
        report["rows"].append(measure(tokens))
        print(line(report["rows"][-1]), flush=True)
    report["goals"] = goals(report["rows"])
    print(json.dumps(report["goals"]))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if report["goals"]["exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
