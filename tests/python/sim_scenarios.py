"""Small workloads with round numbers, for the tests of the simulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from topas.policies import Plan, Policy, QueueView
from topas.sim import EngineCosts, Round, StageShape, Task, WorkflowShape, Workload

#: A decode step takes 1 s, prefill 0.01 s a token, moving a prefix 0.01 s a token.
ROUND_COSTS = EngineCosts(
    kv_capacity=1000,
    kv_bytes_per_token=1.0,
    swap_bytes_per_s=100.0,
    decode_fixed_s=1.0,
    decode_s_per_context_token=0.0,
    prefill_s_per_token=0.01,
)


def singles(agents: Mapping[str, int], tasks: Sequence[tuple[str, float, int, int]]) -> Workload:
    """One-stage tasks ``(agent, arrival, input, output)``; task ids count from 0."""
    shapes = {agent: WorkflowShape(agent, (StageShape("only", agent),)) for agent in agents}
    built = [
        Task(index, arrival, agent, ((Round(input_tokens, output_tokens),),))
        for index, (agent, arrival, input_tokens, output_tokens) in enumerate(tasks)
    ]
    return Workload("singles", dict(agents), shapes, tuple(built))


def chain(
    agents: Mapping[str, int], arrivals: Sequence[float], input_tokens: int, output_tokens: int
) -> Workload:
    """Tasks that pass through all agents in order, one round each."""
    stages = tuple(
        StageShape(agent, agent, (index - 1,) if index else (), 1.0, input_tokens, output_tokens)
        for index, agent in enumerate(agents)
    )
    rounds = tuple((Round(input_tokens, output_tokens),) for _ in agents)
    tasks = tuple(Task(i, arrival, "chain", rounds) for i, arrival in enumerate(arrivals))
    return Workload("chain", dict(agents), {"chain": WorkflowShape("chain", stages)}, tasks)


def random_workload(seed: int, *, tasks: int = 8, huge: bool = False) -> Workload:
    """Random DAGs, lengths, rounds and waits; ``huge``: some requests can never fit into 1,000."""
    rng = random.Random(seed)
    agents = {f"a{i}": rng.choice([0, 50, 120, 300]) for i in range(rng.randint(1, 5))}
    shapes = {}
    for index in range(rng.randint(1, 3)):
        stages = []
        for stage in range(rng.randint(1, 5)):
            after = tuple(sorted(rng.sample(range(stage), rng.randint(0, min(stage, 2)))))
            wait_from = rng.choice(after) if after and rng.random() < 0.3 else None
            agent = rng.choice(list(agents))
            stages.append(StageShape(f"s{stage}", agent, after, 1.5, 40, 20, wait_from))
        shapes[f"w{index}"] = WorkflowShape(f"w{index}", tuple(stages))
    built, now = [], 0.0
    for task in range(tasks):
        now += rng.choice([0.0, rng.expovariate(0.1)])
        shape = rng.choice(list(shapes.values()))
        rounds = tuple(
            tuple(_random_round(rng, huge) for _ in range(rng.randint(1, 3))) for _ in shape.stages
        )
        built.append(Task(task if rng.random() < 0.5 else f"t{task}", now, shape.name, rounds))
    return Workload(f"random-{seed}", agents, shapes, tuple(built))


def _random_round(rng: random.Random, huge: bool) -> Round:
    if huge and rng.random() < 0.05:
        return Round(2000, 10, 0.0)
    wait = rng.choice([0.0, 0.0, rng.uniform(0.0, 20.0)])
    return Round(rng.randint(0, 200), rng.randint(1, 60), wait)


class Scripted(Policy):
    """An explicit policy that answers from a function of (time, view)."""

    name = "scripted"
    explicit_residency = True

    def __init__(self, answer: Callable[[float, QueueView], Plan]) -> None:
        self._answer = answer
        self.asked: list[float] = []
        self.services: list[float] = []

    def plan(self, now: float, view: QueueView) -> Plan:
        self.asked.append(now)
        return self._answer(now, view)

    def request_completed(self, now: float, request: object, service_s: float) -> None:
        self.services.append(service_s)


def keep(view: QueueView, *, admit: Sequence[int] = (), preempt: Sequence[int] = ()) -> Plan:
    """A plan whose resident prefixes are those of the requests it leaves running."""
    by_id = {r.id: r.agent for r in (*view.waiting, *view.running)}
    running = [r.id for r in view.running if r.id not in preempt] + list(admit)
    return Plan(list(admit), list(preempt), frozenset(by_id[id_] for id_ in running))


def dense_workload(seed: int, *, tasks: int = 8) -> Workload:
    """As :func:`random_workload`, but short prompts, long outputs and all at once.

    The rounds of a stage extend one another, the later ones by up to 30 tokens.
    """
    rng = random.Random(seed)
    base = random_workload(seed, tasks=tasks)
    built = []
    for index, task in enumerate(base.tasks):
        stages = []
        for rounds in task.stages:
            extended: list[Round] = []
            shared = 0
            for item in rounds:
                tokens = shared + rng.randint(0, 30)
                output = rng.randint(20, 150)
                extended.append(Round(tokens, output, item.wait_s / 4, shared))
                shared = tokens + output
            stages.append(tuple(extended))
        built.append(Task(task.id, 0.2 * index, task.workflow, tuple(stages)))
    return Workload(f"dense-{seed}", base.agents, base.workflows, tuple(built))
