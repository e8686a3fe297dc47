"""The loop that an engine runs around the scheduler, with an engine that only counts seconds.

    python examples/engine_loop.py

Two agents whose prefixes do not fit together; four tasks of two stages each.
"""

from __future__ import annotations

import heapq

import topas

CONFIG = topas.Config(
    kv_capacity_tokens=10_000,
    kv_bytes_per_token=262_144,
    swap_bytes_per_s=20e9,
    decode_s_per_token=0.04,
)
SERVICE_S = {"draft": 12.0, "check": 5.0}
WORKFLOW = topas.Workflow(
    "note",
    [
        topas.Stage("draft", "writer", service_s=SERVICE_S["draft"]),
        topas.Stage("check", "reader", after=["draft"], service_s=SERVICE_S["check"]),
    ],
)
AFTER = {"draft": "check", "check": None}


def main() -> None:
    """Run to the end and print what happened."""
    scheduler = topas.Scheduler(CONFIG)
    scheduler.register_agent("writer", 6_000)
    scheduler.register_agent("reader", 5_000)
    scheduler.register_workflow(WORKFLOW)
    events = [(float(n), "arrival", f"task-{n}", "draft", 0) for n in range(4)]
    attempts: dict[str, int] = {}

    while events:
        now, kind, task, stage, attempt = heapq.heappop(events)
        request = f"{task}/{stage}"
        if kind == "arrival":
            scheduler.task_arrived(now, task, "note")
            scheduler.request_ready(now, request, task, stage, 1_400, 600)
        elif attempts[request] == attempt:  # else it was preempted since
            scheduler.request_completed(now, request, SERVICE_S[stage])
            scheduler.stage_completed(now, task, stage)
            if following := AFTER[stage]:
                scheduler.request_ready(now, f"{task}/{following}", task, following, 1_400, 600)

        decision = scheduler.decide(now)
        for preempted in decision.preempt:
            attempts[str(preempted)] += 1  # its completion event is void
        for admitted in decision.admit:
            name = str(admitted)
            attempts[name] = attempts.get(name, 0) + 1
            owner, work = name.split("/")
            heapq.heappush(events, (now + SERVICE_S[work], "done", owner, work, attempts[name]))
        scheduler.commit(decision)
        if decision.load or decision.drop or decision.admit:
            print(
                f"{now:5.1f} s  load {decision.load}  drop {decision.drop}  admit {decision.admit}"
            )

    scheduler.commit(scheduler.decide(now))  # the last prefix leaves
    assert scheduler.usage().tasks == scheduler.usage().kv_tokens == 0


if __name__ == "__main__":
    main()
