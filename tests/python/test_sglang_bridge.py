"""The parts of the bridge, and the bridge on an engine made of lists: no SGLang is needed here."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import topas
from topas.sglang import HeadTable
from topas.sglang.agents import Agents
from topas.sglang.bridge import Bridge
from topas.sglang.clock import RankClock
from topas.sglang.leaders import Leaders
from topas.sglang.metrics import Counts
from topas.sglang.roster import Entry
from topas.sglang.settings import Settings
from topas.sglang.view import View

HEAD = list(range(100, 132))


class TestHeads:
    def test_the_length_is_that_of_all_prompts_in_whole_pages(self) -> None:
        heads = HeadTable(min_tokens=8, page_size=8)
        assert heads.see("a", [*HEAD, 1, 2]) == 0, "only one prompt is known"
        assert heads.see("a", [*HEAD, 3, 4]) == 32
        assert heads.see("a", [*HEAD[:30], 5, 6]) == 24
        assert heads.see("a", [*HEAD, 1, 2]) == 24, "it never grows again"
        assert list(heads.tokens("a", 24)) == HEAD[:24]
        assert heads.see("a", HEAD[:5]) == 0, "too short to be worth an agent"

    def test_the_last_token_is_never_part_of_it(self) -> None:
        heads = HeadTable(min_tokens=8, page_size=1)
        heads.see("a", HEAD)
        assert heads.see("a", HEAD) == 31

    def test_a_page_is_the_least(self) -> None:
        heads = HeadTable(min_tokens=2, page_size=16)
        assert heads.key_of(HEAD[:15]) is None
        assert heads.key_of(HEAD) == heads.key_of([*HEAD[:16], 9]) != heads.key_of([9, *HEAD])

    def test_the_least_recently_used_are_forgotten(self) -> None:
        heads = HeadTable(min_tokens=4, page_size=1, limit=2)
        for key in "abacc":
            heads.see(key, HEAD)
        assert [heads.length(key) for key in "abc"] == [31, 0, 31]
        assert len(heads) == 2
        heads.forget("a")
        heads.forget("never there")
        assert len(heads.tokens("a", 9)) == 0


class TestAgents:
    def make(self, limit: int = 4096) -> tuple[topas.Scheduler, Agents]:
        core = topas.Scheduler(
            topas.Config(
                kv_capacity_tokens=1000,
                kv_bytes_per_token=1.0,
                swap_bytes_per_s=1e6,
                decode_s_per_token=0.01,
            )
        )
        return core, Agents(core, HeadTable(min_tokens=8, page_size=8), limit)

    def test_ids_of_agents_are_never_glued_together(self) -> None:
        pairs = [(("ab", None), "c"), (("a", None), "bc"), (("a", "b"), "c"), ((None, "a"), "bc")]
        pairs += [(('a","b', None), "c"), ((None, None), 7), ((None, None), "7")]
        assert len({Agents.key(*pair) for pair in pairs}) == len(pairs)

    def test_a_prompt_without_the_head_leaves_no_head(self) -> None:
        _, agents = self.make()
        lengths = []
        for prompt in ([*HEAD, 1], [*HEAD, 2], [7, 8, 9], [*HEAD, 3]):
            lengths.append(agents.tokens(agents.named(0.0, (), "a", prompt)))
        assert lengths == [0, 32, 0, 0], "a prefix longer than a prompt would be none of its own"

    def test_the_engine_s_cache_says_what_is_resident(self) -> None:
        core, agents = self.make()
        for tail in (1, 2):
            name = agents.named(0.0, (), "a", [*HEAD, tail])
        agents.came(name)
        assert agents.tokens(name) == 32
        held: list[int] = []

        def holds(tokens: Any, namespace: Any) -> int:
            assert list(tokens) == HEAD
            return held[-1]

        for length, resident in ((32, [name]), (31, []), (0, []), (40, [name])):
            held.append(length)
            agents.look(1.0, holds)
            assert core.snapshot(1.0).to_dict()["resident"] == resident
            assert agents.is_held(name, holds) is bool(resident)
        agents.left(name)
        agents.look(2.0, holds)
        assert core.snapshot(2.0).to_dict()["resident"] == [], "nobody asks for it"
        assert agents.resident_tokens == (0, 0)

    def test_the_prefix_of_a_running_request_is_not_looked_for(self) -> None:
        core, agents = self.make()
        for tail in (1, 2):
            name = agents.named(0.0, (), "a", [*HEAD, tail])
        agents.came(name)
        agents.started(name)
        core.prefix_loaded(0.0, name)
        agents.look(1.0, lambda *_: pytest.fail("it is in use"))
        assert core.snapshot(1.0).to_dict()["resident"] == [name]

    def test_idle_agents_beyond_the_limit_are_forgotten(self) -> None:
        core, agents = self.make(limit=3)
        kept = agents.declare((), "of a workflow")
        agents.used_by_workflow(kept, 1)
        for name in "abcd":
            agents.named(0.0, (), name, [*HEAD, ord(name)])
        assert len(agents) == 3
        assert core.usage().agents == 3
        assert agents.tokens(kept) == 0


class TestLeaders:
    def make(self) -> tuple[Leaders, set[str], list[Entry]]:
        held: set[str] = set()
        agents = "aabb"
        entries = [Entry(at, SimpleNamespace(output_ids=[])) for at in range(4)]
        return Leaders(lambda entry: agents[entry.id], held.__contains__), held, entries

    def test_one_of_an_agent_goes_ahead_until_its_prefix_is_there(self) -> None:
        leaders, held, entries = self.make()
        assert [e.id for e in leaders.select(entries)] == [0, 2]
        entries[0].running = True
        assert [e.id for e in leaders.select(entries[1:])] == [2], "one computes the prefix of a"
        held.add("a")
        assert [e.id for e in leaders.select(entries[1:])] == [1, 2]

    def test_who_leads_no_more_is_followed_by_another(self) -> None:
        leaders, _, entries = self.make()
        leaders.select(entries)
        assert [e.id for e in leaders.select(entries[1:])] == [1, 2], "0 has left"


# ---- the bridge on an engine made of lists ----


class FakeReq:
    """A request as far as the bridge looks."""

    def __init__(self, rid: str, new: int = 4, prompt: int = 20) -> None:
        self.rid = rid
        start = sum(rid.encode()) * 1000
        self.origin_input_ids = list(range(start, start + prompt))
        self.output_ids: list[int] = []
        self.sampling_params = SimpleNamespace(
            max_new_tokens=new, ignore_eos=True, custom_params=None
        )
        self.extra_key = self.lora_id = self.to_finish = self.finished_reason = None

    def finished(self) -> bool:
        return self.finished_reason is not None


class FakeBatch:
    def __init__(self) -> None:
        self.reqs: list[FakeReq] = []
        self.batch_is_full = False
        self.released: list[str] = []

    def release_req(self, at: int, remaining: int) -> None:
        assert remaining == 0, "nothing else is evicted"
        self.released.append(self.reqs[at].rid)

    def filter_batch(self, keep_indices: list[int]) -> None:
        self.reqs = [self.reqs[at] for at in keep_indices]


class FakeEngine:
    """Runs up to ``room`` requests; a pass gives each of them a token."""

    def __init__(self, room: int = 8, capacity: int = 1000, limit: int | None = None) -> None:
        self.page_size, self.max_total_num_tokens = 1, capacity
        self.max_running_requests, self.enable_overlap = room, False
        self.waiting_queue: list[FakeReq] = []
        self.max_queued_requests = limit
        self.running_batch = FakeBatch()
        self.last_batch = self.chunked_req = None
        self.grammar_manager = SimpleNamespace(grammar_queue=[])
        self.new_token_ratio_tracker = SimpleNamespace(current=1.0)
        self.server_args = SimpleNamespace()
        self.shown: list[list[str]] = []
        self.room = room
        self.late: list[FakeReq] = []
        self.clock = RankClock()
        self.bridge = Bridge(View(self), Settings(), self.clock, Counts())

    def submit(self, *rids: str, new: int = 4) -> None:
        for rid in rids:
            self._add_request_to_queue(FakeReq(rid, new))

    def _add_request_to_queue(self, req: FakeReq, is_retracted: bool = False) -> None:
        limit = self.max_queued_requests
        assert not is_retracted or limit is None or len(self.waiting_queue) < limit, "it is aborted"
        self.waiting_queue.append(req)
        self.bridge.queued(req)

    def _admit(self) -> tuple[Any, FakeBatch]:
        self.shown.append([req.rid for req in self.waiting_queue])
        for req in self.late:
            self._add_request_to_queue(req)
        self.late = []
        free = self.room - len(self.running_batch.reqs)
        new, self.waiting_queue = self.waiting_queue[:free], self.waiting_queue[free:]
        self.running_batch.reqs += new
        return (SimpleNamespace(extend_num_tokens=20 * len(new), reqs=new) if new else None), (
            self.running_batch
        )

    def step(self) -> None:
        self.clock.now += 0.01
        self.bridge.schedule(self._admit, self.running_batch)
        for req in self.running_batch.reqs:
            req.output_ids.append(1)
            if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                req.finished_reason = "length"
        self.bridge.processed(SimpleNamespace(reqs=list(self.running_batch.reqs)))
        self.running_batch.reqs = [req for req in self.running_batch.reqs if not req.finished()]

    @property
    def queue(self) -> list[str]:
        return [req.rid for req in self.waiting_queue]

    @property
    def running(self) -> list[str]:
        return [req.rid for req in self.running_batch.reqs]

    def preempt(self, *rids: str) -> None:
        """Have the next decision throw these out, and do nothing else."""
        ledger = self.bridge.ledger
        by_rid = {entry.req.rid: entry.id for entry in self.bridge._roster}

        def decide(now: float, holds: Any) -> Any:
            del ledger.decide
            for rid in rids:
                ledger.stopped(now, by_rid[rid])
            return SimpleNamespace(admit=[], preempt=[by_rid[rid] for rid in rids])

        ledger.decide = decide  # type: ignore[method-assign]
        self.bridge._due = True


class TestBridge:
    def test_prompts_of_an_agent_need_have_nothing_in_common(self) -> None:
        engine = FakeEngine()
        for rid, prompt in (("a", 300), ("a", 300), ("short", 5), ("a", 300)):
            req = FakeReq(rid, prompt=prompt)
            req.sampling_params.custom_params = {"agent_hints": {"agent_id": "x"}}
            engine._add_request_to_queue(req)
        engine.step()
        tokens = {
            request["id"]: (request["input_tokens"], request["kv_tokens"])
            for request in engine.bridge.core.snapshot(1.0).to_dict()["requests"]
        }
        assert tokens == {1: (300, 304), 2: (300, 304), 3: (5, 9), 4: (300, 304)}
        assert engine.bridge.counts.fallbacks == {}

    def test_what_is_held_keeps_its_place_and_newcomers_go_behind(self) -> None:
        engine = FakeEngine(room=2)
        engine.submit("a", "b", "c", "d", new=50)
        engine.late = [FakeReq("late")]
        engine.step()
        assert engine.shown == [["a", "b"]], "the core has room for two"
        assert engine.queue == ["c", "d", "late"]
        engine.step()
        assert engine.shown[-1] == []
        assert engine.queue == ["c", "d", "late"]

    def test_a_victim_comes_back_behind_all_and_not_in_the_same_pass(self) -> None:
        engine = FakeEngine(room=2)
        engine.submit("a", "b", "c", new=50)
        engine.step()
        engine.preempt("a")
        engine.step()
        assert engine.running_batch.released == ["a"]
        assert "a" not in engine.shown[-1]
        assert engine.queue[-1] == "a"
        assert engine.bridge.core.usage().running == len(engine.running)

    def test_nobody_is_thrown_out_before_a_token_is_gained(self) -> None:
        engine = FakeEngine(room=2)
        engine.submit("a", "b", new=50)
        engine.step()
        first = engine.running_batch.reqs[0]
        first.output_ids.clear()  # with overlap, the first result is still to come
        engine.preempt("a", "b")
        engine.step()
        assert engine.running_batch.released == ["b"]
        assert engine.running == ["a"]
        assert engine.bridge.core.usage().running == 1, "the core knows that it stays"

    def test_no_more_are_thrown_out_than_the_queue_takes_back(self) -> None:
        engine = FakeEngine(room=4, limit=5)
        engine.submit("a", "b", "c", "d", new=50)
        engine.step()
        engine.submit("w", "x", "y")
        engine.preempt("a", "b", "c", "d")
        engine.step()
        assert engine.running_batch.released == ["a", "b"]
        assert engine.queue == ["w", "x", "y", "a", "b"]

    def test_the_first_that_is_refused_lets_the_next_one_try(self) -> None:
        engine = FakeEngine(room=4)
        engine.submit("runs", new=10)
        engine.step()
        engine.submit("a", "b", "c", new=5)
        engine.room = 1
        for _ in range(4):
            engine.step()
        assert engine.shown[1:] == [["a", "b", "c"], ["b", "c"], ["c"], []]
        assert engine.bridge.counts.refusals == 3
        assert engine.bridge.core.usage().running == 1
        assert engine.queue == ["a", "b", "c"]
        engine.room = 4
        for _ in range(12):
            engine.step()
        assert engine.queue == engine.running == []
        assert engine.bridge.counts.fallbacks == {}

    def test_a_request_that_vanishes_is_aborted(self) -> None:
        engine = FakeEngine(room=1)
        engine.submit("a", "b", new=50)
        engine.step()
        engine.waiting_queue.clear()
        engine.bridge.aborted()
        engine.step()
        assert engine.bridge.core.usage().waiting == 0
        assert len(engine.bridge._roster) == 1

    @pytest.mark.parametrize(
        ("admit", "preempt", "why"),
        [
            ([1], [], "does not wait"),
            ([], [2], "which waits"),
            ([2, 2], [], "twice"),
            ([], [1, 1], "twice"),
            ([2], [2], "twice"),
            ([9], [], "9"),
            ([], ["x"], "x"),
        ],
    )
    def test_what_a_decision_cannot_be(self, admit: list, preempt: list, why: str) -> None:
        engine = FakeEngine(room=1)
        engine.submit("a", "b", new=50)
        engine.step()
        engine.bridge._roster.check([2], [1])
        with pytest.raises((topas.StateError, KeyError), match=why):
            engine.bridge._roster.check(admit, preempt)

    def test_service_is_what_it_ran(self) -> None:
        engine = FakeEngine(room=1)
        done: list[tuple[int, float]] = []
        complete = engine.bridge.ledger.completed

        def completed(now: float, rid: Any, service_s: float) -> None:
            done.append((rid, service_s))
            complete(now, rid, service_s)

        engine.bridge.ledger.completed = completed  # type: ignore[method-assign]
        engine.submit("a", "b", new=10)
        for _ in range(25):
            engine.step()
        assert [rid for rid, _ in done] == [1, 2]
        assert [took for _, took in done] == pytest.approx([0.09, 0.09])

    def test_time_without_work_is_no_cost(self) -> None:
        engine = FakeEngine()
        for rid in ("a", "b"):
            engine.submit(rid)
            for _ in range(4):
                engine.step()
            for _ in range(3):
                engine.bridge.schedule(engine._admit, engine.running_batch)
            assert not engine.clock.busy, "nobody asks for the time"
            engine.clock.now += 30.0
        assert engine.bridge._costs.decode_s_per_token == pytest.approx(0.01)

    def test_a_task_expires_while_the_engine_is_idle(self) -> None:
        engine = FakeEngine()
        graph = {
            "name": "flow",
            "stages": [{"name": name, "agent": "x"} for name in ("one", "two")],
        }
        hints = {"workflow_id": "t", "step_id": "one", "agent_id": "x", "workflow_graph": graph}
        req = FakeReq("a")
        req.sampling_params.custom_params = {"agent_hints": hints}
        engine._add_request_to_queue(req)
        for _ in range(5):
            engine.step()
        assert engine.bridge.ledger.tasks == 1
        decisions = engine.bridge.counts.decisions
        while engine.clock.busy:
            engine.clock.now += 20.0
            engine.step()
        assert engine.bridge.ledger.tasks == engine.bridge.core.usage().tasks == 0
        assert engine.bridge.counts.gauges["tasks_live"] == 0
        assert 300.0 < engine.clock.now < 340.0
        assert engine.bridge.counts.decisions == decisions, "nobody waits"

    def test_prompt_tokens_are_read_as_they_are(self) -> None:
        engine = FakeEngine()
        engine.submit("a")
        engine.step()
        request = engine.bridge.core.snapshot(1.0).to_dict()["requests"][0]
        assert (request["input_tokens"], request["kv_tokens"]) == (20, 24)


class TestFiveThousandPasses:
    """Case 16, with the real core: random events, and a look at every decision and every pass."""

    @pytest.mark.parametrize("seed", range(2))
    def test_nothing_is_named_twice_lost_or_left(self, seed: int) -> None:
        draw = random.Random(seed)
        engine = FakeEngine(room=6, capacity=400, limit=60)
        bridge, wrong = engine.bridge, list[str]()
        sent: list[FakeReq] = []

        def look(decision: topas.Decision) -> None:
            ids = [*decision.admit, *decision.preempt]
            if len(set(ids)) != len(ids):
                wrong.append(f"twice: {ids}")
            usage = bridge.core.usage()
            if usage.kv_tokens > 400 or usage.running + usage.waiting != len(bridge._roster):
                wrong.append(f"{usage.kv_tokens} tokens, {usage.running} + {usage.waiting}")

        bridge.on_decision = look
        # its cache comes and goes
        bridge.view.holds = lambda tokens, _: len(tokens) * (draw.random() < 0.7)  # type: ignore[method-assign]
        for number in range(5000):
            if draw.random() < 0.3 and len(engine.waiting_queue) < 40:
                req = FakeReq(f"r{number}", draw.randrange(1, 20), draw.randrange(5, 60))
                agent = draw.randrange(20)
                req.origin_input_ids[:0] = range(agent * 1000, agent * 1000 + 70)
                sent.append(req)
                engine._add_request_to_queue(req)
            if engine.waiting_queue and draw.random() < 0.05:  # SGLang drops it without a word
                engine.waiting_queue.pop(draw.randrange(len(engine.waiting_queue))).rid = "gone"
                bridge.aborted()
            if engine.running_batch.reqs and draw.random() < 0.05:  # SGLang retracts by itself
                engine._add_request_to_queue(engine.running_batch.reqs.pop(), True)
            engine.room = draw.choice((6, 6, 6, 2))
            engine.step()
            there = engine.queue + engine.running
            if len(there) != len(set(there)) or len(there) != len(bridge._roster):
                wrong.append(f"{there} and {len(bridge._roster)} entries")
        engine.room = 6
        for _ in range(1000):
            engine.step()
        assert wrong == []
        assert bridge.counts.fallbacks == {}
        assert bridge.counts.decisions > 1000
        assert all(req.finished() or req.rid == "gone" for req in sent)
        assert len(sent) > 500
        assert len(bridge._roster) == bridge.core.usage().running == bridge.core.usage().tasks == 0
