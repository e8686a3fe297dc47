"""A whole server with copies on: answers, restored prefixes, a flush, and a clean end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from driving import VERSION, Asked, tokens
from residents import COPIES, LENGTH, POOL, PREFIXES, load
from server import Server

if TYPE_CHECKING:
    from pathlib import Path

    import driving

pytestmark = pytest.mark.skipif(VERSION != (0, 5, 23), reason="only the newest serves HTTP here")


def test_a_server_restores_prefixes(
    model: Path, expected: driving.Expected, tmp_path: Path
) -> None:
    asked = load()
    again = Asked("again", PREFIXES[0] + tokens(3, 6), 6)
    answers = expected([*asked, again])
    (tmp_path / "topas.yaml").write_text(yaml.safe_dump(COPIES))
    environment = {
        "SGLANG_PLUGINS": "topas",
        "TOPAS_ENABLE": "1",
        "TOPAS_CONFIG": str(tmp_path / "topas.yaml"),
    }
    with Server(model, tmp_path / "log", {"max_total_tokens": POOL}, **environment) as server:
        server.wait_ready()

        def send(one: Asked) -> Any:
            body = {
                "input_ids": one.prompt,
                "sampling_params": {
                    "max_new_tokens": one.new,
                    "temperature": 0,
                    "ignore_eos": True,
                },
            }
            return server.post("/generate", body).json()

        with ThreadPoolExecutor(4) as pool:
            got = dict(zip([one.rid for one in asked], pool.map(send, asked), strict=True))
        assert {rid: one["output_ids"] for rid, one in got.items()} == {
            rid: ids for rid, ids in answers.items() if rid != "again"
        }
        later = [one.rid for one in asked[len(asked) // 2 :]]
        whole = [rid for rid in later if got[rid]["meta_info"]["cached_tokens"] >= LENGTH]
        assert len(whole) >= len(later) - 2, "what was computed once is copied from then on"
        assert server.post("/flush_cache", {}).ok
        restored = send(again)
        assert restored["output_ids"] == answers["again"]
        assert restored["meta_info"]["cached_tokens"] == 0, "the flush forgets host copies too"
        assert not server.lines("Traceback")
        server.interrupt()
        assert server.gone()
