"""A scheduler in the middle of things, and how to tell that nothing about it has changed."""

from __future__ import annotations

from typing import Any

from topas import Config, Decision, Scheduler, Stage, Workflow

__all__ = ["NOW", "busy_config", "busy_scheduler", "fingerprint", "fork_and_join"]

NOW = 10.0


def busy_config(**fields: Any) -> Config:
    """Give plain settings of the preset `guarded` with 1,000 tokens of KV."""
    plain = {
        "kv_capacity_tokens": 1000,
        "kv_bytes_per_token": 1.0,
        "swap_bytes_per_s": 1e5,
        "decode_s_per_token": 0.02,
    }
    return Config.preset("guarded", **{**plain, **fields})


def fork_and_join(name: int | str = "fork") -> Workflow:
    """Make S -> (X | Y) -> J, X of agent B, the others of agent A."""
    return Workflow(
        name,
        [
            Stage("S", "A", service_s=2.0),
            Stage("X", "B", after=("S",), service_s=4.0),
            Stage("Y", "A", after=("S",), service_s=3.0),
            Stage("J", "A", after=("X", "Y"), service_s=1.0),
        ],
    )


def chain() -> Workflow:
    """Make 0 -> 1, of agents A and I."""
    return Workflow("chain", [Stage(0, "A"), Stage(1, "I", after=(0,), service_s=1.0)])


def busy_scheduler(config: Config | None = None) -> Scheduler:
    """Make a scheduler at time NOW with something of everything.

    Task "t": S is completed, "rx" of X runs, "ry" of Y waits and is too large to fit at present.
    Task "s": X is skipped, S is open, "rs" of it waits. Agent "I" is resident and idle, "U" is
    not used by any workflow. Workflow "chain" has no task.
    """
    scheduler = Scheduler(config or busy_config())
    for agent, tokens in (("A", 200), ("B", 300), ("I", 10), ("U", 5)):
        scheduler.register_agent(agent, tokens)
    scheduler.register_workflow(fork_and_join())
    scheduler.register_workflow(chain())
    scheduler.task_arrived(0.0, "t", "fork")
    scheduler.request_ready(0.0, "r0", "t", "S", 50, 50)
    commit_now(scheduler, 0.0)
    scheduler.request_completed(2.0, "r0", 2.0)
    scheduler.stage_completed(2.0, "t", "S")
    scheduler.task_arrived(2.0, "i", "chain")
    scheduler.stage_completed(2.0, "i", 0)
    scheduler.request_ready(2.0, "ri", "i", 1, 5, 5)
    scheduler.request_ready(3.0, "rx", "t", "X", 60, 40)
    commit_now(scheduler, 3.0)
    scheduler.request_progress(5.0, "rx", 20)
    scheduler.task_cancelled(6.0, "i")
    scheduler.task_arrived(7.0, "s", "fork")
    scheduler.stage_skipped(7.0, "s", "X")
    scheduler.request_ready(8.0, "ry", "t", "Y", 700, 90)
    scheduler.request_ready(NOW, "rs", "s", "S", 30, 30)
    return scheduler


def commit_now(scheduler: Scheduler, now: float) -> Decision:
    """Decide and commit."""
    decision = scheduler.decide(now)
    scheduler.commit(decision)
    return decision


def fingerprint(scheduler: Scheduler, now: float = NOW) -> tuple[Any, ...]:
    """Give all that can be read, the version of the state inside the decision included."""
    usage = scheduler.usage()
    gauges = [name for name in dir(usage) if not name.startswith("_")]
    return (
        {name: getattr(usage, name) for name in gauges},
        scheduler.snapshot(now).to_dict(),
        scheduler.decide(now),
        scheduler.age_scale_s,
    )
