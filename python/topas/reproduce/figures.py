"""Figures of a sweep: means over seeds by operating point, and topas against the best baselines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topas.reproduce.points import Variant
from topas.sim.study.statistics import Interval, interval, paired_reduction
from topas.sim.study.sweep import CellResult
from topas.sim.study.versus import JCT_METRICS, complete

__all__ = [
    "JCT_METRICS",
    "KINDS",
    "METRICS",
    "PAPER_ABLATION",
    "PAPER_REDUCTIONS",
    "Comparison",
    "Figures",
    "Point",
    "Reduction",
]

#: What the figures show, and whether more is better.
METRICS: Mapping[str, bool] = {
    "mean_jct_s": False,
    "p99_jct_s": False,
    "first_task_s": False,
    "requests_per_s": True,
}

#: The baselines that topas is compared with, by kind; see :class:`Comparison`.
KINDS: tuple[str, ...] = ("paper_baselines", "without_host", "with_host", "both")

#: Reductions that the paper reports (Section V), percent, by workload and metric.
PAPER_REDUCTIONS: Mapping[str, Mapping[str, float]] = {
    "chain-3": {"mean_jct_s": 27.5, "p99_jct_s": 31.7},
    "dag-4": {"mean_jct_s": 39.8, "p99_jct_s": 49.4},
    "dag-10-wide": {"mean_jct_s": 27.7, "p99_jct_s": 30.8},
    "metagpt-sop": {"mean_jct_s": 9.8, "p99_jct_s": 4.5},
    "metagpt-tl": {"mean_jct_s": 22.0, "p99_jct_s": 26.6},
}

#: Reductions of the full policy against its base (Section V, Figure 5), percent. Against the
#: variants without one component the paper gives 44.9-51.0 (mean) and 44.2-48.5 (p99).
PAPER_ABLATION: Mapping[str, float] = {"mean_jct_s": 60.5, "p99_jct_s": 53.6}

# Shown beside each point, without an interval.
_COUNTS = ("preemptions", "swaps", "recomputed_tokens", "mean_batch", "hit_rate")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One variant at one operating point.

    Parameters
    ----------
    workload, rate, label
        Which one.
    metrics : mapping
        Interval over the seeds for each of :data:`METRICS`; ``None`` where a run did not finish all
        its tasks.
    counts : mapping
        Means over the seeds of other figures.
    incomplete : int
        Runs that failed, stopped early or gave up tasks.
    """

    workload: str
    rate: float
    label: str
    metrics: Mapping[str, Interval | None]
    counts: Mapping[str, float | None]
    incomplete: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        metrics = {name: item and item.to_dict() for name, item in self.metrics.items()}
        return {
            "workload": self.workload,
            "rate": self.rate,
            "policy": self.label,
            **metrics,
            **self.counts,
            "incomplete": self.incomplete,
        }


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How much less a variant has than the best of others, percent.

    Parameters
    ----------
    workload, metric, label
        What is compared. Of ``requests_per_s`` more is better and the reduction negative.
    best : str
        The one it is compared with: of those given the best average over rates and seeds.
    percent : Interval
        Mean reduction and its interval, paired over the seeds; each value is the reduction of the
        average over the rates.
    paper : float or None
        What the paper reports.
    """

    workload: str
    metric: str
    label: str
    best: str
    percent: Interval
    paper: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "workload": self.workload,
            "metric": self.metric,
            "policy": self.label,
            "best_baseline": self.best,
            "reduction_percent": self.percent.to_dict(),
            "paper_percent": self.paper,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant of topas against the best baseline of each kind.

    Parameters
    ----------
    workload, metric, label
        What is compared.
    against : mapping
        By kind (:data:`KINDS`): the best of the paper's baselines, which have no host cache; of all
        baselines without one; of all with one; and the better of these two. ``None`` where no
        baseline of the kind was run, or none finished all its tasks.
    paper : float or None
        The reduction that the paper reports, percent.
    """

    workload: str
    metric: str
    label: str
    against: Mapping[str, Reduction | None]
    paper: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "workload": self.workload,
            "metric": self.metric,
            "policy": self.label,
            "paper_percent": self.paper,
            **{kind: item and _brief(item) for kind, item in self.against.items()},
        }


def _brief(item: Reduction) -> dict[str, Any]:
    return {"best_baseline": item.best, "reduction_percent": item.percent.to_dict()}


class Figures:
    """The results of a sweep by workload, rate, label and seed.

    Parameters
    ----------
    results : iterable of CellResult
        Of all cells, or of those there are; what is missing counts as incomplete.
    """

    def __init__(self, results: Iterable[CellResult]) -> None:
        self._by_point: dict[tuple[str, float, str], dict[int, CellResult]] = {}
        self._seeds: set[int] = set()
        for result in results:
            cell = result.cell
            key = cell.workload, cell.rate, cell.label or cell.policy
            self._by_point.setdefault(key, {})[cell.seed] = result
            self._seeds.add(cell.seed)

    @property
    def seeds(self) -> list[int]:
        """The seeds, ascending."""
        return sorted(self._seeds)

    def values(self, workload: str, rate: float, label: str, metric: str) -> list[float | None]:
        """A metric for each seed; ``None`` where the run did not finish all its tasks."""
        found = self._by_point.get((workload, rate, label), {})
        return [_value(found.get(seed), metric) for seed in self.seeds]

    def point(self, workload: str, rate: float, label: str) -> Point:
        """Means over the seeds at one operating point."""
        metrics: dict[str, Interval | None] = {}
        for name in METRICS:
            values = complete(self.values(workload, rate, label, name))
            metrics[name] = interval(values) if values else None
        counts = {name: _mean_of(self.values(workload, rate, label, name)) for name in _COUNTS}
        whole = self.values(workload, rate, label, "arrived")
        return Point(
            workload=workload,
            rate=rate,
            label=label,
            metrics=metrics,
            counts=counts,
            incomplete=sum(value is None for value in whole),
        )

    def averages(
        self, workload: str, rates: Sequence[float], label: str, metric: str
    ) -> list[float] | None:
        """Average over the rates for each seed; ``None`` if any run is incomplete."""
        by_rate = [complete(self.values(workload, rate, label, metric)) for rate in rates]
        there = [values for values in by_rate if values]
        if len(there) < len(rates):
            return None
        return [math.fsum(values) / len(rates) for values in zip(*there, strict=True)]

    def best(
        self, workload: str, rates: Sequence[float], labels: Iterable[str], metric: str
    ) -> str | None:
        """The label with the best average over rates and seeds; the first of equals."""
        sign = -1.0 if METRICS.get(metric) else 1.0
        chosen: str | None = None
        least = math.inf
        for label in labels:
            values = self.averages(workload, rates, label, metric)
            if values is not None and sign * math.fsum(values) < least:
                chosen, least = label, sign * math.fsum(values)
        return chosen

    def reduction(
        self,
        workload: str,
        rates: Sequence[float],
        label: str,
        others: Iterable[str],
        metric: str,
        paper: float | None = None,
    ) -> Reduction | None:
        """A label against the best of others; ``None`` if there is no complete pair."""
        best = self.best(workload, rates, others, metric)
        ours = self.averages(workload, rates, label, metric)
        theirs = None if best is None else self.averages(workload, rates, best, metric)
        if best is None or ours is None or theirs is None:
            return None
        return Reduction(
            workload=workload,
            metric=metric,
            label=label,
            best=best,
            percent=paired_reduction(ours, theirs),
            paper=paper,
        )

    def comparisons(
        self,
        workload: str,
        rates: Sequence[float],
        variants: Sequence[Variant],
        *,
        metrics: Iterable[str] = JCT_METRICS,
        paper: Mapping[str, float] | None = None,
    ) -> list[Comparison]:
        """Each variant of topas against the best baseline of each kind.

        Parameters
        ----------
        workload, rates, variants
            What was run.
        metrics : iterable of str
            Of :data:`METRICS`.
        paper : mapping, optional
            What the paper reports by metric, percent.
        """
        found = []
        for metric in metrics:
            for variant in variants:
                if variant.policy.startswith("topas"):
                    against = {
                        kind: self.reduction(workload, rates, variant.label, others, metric)
                        for kind, others in _kinds_of(variants).items()
                    }
                    found.append(
                        Comparison(
                            workload=workload,
                            metric=metric,
                            label=variant.label,
                            against=against,
                            paper=(paper or {}).get(metric),
                        )
                    )
        return found


def _kinds_of(variants: Sequence[Variant]) -> dict[str, list[str]]:
    """The labels of the baselines of each kind; the paper's whatever topas is compared with."""
    baselines = [variant for variant in variants if variant.baseline]
    of_kind = {
        "paper_baselines": [v for v in variants if v.in_paper],
        "without_host": [v for v in baselines if not v.has_host_cache],
        "with_host": [v for v in baselines if v.has_host_cache],
        "both": baselines,
    }
    return {kind: [variant.label for variant in of_kind[kind]] for kind in KINDS}


def _value(result: CellResult | None, metric: str) -> float | None:
    if result is None or result.error or result.metrics["stopped"]:
        return None
    if result.metrics["finished"] < result.metrics["arrived"]:
        return None
    value = result.metrics[metric]
    return None if value is None else float(value)


def _mean_of(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None
