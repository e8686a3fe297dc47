"""The stock server behind HTTP, driven by topas: answers, hints, health, aborts, metrics, the end.

One server serves all tests of this file, in their order. A plugin of the tests beside topas tells
what the processes have imported, and makes a decision fail when it is asked to.
"""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from driving import PREFIXES, VERSION, Asked, load, tokens
from server import Server, write_plugin
from transformers import AutoTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Expected = Callable[[list[Asked]], dict[str, list[int]]]
    Labels = tuple[tuple[str, str], ...]

pytestmark = pytest.mark.skipif(VERSION != (0, 5, 23), reason="only the newest serves HTTP here")

CONFIG = """
reask_s: 0.2
workflows:
  - name: chain
    stages:
      - {name: plan, agent: planner, service_s: 0.2}
      - {name: code, agent: coder, after: [plan], service_s: 0.2}
"""

PLUGIN = """
import os, sys, threading, time

def activate():
    threading.Thread(target=look, daemon=True).start()
    from topas.sglang.ledger import Ledger
    decide = Ledger.decide

    def may_fail(*args):
        if os.path.exists(os.environ["TEST_FAIL"]):
            os.remove(os.environ["TEST_FAIL"])
            raise ValueError("asked for by a test")
        return decide(*args)

    Ledger.decide = may_fail

def look():
    time.sleep(4)
    found = [name for name in ("detokenizer_manager", "scheduler")
        if "sglang.srt.managers." + name in sys.modules]
    print("IMPORTED", *found, flush=True)
"""


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the server."""
    directory = tmp_path_factory.mktemp("server")
    (directory / "topas.yaml").write_text(CONFIG)
    write_plugin(directory / "plugins", "watcher", PLUGIN)
    environment = {
        "SGLANG_PLUGINS": "topas,watcher",
        "TOPAS_ENABLE": "1",
        "TOPAS_CONFIG": str(directory / "topas.yaml"),
        "TEST_FAIL": str(directory / "fail"),
    }
    arguments = {"max_total_tokens": 2400, "enable_metrics": True, "served_model_name": "tiny"}
    log = directory / "log"
    with Server(model, log, arguments, path=directory / "plugins", **environment) as server:
        server.fail = directory / "fail"  # type: ignore[attr-defined]
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def text_of(model: Path) -> Callable[[list[int]], str]:
    """Return the function that writes tokens as the server does."""
    return AutoTokenizer.from_pretrained(model).decode


def body_of(one: Asked, **more: Any) -> dict[str, Any]:
    """Return the body of ``/v1/completions`` for a request of the tests."""
    greedy = {"temperature": 0, "ignore_eos": True}
    return {"model": "tiny", "prompt": one.prompt, "max_tokens": one.new, **greedy, **more}


def complete(server: Server, one: Asked, **more: Any) -> str:
    answer = server.post("/v1/completions", body_of(one, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def hints(**fields: Any) -> dict[str, Any]:
    """Return the body field that carries ``agent_hints`` as JSON text."""
    return {"custom_params": {"agent_hints": json.dumps(fields)}}


def until(what: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def value(server: Server, name: str, **labels: str) -> float:
    """Return a sample of topas at ``/metrics``; 0 when it is not there."""
    key = tuple(sorted({"model_name": "tiny", **labels}.items()))
    return server.metrics().get("topas:" + name, {}).get(key, 0.0)


class Stream:
    """A request whose answer is streamed; its first tokens are there."""

    def __init__(self, server: Server, one: Asked, **more: Any) -> None:
        body = body_of(one, stream=True, **more)
        self._answer = server.post("/v1/completions", body, stream=True)
        assert self._answer.status_code == 200
        self._lines = self._answer.iter_lines()  # the connection ends with the iterator
        while not next(self._lines):
            pass

    def close(self) -> None:
        """Disconnect."""
        self._answer.close()


def test_the_scheduler_process_is_driven_and_the_detokenizer_is_left_alone(
    server: Server,
) -> None:
    (line,) = server.lines("policy=topas")
    assert "rank=0 sglang=0.5.23 capacity=2400 tokens page_size=1 max_running=4" in line
    until(lambda: len(server.lines("IMPORTED")) == 3)
    assert "IMPORTED detokenizer_manager" in server.lines("IMPORTED")


def test_concurrent_answers_are_those_of_stock_sglang(
    server: Server, expected: Expected, text_of: Callable[[list[int]], str]
) -> None:
    asked = load(24)
    want = {rid: text_of(ids) for rid, ids in expected(asked).items()}
    assert len(set(want.values())) == len(asked)
    with ThreadPoolExecutor(16) as pool:
        got = pool.map(lambda one: complete(server, one), asked)
    assert dict(zip(want, got, strict=True)) == want


def test_workflows_in_every_carrier_are_served_and_told_apart(
    server: Server, expected: Expected, text_of: Callable[[list[int]], str]
) -> None:
    asked = load(24)
    want = {rid: text_of(ids) for rid, ids in expected(asked).items()}
    before = value(server, "task_seconds_count", workflow="chain")

    def run_task(at: int) -> list[str]:
        fields = {"workflow_id": f"wf-secret-{at}", "workflow": "chain"}
        plan = {**fields, "step_id": "plan", "step_finish": True}
        code = {**fields, "step_id": "code", "finish": True}
        first, second = asked[2 * at], asked[2 * at + 1]
        if at % 2:
            return [
                complete(server, first, **hints(**plan)),
                complete(server, second, **hints(**code)),
            ]
        texts = []
        for one, step in ((first, plan), (second, code)):
            header = {"x-smg-routing-key": json.dumps(step)}
            answer = server.post("/v1/completions", body_of(one), headers=header)
            texts.append(answer.json()["choices"][0]["text"])
        return texts

    with ThreadPoolExecutor(6) as pool:
        got = [text for texts in pool.map(run_task, range(12)) for text in texts]
    assert dict(zip(want, got, strict=True)) == want
    until(lambda: value(server, "task_seconds_count", workflow="chain") == before + 12)
    assert value(server, "task_seconds_sum", workflow="chain") > 0
    assert value(server, "live_tasks") == 0


def test_a_task_lives_until_it_says_that_it_ends(server: Server) -> None:
    fields = {"workflow_id": "wf-secret-open", "workflow": "chain"}
    complete(server, load(1)[0], **hints(**fields, step_id="plan"))
    until(lambda: value(server, "live_tasks") == 1)
    complete(server, load(1)[0], **hints(**fields, step_id="plan", finish=True))
    until(lambda: value(server, "live_tasks") == 0)


def test_a_session_and_a_plain_routing_key_do_no_harm(
    server: Server, expected: Expected, text_of: Callable[[list[int]], str]
) -> None:
    (one,) = asked = load(1)
    want = text_of(expected(asked)[one.rid])
    before = server.metrics().get("topas:hint_errors_total")
    assert complete(server, one, session_id="session-1") == want
    header = {"x-smg-routing-key": "wf-secret-key/planner/plan"}
    answer = server.post("/v1/completions", body_of(one), headers=header)
    assert answer.json()["choices"][0]["text"] == want
    assert server.metrics().get("topas:hint_errors_total") == before


def test_malformed_hints_change_nothing_and_are_counted_by_kind(
    server: Server, expected: Expected, text_of: Callable[[list[int]], str]
) -> None:
    (one,) = asked = load(1)
    want = text_of(expected(asked)[one.rid])
    bad: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("bad_agent_hints", {"custom_params": {"agent_hints": "{broken"}}, {}),
        ("bad_workflow_id", hints(workflow_id=[1], agent_id="a"), {}),
        ("unknown_workflow", hints(workflow_id="wf-secret-x", workflow="no", step_id="s"), {}),
        ("bad_routing_key", {}, {"x-smg-routing-key": "a/b"}),
    ]
    before = {kind: value(server, "hint_errors_total", kind=kind) for kind, _, _ in bad}
    for _, more, header in bad:
        answer = server.post("/v1/completions", body_of(one, **more), headers=header)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == want
    for kind, count in before.items():
        assert value(server, "hint_errors_total", kind=kind) == count + 1


def test_a_chat_is_answered_as_by_stock_sglang(
    server: Server, expected: Expected, text_of: Callable[[list[int]], str]
) -> None:
    prompt = [2 + byte for byte in b"<user>What is a prefix?<assistant>"]
    (want,) = expected([Asked("chat", prompt, 12)]).values()
    body = {"model": "tiny", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "What is a prefix?"}]
    answer = server.post("/v1/chat/completions", body | hints(workflow_id="c", agent_id="chat"))
    assert answer.json()["usage"]["prompt_tokens"] == len(prompt)
    assert answer.json()["choices"][0]["message"]["content"] == text_of(want)


def test_three_samples_of_one_prompt_are_one_stage(
    server: Server, expected: Expected, text_of: Callable[[list[int]], str]
) -> None:
    (one,) = asked = [Asked("n", PREFIXES[1] + tokens(7, 9), 10)]
    want = text_of(expected(asked)[one.rid])
    before = value(server, "task_seconds_count", workflow="chain")
    fields = {"workflow_id": "wf-secret-n", "workflow": "chain", "step_id": "plan", "finish": True}
    answer = server.post("/v1/completions", body_of(one, n=3, **hints(**fields)))
    assert [choice["text"] for choice in answer.json()["choices"]] == [want] * 3
    until(lambda: value(server, "task_seconds_count", workflow="chain") > before)
    until(lambda: value(server, "live_tasks") == 0)


def test_a_client_that_disconnects_leaves_nothing(server: Server) -> None:
    streams = [Stream(server, Asked(f"s{i}", tokens(i, 20), 1000)) for i in range(2)]
    until(lambda: value(server, "running_requests") == 2)
    streams[0].close()
    until(lambda: value(server, "running_requests") == 1)
    streams[1].close()
    until(lambda: value(server, "running_requests") == value(server, "held_requests") == 0)
    complete(server, load(1)[0])


def test_health_is_answered_while_requests_run_and_wait(server: Server) -> None:
    streams = [Stream(server, Asked(f"h{i}", tokens(i, 20), 550)) for i in range(4)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(complete, server, one) for one in load(3)]
        until(lambda: value(server, "held_requests") > 0)
        assert server.get("/health", timeout=10).status_code == 200
        assert server.get("/health_generate", timeout=10).status_code == 200
        for each in streams:
            each.close()
        for each in waiting:
            assert each.result()
    assert server.get("/health_generate", timeout=10).status_code == 200


def test_a_request_id_is_refused_while_it_lives_and_free_afterwards(server: Server) -> None:
    one = load(1)[0]
    first = Stream(server, Asked("x", tokens(1, 20), 1000), rid="twice")
    answer = server.post("/v1/completions", body_of(one, rid="twice"))
    assert answer.status_code == 400
    assert "twice" in answer.text
    first.close()
    until(lambda: value(server, "running_requests") == 0)
    again = body_of(one, rid="twice")  # the front end forgets an id a little after the scheduler
    until(lambda: server.post("/v1/completions", again).status_code == 200)
    assert complete(server, one, rid="twice") == complete(server, one, rid="twice")


def test_a_decision_that_fails_is_left_to_sglang_and_counted(
    server: Server, expected: Expected, text_of: Callable[[list[int]], str]
) -> None:
    asked = load(8)
    want = {rid: text_of(ids) for rid, ids in expected(asked).items()}
    assert value(server, "fallbacks_total", reason="ValueError") == 0
    server.fail.touch()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(8) as pool:
        got = pool.map(lambda one: complete(server, one), asked)
    assert dict(zip(want, got, strict=True)) == want
    assert value(server, "fallbacks_total", reason="ValueError") == 1
    assert len(server.lines("this pass is left to SGLang's own policy")) == 1
    assert server.lines("asked for by a test")


METRICS = {
    "decision_seconds_count": {"model_name"},
    "decision_seconds_sum": {"model_name"},
    "decision_seconds_bucket": {"model_name", "le"},
    "bridge_seconds_total": {"model_name"},
    "admissions_total": {"model_name"},
    "preemptions_total": {"model_name"},
    "refusals_total": {"model_name"},
    "fallbacks_total": {"model_name", "reason"},
    "hint_errors_total": {"model_name", "kind"},
    "task_seconds_count": {"model_name", "workflow"},
    "task_seconds_sum": {"model_name", "workflow"},
    "task_seconds_bucket": {"model_name", "workflow", "le"},
    "held_requests": {"model_name"},
    "running_requests": {"model_name"},
    "live_tasks": {"model_name"},
    "resident_prefixes": {"model_name"},
    "resident_prefix_tokens": {"model_name"},
    "prefill_fixed_seconds": {"model_name"},
    "prefill_token_seconds": {"model_name"},
    "decode_token_seconds": {"model_name"},
    "task_scale_seconds": {"model_name"},
}


def test_every_metric_is_there_without_ids_of_workflows(server: Server) -> None:
    found = server.metrics()
    names = {name: {label for key in of for label, _ in key} for name, of in found.items()}
    assert names == {"topas:" + name: labels for name, labels in METRICS.items()}
    words = {word for of in found.values() for key in of for _, word in key}
    assert "chain" in words
    assert not any("secret" in word or "session" in word for word in words)
    done = sum(found["topas:task_seconds_count"].values())
    assert value(server, "admissions_total") >= done >= 60
    assert value(server, "bridge_seconds_total") > value(server, "decision_seconds_sum") > 0


def test_the_profile_at_the_endpoint_is_about_what_a_client_sees(server: Server) -> None:
    until(lambda: bool(server.lines("profile: prefill")))
    (line,) = server.lines("profile: prefill")[:1]
    assert "us/token, decode" in line
    assert "no copies" in line
    prompt, new = tokens(99, 600), 60
    took = {}
    for attempt in range(3):  # the machine may be busy: the quickest of each
        for count in (1, new):
            one = Asked("p", tokens(10 * attempt + count, 10) + prompt, count)
            begin = time.monotonic()
            complete(server, one)
            took[count] = min(time.monotonic() - begin, took.get(count, math.inf))
    prefill_s = value(server, "prefill_fixed_seconds") + 600 * value(
        server, "prefill_token_seconds"
    )
    # a client waits for the other processes too, and the usual step has several requests in it
    assert prefill_s / 10 < took[1] < 20 * prefill_s + 0.5
    step_s = (took[new] - took[1]) / (new - 1)
    assert 0.05 < value(server, "decode_token_seconds") / step_s < 20
    assert value(server, "task_scale_seconds") > 0


def test_the_names_of_workflows_are_bounded_as_labels() -> None:
    from prometheus_client import REGISTRY
    from topas.sglang.metrics import Prometheus

    def finished(workflow: str) -> float | None:
        labels = {"model_name": "bounded", "workflow": workflow}
        return REGISTRY.get_sample_value("topas:task_seconds_count", labels)

    for counts in (Prometheus({"model_name": "bounded"}), Prometheus({"model_name": "bounded"})):
        for at in range(150):
            counts.task_ended(f"w{at:03}", 1.0)
        counts.task_ended("w007", 1.0)
        counts.task_ended(None, 1.0)
    assert (finished("w007"), finished("w099"), finished("w100")) == (4, 2, None)
    assert (finished("(other)"), finished("(none)")) == (2 * 50, 2)


def test_an_interrupt_ends_the_server_clean(server: Server) -> None:
    assert server.process.poll() is None
    assert len(server.lines("Traceback")) == 1, "only that of the decision that failed"
    # SGLang may end by the signal, or kill itself with its children: no status of an error
    assert server.interrupt() <= 0
    assert server.gone()
    assert server.lines("Scheduler hit an exception") == []
