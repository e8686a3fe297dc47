"""Failures people hit with such systems, as tests: starvation, livelock, blocking, victims.

Case numbers are those of the project's list of cases; settings are theirs too (`case_config`).
"""

from __future__ import annotations

import pytest
from scenarios import RATE, Engine, Job, case_config, one_stage
from topas import Config, Decision, Scheduler, decide, explain


def tick(now: float, step: float, period: float) -> bool:
    """Say whether a multiple of ``period`` lies in [now, now + step)."""
    return int((now + step) / period + 1e-9) > int(now / period + 1e-9) or now == 0.0


class TestCase1LocalityNeverReachesAColdRequest:
    """A stream of warm requests must not keep a cold one waiting for ever."""

    LOAD_S = 2.0  # for one prefix; twice the service of a request

    def engine(self, age_weight: float, preset: str = "guarded") -> Engine:
        config = case_config(
            1000, preset=preset, age_weight=age_weight, swap_bytes_per_s=300 / self.LOAD_S
        )
        return Engine(config, {"A": 300, "B": 300})

    def run(self, age_weight: float, preset: str, horizon: float = 60.0) -> tuple[Engine, Job]:
        """Serve a stream of A and one B; stop when B is admitted."""
        engine = self.engine(age_weight, preset)
        cold: Job | None = None
        arrivals = 0
        while engine.now < horizon:
            while arrivals * 0.75 <= engine.now:
                engine.arrive(f"warm {arrivals}", "A")
                arrivals += 1
            if engine.now == 0.5:
                cold = engine.arrive("cold", "B")
            engine.decide()
            busy = sum(job.running for job in engine.jobs.values() if job.agent == "A")
            assert busy in (1, 2), "the stream is as the case wants it"
            if cold is not None and cold.running:
                break
            engine.advance(0.25)
        assert cold is not None
        return engine, cold

    @pytest.mark.parametrize("preset", ["paper", "guarded"])
    def test_with_ageing_the_cold_one_is_admitted_in_bounded_time(self, preset: str) -> None:
        _, cold = self.run(1.0, preset)
        # g · 1 s > 2 s once it has waited for longer than H_age, which stays at 1 s
        assert cold.admitted == [1.5]

    @pytest.mark.parametrize("preset", ["paper", "guarded"])
    def test_without_ageing_it_may_wait(self, preset: str) -> None:
        engine, cold = self.run(0.0, preset)
        assert cold.admitted == []
        assert sum(job.finished is not None for job in engine.jobs.values()) > 70

    @pytest.mark.parametrize("age_weight", [0.0, 1.0])
    def test_without_other_work_it_is_admitted_at_once(self, age_weight: float) -> None:
        """Although its score is below that of doing nothing."""
        engine = self.engine(age_weight)
        engine.arrive("cold", "B")
        decision = engine.decide()
        assert decision.admit == ["cold"]
        assert decision.score == pytest.approx(1.0 - self.LOAD_S)

    @pytest.mark.parametrize("most", [0, 8], ids=["greedy", "enumerated"])
    def test_without_other_work_that_fits_it_is_admitted_at_once(self, most: int) -> None:
        """The prefix of an impossible request is resident: dropping it must not end the search."""
        config = case_config(
            1000, enumerate_max_agents=most, swap_bytes_per_s=300 / self.LOAD_S, age_weight=0.0
        )
        engine = Engine(config, {"A": 300, "B": 300})
        engine.arrive("warm", "A")
        engine.decide()
        engine.advance(1.0)
        engine.arrive("impossible", "A", input_tokens=1000)
        engine.arrive("cold", "B")
        decision = engine.decide()
        assert (decision.admit, decision.drop) == (["cold"], ["A"])
        assert decision.score < 0.0

    def test_age_multiplies_admission_progress_and_nothing_else(self) -> None:
        """The same preempting decision, at two ages; credits as the published score has them."""
        terms = []
        for now in (50.0, 100.0):
            config = case_config(
                500, preset="paper", age_scale_s=10.0, swap_bytes_per_s=300 / self.LOAD_S
            )
            engine = Engine(config, {"A": 300, "B": 300})
            engine.scheduler.task_arrived(0.0, "old", "B")
            engine.now = 1.0
            engine.arrive("fresh", "A")
            engine.decide()
            engine.scheduler.request_progress(1.0, "fresh", 7)
            engine.scheduler.request_ready(now, "old", "old", "work", 50, 50)
            decision = engine.scheduler.decide(now)
            assert (decision.preempt, decision.admit) == (["fresh"], ["old"])
            terms.append(decision.terms)
        early, late = terms
        assert (early.admit, late.admit) == pytest.approx((1.0 + 50 / 10, 1.0 + 100 / 10))
        assert early.move == late.move == pytest.approx(2 * self.LOAD_S)
        assert early.redo == late.redo == pytest.approx(7 * 0.02)
        assert early.revoke == late.revoke == pytest.approx(1.0)


class TestCase3PreemptAndReadmitForEver:
    """Two long tasks that cannot run together must not throw each other out at every event."""

    SERVICE = 60.0
    STEP = 0.1

    def engine(self, preset: str, age_weight: float, age_scale_s: float | None) -> Engine:
        config = case_config(700, preset=preset, age_weight=age_weight, age_scale_s=age_scale_s)
        return Engine(config, {"A": 500, "B": 500}, self.SERVICE)

    def run_two(self, engine: Engine, horizon: float = 400.0) -> list[Job]:
        """Serve one long task of each agent; their service is known beforehand."""
        for agent in ("A", "B"):
            engine.observe(agent, self.SERVICE)
        for agent in ("A", "B"):
            engine.arrive(f"long {agent}", agent, self.SERVICE, 50, 100)
        while engine.now < horizon and any(j.finished is None for j in engine.jobs.values()):
            engine.decide()
            engine.advance(self.STEP)
        return list(engine.jobs.values())

    def run_mix(self, preset: str) -> Engine:
        """Serve a long task of each agent among short ones; H_age as the library estimates it."""
        engine = self.engine(preset, 1.0, None)
        for agent in ("A", "B"):
            engine.arrive(f"long {agent}", agent, self.SERVICE, 50, 100)
        short = 0
        while engine.now < 500.0 and any(j.finished is None for j in engine.jobs.values()):
            if engine.now < 60.0 and tick(engine.now, self.STEP, 2.0):
                engine.arrive(f"short {short}", "AB"[short % 2], 1.0, 20, 30)
                short += 1
            engine.decide()
            engine.advance(self.STEP)
        return engine

    @pytest.mark.parametrize("preset", ["paper", "guarded"])
    def test_moderate_ageing_never_preempts(self, preset: str) -> None:
        engine = self.engine(preset, 1.0, 60.0)
        jobs = self.run_two(engine)
        assert engine.preemptions == 0
        assert sorted(job.finished or 0.0 for job in jobs) == [60.0, 120.0]

    @pytest.mark.parametrize(
        ("age_weight", "age_scale_s"), [(1.0, 60.0), (2.0, 60.0), (1.0, 1.0), (0.5, 1.0)]
    )
    def test_the_guard_lets_both_finish(self, age_weight: float, age_scale_s: float) -> None:
        engine = self.engine("guarded", age_weight, age_scale_s)
        jobs = self.run_two(engine)
        total = sum(job.service_s for job in jobs)
        assert all(job.finished is not None and job.finished <= 3 * total for job in jobs)
        assert engine.preemptions <= 4

    def test_the_guard_holds_in_a_mix_with_the_estimated_scale(self) -> None:
        engine = self.run_mix("guarded")
        total = sum(job.service_s for job in engine.jobs.values())
        finished = [job.finished for job in engine.jobs.values()]
        assert all(time is not None and time <= 3 * total for time in finished)
        assert engine.preemptions <= len(engine.jobs)

    @pytest.mark.parametrize(("age_weight", "age_scale_s"), [(2.0, 60.0), (1.0, 1.0), (0.5, 1.0)])
    def test_the_published_score_lets_neither_finish(
        self, age_weight: float, age_scale_s: float
    ) -> None:
        """Which is why there is a guard (SPEC section 6); the preset follows the paper."""
        engine = self.engine("paper", age_weight, age_scale_s)
        jobs = self.run_two(engine, horizon=60.0)
        assert all(job.finished is None for job in jobs)
        assert engine.preemptions > 500

    @pytest.mark.parametrize("preset", ["paper", "guarded"])
    def test_what_is_revoked_is_the_credit_of_that_admission(self, preset: str) -> None:
        """In the paper's preset as recorded, with the guard aged as the task has aged since."""
        config = case_config(700, preset=preset, age_scale_s=10.0)
        engine = Engine(config, {"A": 500, "B": 500}, 5.0)
        engine.arrive("first", "A", 5.0)
        credit = engine.decide().credits["first"]
        engine.now = 1.0
        engine.scheduler.task_arrived(1.0, "heavy", "B")
        for number in range(12):
            engine.scheduler.request_ready(1.0, number, "heavy", "work", 5, 5)
        now = 40.0
        found = explain(engine.scheduler.snapshot(now), config, top=10).candidates
        preempting = next(candidate for candidate in found if candidate.preempt == ["first"])
        aged = 1.0 + now / 10.0 if preset == "guarded" else 1.0
        assert credit == pytest.approx(0.02 * 50), "its expected service, at age 0"
        assert preempting.terms.revoke == pytest.approx(credit * aged)


class TestCase5ARequestThatCanNeverFit:
    """It is named, and does not keep anything else from running."""

    def test_small_request_runs_and_the_impossible_ones_are_named(self) -> None:
        engine = Engine(case_config(1000), {"Z": 1200, "A": 200})
        engine.arrive("prefix too long", "Z")
        engine.arrive("request too long", "A", input_tokens=800, max_new_tokens=100)
        engine.now = 1.0
        engine.arrive("small", "A")
        decision = engine.decide()
        assert decision.admit == ["small"]
        assert decision.resident == ["A"]
        assert decision.unschedulable == ["prefix too long", "request too long"]

    @pytest.mark.parametrize("most", [0, 8], ids=["greedy", "enumerated"])
    def test_alone_it_is_named_again_and_again_and_nothing_happens(self, most: int) -> None:
        engine = Engine(case_config(1000, enumerate_max_agents=most), {"Z": 1200})
        engine.arrive("impossible", "Z")
        for _ in range(3):
            decision = engine.decide()
            assert decision.unschedulable == ["impossible"]
            assert (decision.admit, decision.preempt, decision.resident) == ([], [], [])
            engine.advance(100.0)

    def test_numbers_are_in_the_explanation(self) -> None:
        engine = Engine(case_config(1000), {"Z": 1200, "A": 200})
        engine.arrive("impossible", "Z")
        engine.arrive("small", "A")
        explanation = explain(engine.scheduler.snapshot(0.0), case_config(1000))
        entry = explanation.left_waiting[0]
        assert (entry.request, entry.agent, entry.reason) == ("impossible", "Z", "never_fits")
        assert (entry.needs_tokens, entry.free_tokens) == (1300, 700)

    def test_exact_fit_is_not_impossible(self) -> None:
        engine = Engine(case_config(1000), {"A": 200})
        engine.arrive("exact", "A", input_tokens=700, max_new_tokens=100)
        decision = engine.decide()
        assert (decision.admit, decision.unschedulable) == (["exact"], [])
        engine = Engine(case_config(1000), {"A": 200})
        engine.arrive("one more", "A", input_tokens=700, max_new_tokens=101)
        decision = engine.decide()
        assert (decision.admit, decision.unschedulable) == ([], ["one more"])

    def test_it_never_makes_room_for_itself(self) -> None:
        """However old it gets, nothing is preempted for it."""
        engine = Engine(case_config(1000), {"Z": 1200, "A": 200})
        engine.arrive("impossible", "Z", service_s=1000.0)
        engine.now = 1e6
        engine.arrive("running", "A", service_s=50.0)
        engine.decide()
        for _ in range(20):
            engine.advance(1.0)
            assert engine.decide().preempt == []

    def test_it_can_be_aborted(self) -> None:
        engine = Engine(case_config(1000), {"Z": 1200})
        engine.arrive("impossible", "Z")
        engine.scheduler.request_aborted(0.0, "impossible")
        engine.scheduler.task_finished(0.0, "impossible")
        assert engine.decide().unschedulable == []
        assert engine.scheduler.usage().tasks == 0


class TestCase7OneBigRequestAtTheHead:
    """Small ones that fit go past it, and it still gets its turn."""

    def engine(self, age_weight: float = 1.0) -> Engine:
        """An A request runs, 500 of its tokens generated; a big one waits, then a small one."""
        engine = Engine(case_config(1000, age_weight=age_weight), {"A": 100})
        engine.arrive("first", "A", input_tokens=100, max_new_tokens=100)
        engine.decide()
        engine.scheduler.request_progress(0.0, "first", 500)
        engine.arrive("big", "A", input_tokens=800, max_new_tokens=50)
        engine.advance(0.1)
        engine.arrive("small", "A")
        return engine

    @pytest.mark.parametrize("age_weight", [0.0, 1.0])
    def test_small_one_is_admitted_at_once(self, age_weight: float) -> None:
        engine = self.engine(age_weight)
        decision = engine.decide()
        assert (decision.admit, decision.preempt) == (["small"], [])
        reasons = explain(engine.scheduler.snapshot(0.1), case_config(1000)).left_waiting
        assert [(entry.request, entry.reason) for entry in reasons] == [("big", "no_room")]

    def admission_of_the_big_one(self, age_weight: float) -> float | None:
        """Keep adding a small one each second, for two minutes."""
        engine = self.engine(age_weight)
        engine.decide()
        engine.advance(0.9)
        for second in range(1, 121):
            engine.arrive(second, "A")
            engine.decide()
            if engine.jobs["big"].running:
                return engine.now
            assert engine.jobs[second].running, "small ones go on being admitted at once"
            engine.advance(1.0)
        return None

    def test_big_one_is_admitted_in_bounded_time(self) -> None:
        """Its density g/850 passes the 1/100 of a fresh small one when g is above 8.5."""
        admitted = self.admission_of_the_big_one(1.0)
        assert admitted is not None
        assert admitted <= 9.0

    def test_without_ageing_it_may_wait(self) -> None:
        assert self.admission_of_the_big_one(0.0) is None


class TestCase17PreemptingTooMuchOrForNothing:
    """Victims only for a better and feasible result, and never more than allowed."""

    def scheduler(self, config: Config, need: int = 100, age: float = 100.0) -> Scheduler:
        """Make five A requests run (700 tokens in use); a B request that became ready waits."""
        scheduler = Scheduler(config.replace(action_cap=0))
        for agent, tokens in (("A", 200), ("B", 400)):
            scheduler.register_agent(agent, tokens)
            scheduler.register_workflow(one_stage(agent, agent))
        scheduler.task_arrived(0.0, "old", "B")
        for number in range(5):
            scheduler.task_arrived(age, number, "A")
            scheduler.request_ready(age, number, number, "work", 50, 50)
        scheduler.commit(scheduler.decide(age))
        assert scheduler.usage().kv_tokens == 700
        scheduler.reconfigure(config)
        scheduler.request_ready(age, "old", "old", "work", need - 50, 50)
        return scheduler

    @staticmethod
    def check(config: Config, scheduler: Scheduler, now: float) -> Decision:
        """Check what must hold for any decision in this scene."""
        decision = scheduler.decide(now)
        snapshot = scheduler.snapshot(now)
        if config.action_cap:
            assert len(decision.admit) <= config.action_cap
            assert len(decision.preempt) <= config.action_cap
        fields = snapshot.to_dict()
        tokens = {request["id"]: request["kv_tokens"] for request in fields["requests"]}
        running = {request["id"] for request in fields["requests"] if request["running"]}
        prefix = {agent["id"]: agent["prefix_tokens"] for agent in fields["agents"]}
        served = (running - set(decision.preempt)) | set(decision.admit)
        used = sum(prefix[agent] for agent in decision.resident)
        assert used + sum(tokens[name] for name in served) <= config.kv_capacity_tokens
        candidates = explain(snapshot, config, top=100).candidates
        gentle = [c.terms.score for c in candidates if not c.preempt and (c.admit or c.resident)]
        if decision.preempt:
            assert decision.admit
            assert all(decision.score > score for score in gentle)
        return decision

    @pytest.mark.parametrize("preset", ["paper", "guarded"])
    @pytest.mark.parametrize("cap", [0, 1, 3, 5])
    def test_only_a_permitted_and_better_result_has_victims(self, cap: int, preset: str) -> None:
        """The old request outweighs five credits: preempted are all five or, capped, none."""
        config = case_config(1000, preset=preset, action_cap=cap, age_scale_s=1.0)
        decision = self.check(config, self.scheduler(config), 100.0)
        expected = [0, 1, 2, 3, 4] if cap in (0, 5) else []
        assert decision.preempt == expected
        assert decision.admit == (["old"] if expected else [])

    @pytest.mark.parametrize("preset", ["paper", "guarded"])
    @pytest.mark.parametrize("cap", [0, 1, 3, 5])
    def test_no_victims_for_what_is_worth_less(self, cap: int, preset: str) -> None:
        config = case_config(1000, preset=preset, action_cap=cap, age_scale_s=1000.0)
        decision = self.check(config, self.scheduler(config), 100.0)
        assert (decision.preempt, decision.admit, decision.resident) == ([], [], ["A"])

    @pytest.mark.parametrize("preset", ["paper", "guarded"])
    @pytest.mark.parametrize("cap", [0, 1, 3, 5])
    def test_no_victims_for_what_can_never_fit(self, cap: int, preset: str) -> None:
        config = case_config(1000, preset=preset, action_cap=cap, age_scale_s=1.0)
        decision = self.check(config, self.scheduler(config, need=700), 100.0)
        assert decision.unschedulable == ["old"]
        assert (decision.preempt, decision.admit) == ([], [])

    def test_room_that_is_already_free_needs_no_victims(self) -> None:
        config = case_config(1200, age_scale_s=1.0)
        decision = self.check(config, self.scheduler(config), 100.0)
        assert (decision.preempt, decision.admit) == ([], ["old"])

    def test_with_progress_the_guard_charges_redoing_it(self) -> None:
        """κ · T_decode · y, for each victim."""
        config = case_config(1000, age_scale_s=1.0)
        scheduler = self.scheduler(config)
        for number in range(5):
            scheduler.request_progress(100.0, number, round(20 * RATE))
        decision = self.check(config, scheduler, 100.0)
        assert decision.preempt == [], "a hundred seconds of work three times over"
        candidates = explain(scheduler.snapshot(100.0), config, top=100).candidates
        preempting = next(c for c in candidates if len(c.preempt) == 5 and c.admit)
        assert preempting.terms.redo == pytest.approx(3.0 * 0.02 * 5 * 1000)


@pytest.mark.parametrize("capacity", [300, 500, 700, 999, 1000, 1300])
def test_pure_door_agrees_in_every_scene(capacity: int) -> None:
    """The scenes above, at other capacities."""
    config = case_config(capacity, age_scale_s=1.0)
    engine = Engine(config, {"A": 200, "B": 400})
    for number in range(8):
        engine.arrive(number, "AB"[number % 2])
        pure = decide(engine.scheduler.snapshot(engine.now), config)
        assert pure.to_dict() == engine.decide().to_dict()
        engine.advance(0.25)
