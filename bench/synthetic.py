"""Large states made to measure: so many agents, waiting and running requests, the same for a seed.

The states come about as in an engine: through events of a :class:`topas.Scheduler`, and each
decision is followed by a commit, completions, progress and new ready requests.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import topas
from recording import EventLog, RecordingScheduler

#: Predecessors of the ten stages of a task; at most three are ready at once.
DAGS = (
    ((), (0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,), (8,)),  # a chain
    ((), (0,), (0,), (0,), (1, 2, 3), (4,), (4,), (5, 6), (7,), (8,)),  # forks, each joined
    ((), (0,), (0,), (0,), (1,), (2,), (3,), (4, 5), (6,), (7, 8)),  # lanes, joined late
    ((), (), (0,), (0, 1), (2,), (2, 3), (4,), (4, 5), (6, 7), (8,)),  # a ladder of two entries
)
FILL_S, STEP_S = 200.0, 0.5  # over which the live tasks have arrived, and between two decisions
PREFIX_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS = (512, 4096), (256, 768), (128, 384)
LIMIT_S = 60.0  # of deciding, in a recording
COSTS = {  # of an engine like an A100 with an 8B model
    "kv_bytes_per_token": 131072.0,
    "swap_bytes_per_s": 20e9,
    "decode_s_per_token": 0.02,
    "prefill_fixed_s": 0.01,
    "prefill_s_per_token": 5e-5,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large a state is, and the settings that are not its preset's.

    ``room`` is what there is beside the prefixes of half the agents, in mean reservations of the
    running requests: less than 1 where the policy prefers small ones among many.
    """

    agents: int
    waiting: int
    running: int
    room: float = 1.0
    samples: int = 128
    exact_limit: int = 4096
    max_evaluations: int = 0
    warm_tasks: int = 16  # of each workflow, run before anything is measured
    seed: int = 1


@dataclass
class _Task:
    workflow: int
    done: set[int] = field(default_factory=set)
    live: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Request:
    task: int
    stage: int
    agent: int
    kv_tokens: int
    max_new_tokens: int


def _name(agent: int) -> str:
    return f"agent-{agent:03}"


class Traffic:
    """Tasks, requests and a clock, told to a scheduler.

    Workflow ``i`` begins with agent ``i``; the other stages name any agents.
    """

    def __init__(self, shape: Shape, preset: str) -> None:
        self.shape = shape
        self._random = draw = random.Random(shape.seed)
        self._prefix = [draw.randint(*PREFIX_TOKENS) for _ in range(shape.agents)]
        self._kept = draw.sample(range(shape.agents), max(1, min(shape.agents // 2, shape.running)))
        self._room = int(shape.room * shape.running * (sum(INPUT_TOKENS) + sum(OUTPUT_TOKENS)) / 2)
        config = topas.Config.preset(
            preset,
            kv_capacity_tokens=self._room + sum(self._prefix[agent] for agent in self._kept),
            samples=shape.samples,
            exact_limit=shape.exact_limit,
            max_evaluations=shape.max_evaluations,
            **COSTS,
        )
        self.log = EventLog(config)
        self._scheduler = RecordingScheduler(self.log)
        self._now = 0.0
        self._names = 0
        self._tasks: dict[int, _Task] = {}
        self._waiting: dict[int, _Request] = {}
        self._running: dict[int, _Request] = {}
        self._live_of = [0] * shape.agents  # requests of each agent
        self._dags: list[tuple[tuple[int, ...], ...]] = []
        self._agents: list[list[int]] = []
        self._service_s: list[list[float]] = []
        self._register()

    def _register(self) -> None:
        for agent, tokens in enumerate(self._prefix):
            self._scheduler.register_agent(_name(agent), tokens)
        draw = self._random
        for flow in range(max(self.shape.agents, len(DAGS))):
            dag = DAGS[flow % len(DAGS)]
            agents = [draw.randrange(self.shape.agents) for _ in dag]
            agents[0] = flow % self.shape.agents
            service = [round(draw.uniform(2.0, 20.0), 3) for _ in dag]
            stages = [
                topas.Stage(at, _name(agents[at]), after=after, service_s=service[at])
                for at, after in enumerate(dag)
            ]
            self._scheduler.register_workflow(topas.Workflow(flow, tuple(stages)))
            self._dags.append(dag)
            self._agents.append(agents)
            self._service_s.append(service)

    def _pass_time(self, seconds: float) -> None:
        self._now = round(self._now + seconds, 6)

    def _next_name(self) -> int:
        self._names += 1
        return self._names

    def _arrive(self, flow: int) -> int:
        task = self._next_name()
        self._tasks[task] = _Task(flow)
        self._scheduler.task_arrived(self._now, task, flow)
        self._make_ready(task)
        return task

    def _make_ready(self, name: int) -> None:
        task = self._tasks[name]
        for stage, after in enumerate(self._dags[task.workflow]):
            if stage in task.done or stage in task.live or not task.done.issuperset(after):
                continue
            tokens, output = (
                self._random.randint(*INPUT_TOKENS),
                self._random.randint(*OUTPUT_TOKENS),
            )
            agent = self._agents[task.workflow][stage]
            request = self._next_name()
            task.live.add(stage)
            self._live_of[agent] += 1
            self._waiting[request] = _Request(name, stage, agent, tokens + output, output)
            self._scheduler.request_ready(self._now, request, name, stage, tokens, output)

    def _start(self, request: int) -> None:
        self._scheduler.request_started(self._now, request)
        self._running[request] = self._waiting.pop(request)

    def _complete(self, request: int) -> None:
        """A request is done, its stage with it; what waited for that is ready."""
        done = self._running.pop(request)
        task = self._tasks[done.task]
        mean_s = self._service_s[task.workflow][done.stage]
        service_s = round(mean_s * self._random.lognormvariate(-0.125, 0.5), 3)
        self._scheduler.request_completed(self._now, request, service_s)
        self._scheduler.stage_completed(self._now, done.task, done.stage)
        self._live_of[done.agent] -= 1
        task.live.remove(done.stage)
        task.done.add(done.stage)
        if len(task.done) == len(self._dags[task.workflow]):
            del self._tasks[done.task]
        else:
            self._make_ready(done.task)

    def _advance(self, task: int, stages: int) -> None:
        """Run so many stages of a task that has nothing running."""
        for _ in range(stages):
            ready = [name for name, request in self._waiting.items() if request.task == task]
            if not ready:
                return
            request = self._random.choice(ready)
            self._start(request)
            self._complete(request)

    def _warm_up(self) -> None:
        """Whole tasks of every workflow, so that expectations are over observed totals."""
        for flow in range(len(self._dags)):
            for _ in range(self._random.randint(self.shape.warm_tasks // 2, self.shape.warm_tasks)):
                self._pass_time(STEP_S)
                self._advance(self._arrive(flow), len(self._dags[flow]))

    def _fill(self) -> None:
        """Tasks in all stages of their life; then some prefixes are resident, some requests run."""
        waiting, flow = self.shape.waiting + self.shape.running, 0
        live: dict[int, _Request] = {}
        while len(live) + len(self._waiting) < waiting or flow < self.shape.agents:
            self._pass_time(FILL_S / waiting)
            self._advance(self._arrive(flow % len(self._dags)), self._random.randrange(8))
            live |= self._waiting
            self._waiting.clear()  # so that advancing a task looks at its own requests alone
            flow += 1
        self._waiting = live
        for agent in range(self.shape.agents):
            if agent not in self._kept:  # the warm-up has left them all resident
                self._scheduler.prefix_evicted(self._now, _name(agent))
        self._start_some()

    def _start_some(self) -> None:
        names = list(self._waiting)
        self._random.shuffle(names)
        room, kept = self._room, set(self._kept)
        for name in names:
            request = self._waiting[name]
            if request.agent in kept and request.kv_tokens <= room:
                room -= request.kv_tokens
                self._start(name)
            if len(self._running) >= self.shape.running:
                return

    def _keep_size(self) -> None:
        """Enough waits, and every agent has something to do."""
        idle = [agent for agent, live in enumerate(self._live_of) if live == 0]
        for agent in idle:
            self._arrive(agent)
        while len(self._waiting) < self.shape.waiting:
            self._arrive(self._random.randrange(len(self._dags)))

    def _between_decisions(self) -> None:
        """What the engine tells: a few requests end, some report progress, new ones are ready."""
        self._pass_time(STEP_S)
        excess = len(self._running) - self.shape.running
        count = min(len(self._running), max(self._random.randint(1, 3), excess))
        for request in self._random.sample(sorted(self._running), count):
            self._complete(request)
        self._keep_size()
        for request in self._random.sample(sorted(self._running), min(4, len(self._running))):
            tokens = self._random.randrange(self._running[request].max_new_tokens)
            self._scheduler.request_progress(self._now, request, tokens)

    def _decide(self) -> None:
        decision = self._scheduler.decide(self._now)
        self._scheduler.commit(decision)
        for request in decision.preempt:
            self._waiting[request] = self._running.pop(request)
        for request in decision.admit:
            self._running[request] = self._waiting.pop(request)

    def run(self, decisions: int, settle: int) -> EventLog:
        """The log of the warm-up, the filling, and decisions with events between them."""
        self._warm_up()
        self._fill()
        begin = time.perf_counter()
        self._decide_often(settle, begin + LIMIT_S / 2)
        self.log.measured_from = len(self.log.calls)
        self._decide_often(decisions, begin + LIMIT_S)
        return self.log

    def _decide_often(self, count: int, until: float) -> None:
        for at in range(count):
            if at > 0 and time.perf_counter() > until:
                return
            self._between_decisions()
            self._decide()


def record_synthetic(shape: Shape, preset: str, *, decisions: int, settle: int = 10) -> EventLog:
    """The log of so many decisions on states of a shape.

    The first ``settle`` ones, which turn what was filled in into a state of the policy's own, come
    before them and are not measured. Where decisions are so slow that a minute does not do for
    them, there are fewer: how many says the log.
    """
    return Traffic(shape, preset).run(decisions, settle)
