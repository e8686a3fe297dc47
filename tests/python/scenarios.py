"""A small engine of arithmetic for the cases: it applies each decision and feeds back the events.

Time passes in steps. A running request is served one second a second; a preempted one starts
again from nothing. Workflows have one stage, so that a task is its request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topas import Config, Decision, Id, Scheduler, Stage, Workflow

__all__ = ["Engine", "Job", "case_config", "one_stage"]

STAGE = "work"
RATE = 50.0
"""Tokens that a running request generates in a second, 0.02 s each."""


def case_config(capacity: int, **fields: Any) -> Config:
    """Settings that the cases name: M=8, K=0, beta=0, rho=1, decode 0.02 s/token, prefill 0."""
    preset = fields.pop("preset", "guarded")
    plain = {
        "kv_capacity_tokens": capacity,
        "kv_bytes_per_token": 1.0,
        "swap_bytes_per_s": 1e5,
        "decode_s_per_token": 0.02,
        "enumerate_max_agents": 8,
        "action_cap": 0,
        "reuse_weight": 0.0,
        "age_weight": 1.0,
    }
    return Config.preset(preset, **{**plain, **fields})


def one_stage(name: Id, agent: Id, service_s: float = 1.0) -> Workflow:
    """Make a workflow of one stage."""
    return Workflow(name, [Stage(STAGE, agent, service_s=service_s)])


@dataclass
class Job:
    """A task of one stage, which is its request too."""

    task: Id
    agent: Id
    service_s: float
    arrival: float
    served_s: float = 0.0
    generated: int = 0
    running: bool = False
    admitted: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    finished: float | None = None


class Engine:
    """Serves jobs as a scheduler decides."""

    def __init__(self, config: Config, prefixes: dict[Id, int], service_s: float = 1.0) -> None:
        self.scheduler = Scheduler(config)
        for agent, tokens in prefixes.items():
            self.scheduler.register_agent(agent, tokens)
            self.scheduler.register_workflow(one_stage(agent, agent, service_s))
        self.now = 0.0
        self.jobs: dict[Id, Job] = {}

    @property
    def preemptions(self) -> int:
        """How many times a job has been preempted so far."""
        return sum(len(job.preempted) for job in self.jobs.values())

    def observe(self, agent: Id, service_s: float) -> None:
        """Let one task of the agent run and end at once, so that its service is known."""
        name = f"observed {agent}"
        job = self.arrive(name, agent, service_s, input_tokens=1, max_new_tokens=1)
        self.decide()
        assert job.running
        self._complete(job)
        del self.jobs[name]

    def arrive(
        self,
        task: Id,
        agent: Id,
        service_s: float = 1.0,
        input_tokens: int = 50,
        max_new_tokens: int = 50,
    ) -> Job:
        """Let a task arrive whose request is ready at once."""
        self.scheduler.task_arrived(self.now, task, agent)
        self.scheduler.request_ready(self.now, task, task, STAGE, input_tokens, max_new_tokens)
        self.jobs[task] = Job(task, agent, service_s, self.now)
        return self.jobs[task]

    def decide(self) -> Decision:
        """Take a decision and apply it."""
        decision = self.scheduler.decide(self.now)
        self.scheduler.commit(decision)
        for task in decision.preempt:
            job = self.jobs[task]
            job.running, job.served_s, job.generated = False, 0.0, 0
            job.preempted.append(self.now)
        for task in decision.admit:
            self.jobs[task].running = True
            self.jobs[task].admitted.append(self.now)
        return decision

    def advance(self, seconds: float) -> list[Job]:
        """Serve what runs; give the jobs that are done."""
        self.now = round(self.now + seconds, 9)
        done = []
        for job in [job for job in self.jobs.values() if job.running]:
            job.served_s = round(job.served_s + seconds, 9)
            job.generated += round(seconds * RATE)
            if job.served_s >= job.service_s:
                self._complete(job)
                done.append(job)
            else:
                self.scheduler.request_progress(self.now, job.task, job.generated)
        return done

    def _complete(self, job: Job) -> None:
        job.running, job.finished = False, self.now
        self.scheduler.request_completed(self.now, job.task, job.service_s)
        self.scheduler.stage_completed(self.now, job.task, STAGE)
