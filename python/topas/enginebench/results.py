"""What a run on the engine gave: records of its requests, figures, medians over repeats."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from topas.errors import StateError

__all__ = ["EngineRun", "Figures", "Report", "RequestRecord", "is_driven"]


def is_driven(policy: str) -> bool:
    """Whether topas drives the engine under a policy of the benchmark."""
    return policy.partition("+")[0] == "topas"


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One finished request; times in seconds from the start of the run.

    Parameters
    ----------
    task, stage : int
        Indexes.
    agent : str
        Whose static prefix it has.
    submit_s, end_s : float
        When the client sent it and had its answer.
    prompt_tokens, cached_tokens, output_tokens : int
        Lengths; cached ones were found in the cache when it was admitted.
    retractions : int
        How often it was thrown out.
    entry_s, prefilled_s, finished_s : float or None
        When its prefill began and ended, and when it was done, by the engine's clock.
    digest : str
        Of its output tokens.
    """

    task: int
    stage: int
    agent: str
    submit_s: float
    end_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    retractions: int
    entry_s: float | None
    prefilled_s: float | None
    finished_s: float | None
    digest: str

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not in the cache."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """One run of one policy in a fresh engine.

    Parameters
    ----------
    policy : str
        Name.
    start_s : float
        Time to start the engine, seconds.
    cpu_s : float
        Processor time of the engine's processes during the run, seconds.
    arrivals : sequence of float
        By task, seconds from the start of the run.
    requests : sequence of RequestRecord
        All of them.
    counters : mapping
        What the engine's Prometheus endpoint counted during the run, summed over labels.
    versions : mapping
        Of the software.
    learned : mapping
        The costs that topas went by at the end, by the names of its gauges; empty without topas.
    """

    policy: str
    start_s: float
    cpu_s: float
    arrivals: Sequence[float]
    requests: Sequence[RequestRecord]
    counters: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    learned: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> EngineRun:
        """A run from what :mod:`topas.enginebench.child` wrote."""
        records = [RequestRecord(**record) for record in fields["requests"]]
        return cls(**{**fields, "requests": records})

    @property
    def jct_s(self) -> list[float]:
        """Completion time by task, seconds.

        Raises
        ------
        StateError
            A task has no finished request.
        """
        ends: dict[int, float] = {}
        for record in self.requests:
            ends[record.task] = max(record.end_s, ends.get(record.task, 0.0))
        missing = [task for task in range(len(self.arrivals)) if task not in ends]
        if missing:
            raise StateError(f"run of {self.policy}: tasks without an end: {missing[:10]}")
        return [ends[task] - arrival for task, arrival in enumerate(self.arrivals)]

    @property
    def output_hash(self) -> str:
        """One hash of all outputs, in the order of tasks and stages."""
        ordered = sorted(self.requests, key=lambda record: (record.task, record.stage))
        text = ";".join(f"{r.task}/{r.stage}:{r.digest}" for r in ordered)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def figures(self) -> Figures:
        """The figures of the table."""
        jct, requests = np.array(self.jct_s), self.requests
        makespan = max(r.end_s for r in requests) - min(self.arrivals)
        prompt = sum(r.prompt_tokens for r in requests)
        cached = sum(r.cached_tokens for r in requests)
        count = self.counters.get
        decisions = count("topas:decision_seconds_count", 0.0)
        decision_s = count("topas:decision_seconds_sum", 0.0)
        topas_s = count("topas:bridge_seconds_total")
        driven = is_driven(self.policy)
        return Figures(
            mean_jct_s=float(jct.mean()),
            p50_jct_s=float(np.percentile(jct, 50)),
            p99_jct_s=float(np.percentile(jct, 99)),
            makespan_s=makespan,
            requests_per_s=len(requests) / makespan,
            hit_rate=cached / prompt,
            computed_tokens=prompt - cached,
            cpu_s=self.cpu_s,
            retractions=sum(r.retractions for r in requests),
            preemptions=count("topas:preemptions_total") if driven else None,
            fallbacks=count("topas:fallbacks_total", 0.0) if driven else None,
            hint_errors=count("topas:hint_errors_total", 0.0) if driven else None,
            decisions=decisions if driven else None,
            decision_us=1e6 * decision_s / decisions if driven and decisions else None,
            decision_share=decision_s / makespan if driven else None,
            topas_share=topas_s / makespan if driven and topas_s is not None else None,
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of a run, or medians over runs; ``None`` where there is nothing to count.

    Parameters
    ----------
    mean_jct_s, p50_jct_s, p99_jct_s : float
        Completion time of tasks, seconds.
    makespan_s : float
        From the first arrival to the last end, seconds.
    requests_per_s : float
        Finished requests over the makespan.
    hit_rate : float
        Cached tokens over prompt tokens.
    computed_tokens : float
        Prompt tokens that had to be computed (those of thrown out requests count once).
    cpu_s : float
        Processor time of the engine's processes, seconds.
    retractions : float
        How often SGLang took a request out of its running batch, on topas' word or its own.
    preemptions, fallbacks, hint_errors, decisions : float or None
        Of topas: requests it stopped, passes left to SGLang's own policy, malformed hints,
        decisions.
    decision_us : float or None
        Mean time of a decision, microseconds.
    decision_share, topas_share : float or None
        Decisions, and everything topas does, as shares of the makespan.
    """

    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    makespan_s: float
    requests_per_s: float
    hit_rate: float
    computed_tokens: float
    cpu_s: float
    retractions: float
    preemptions: float | None = None
    fallbacks: float | None = None
    hint_errors: float | None = None
    decisions: float | None = None
    decision_us: float | None = None
    decision_share: float | None = None
    topas_share: float | None = None

    @classmethod
    def median(cls, runs: Sequence[Figures]) -> Figures:
        """The median of each figure by itself.

        Raises
        ------
        StateError
            There is no run.
        """
        if not runs:
            raise StateError("no run to take the median of")
        values: dict[str, Any] = {}
        for entry in fields(cls):
            found = [v for run in runs if (v := getattr(run, entry.name)) is not None]
            values[entry.name] = float(statistics.median(found)) if found else None
        return cls(**values)


@dataclass
class Report:
    """Runs of several policies on one workload.

    Parameters
    ----------
    settings : mapping
        Of workload and engine, plain values.
    policies : sequence of str
        In the order of the table.
    runs : list of EngineRun
        In the order they were made.
    """

    settings: Mapping[str, Any]
    policies: Sequence[str]
    runs: list[EngineRun] = field(default_factory=list)

    def of(self, policy: str) -> list[EngineRun]:
        """The runs of a policy."""
        return [run for run in self.runs if run.policy == policy]

    def medians(self) -> dict[str, Figures]:
        """Medians over the repeats, by policy."""
        return {
            policy: Figures.median([run.figures() for run in self.of(policy)])
            for policy in self.policies
        }

    @property
    def output_hashes(self) -> dict[str, list[str]]:
        """The hashes of the outputs of each policy's runs, each once."""
        return {
            policy: sorted({run.output_hash for run in self.of(policy)}) for policy in self.policies
        }

    @property
    def same_outputs(self) -> bool:
        """Whether all runs gave the same tokens."""
        return len({run.output_hash for run in self.runs}) <= 1

    def different_requests(self) -> int:
        """Requests that did not have the same output in all runs."""
        outputs: dict[tuple[int, int], set[str]] = {}
        for run in self.runs:
            for record in run.requests:
                outputs.setdefault((record.task, record.stage), set()).add(record.digest)
        return sum(len(digests) > 1 for digests in outputs.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "settings": dict(self.settings),
            "versions": dict(self.runs[0].versions) if self.runs else {},
            "same_outputs": self.same_outputs,
            "output_hashes": self.output_hashes,
            "medians": {name: asdict(entry) for name, entry in self.medians().items()},
            "runs": [
                {
                    "policy": run.policy,
                    "start_s": run.start_s,
                    "cpu_s": run.cpu_s,
                    "figures": asdict(run.figures()),
                    "jct_s": run.jct_s,
                    "counters": dict(run.counters),
                    "learned": dict(run.learned),
                    "requests": [asdict(record) for record in run.requests],
                }
                for run in self.runs
            ],
        }
