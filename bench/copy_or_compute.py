"""What it takes to bring a prefix back: a copy from host memory, or computing it again.

    .venv-sglang/bin/python bench/copy_or_compute.py [--json OUT] [--tokens N ...]

On a CPU, in a stock SGLang scheduler in this process (tests/sglang) with a random Qwen2 of 28 M
parameters: requests of one prompt of N tokens are served, each once with nothing of it in the
radix tree and once with all of it there; then its KV is copied out of the engine's pool and back
into other slots, and compared bit for bit. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import description
from sglang_policies import installed

TOKENS = (256, 512, 1024, 2048, 4096)
ROUNDS = 5
VOCAB = 1000


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def serve(engine: Any, prompt: list[int], name: str) -> float:
    """Seconds for a request of one output token, alone."""
    engine.submit(name, prompt, 1)
    return seconds(engine.run)


class Copies:
    """A store on an engine's pool, and seconds of its copies."""

    def __init__(self, engine: Any, tokens: int) -> None:
        from topas.sglang.prefix_copy import KvBuffers, PrefixStore

        self._engine = engine
        self._allocator = engine.scheduler.token_to_kv_pool_allocator
        buffers = KvBuffers.of_pool(self._allocator.get_kvcache())
        self.bytes_per_token = buffers.bytes_per_token
        self._store = PrefixStore(
            buffers, host_bytes=2 * tokens * self.bytes_per_token, page_size=1
        )

    def measure(self, prompt: list[int]) -> dict[str, Any]:
        """Out of the slots of a prompt that is in the tree, and into others."""
        store, slots = self._store, self._engine.cached_slots(prompt)
        store.place("prefix", prompt[: len(slots)], slots)
        save_s = seconds(lambda: store.save("prefix").wait())
        store.release("prefix")
        others = self._allocator.alloc(len(slots))
        load_s = seconds(lambda: store.load("prefix", others).wait())
        exact = self._same(slots, others)
        store.forget("prefix")
        self._allocator.free(others)
        return {"save_s": save_s, "load_s": load_s, "exact": exact, "tokens": len(slots)}

    def _same(self, slots: Any, others: Any) -> bool:
        kv = self._allocator.get_kvcache()
        return all(
            bool((layer[slots] == layer[others]).all()) for layer in (*kv.k_buffer, *kv.v_buffer)
        )

    def close(self) -> None:
        """Free the host memory."""
        self._store.close()


def measure(model: str, tokens: int, rounds: int) -> dict[str, Any]:
    """A row: medians over so many prompts of a length."""
    from engine import InProcessEngine
    from tiny_model import write_model

    with tempfile.TemporaryDirectory() as folder:
        engine = InProcessEngine(
            model_path=str(write_model(Path(folder) / "model", model)),
            max_total_tokens=3 * tokens + 64,
        )
    computed, cached, copied = [], [], []
    with engine:
        copies = Copies(engine, tokens)
        for at in range(rounds + 1):
            draw = random.Random(at)
            prompt = [draw.randrange(2, VOCAB) for _ in range(tokens)]
            fresh_s = serve(engine, prompt, f"fresh-{at}")
            again_s = serve(engine, prompt, f"again-{at}")
            moved = copies.measure(prompt)
            if at > 0:  # the first of each warms up
                computed.append(fresh_s)
                cached.append(again_s)
                copied.append(moved)
            engine.scheduler.flush_cache()
        copies.close()
    row: dict[str, Any] = {
        "tokens": tokens,
        "mib": tokens * copies.bytes_per_token / 2**20,
        "computed_ms": 1e3 * statistics.median(computed),
        "cached_ms": 1e3 * statistics.median(cached),
    }
    for name in ("load", "save"):
        row[f"{name}_ms"] = 1e3 * statistics.median(one[f"{name}_s"] for one in copied)
    row["exact"] = all(one["exact"] and one["tokens"] == tokens for one in copied)
    row["ratio"] = (row["computed_ms"] - row["cached_ms"]) / row["load_ms"]
    return row


def compare(
    *, model: str = "medium", tokens: tuple[int, ...] = TOKENS, rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """A row for each length."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sglang"))
    return [measure(model, count, rounds) for count in tokens]


def report(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = [
        "| tokens | KV, MiB | prompt computed, ms | cached, ms | copy in, ms | copy out, ms "
        "| computing / copying in | bits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = (row[name] for name in ("computed_ms", "cached_ms", "load_ms", "save_ms"))
        cells = " | ".join(f"{value:,.1f}" for value in times)
        same = "equal" if row["exact"] else "DIFFER"
        lines.append(
            f"| {row['tokens']:,} | {row['mib']:.0f} | {cells} | {row['ratio']:,.0f} | {same} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    arguments = parser.parse_args()
    if not installed():
        print("SGLang is not installed here")
        return 0
    rows = compare(tokens=tuple(arguments.tokens))
    print(report(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({**description(), "rows": rows}, indent=2) + "\n")
    return 0 if all(row["exact"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
