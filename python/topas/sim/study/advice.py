"""Whether topas pays on a workload, by how much and with which settings.

Settings are picked on one half of the repetitions and judged on the other, at several loads,
against the best baseline there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topas.errors import ConfigError, StateError
from topas.policies import BASELINE_NAMES, PRESET_POLICIES, PolicyName, both_ways
from topas.sim.checks import check_number
from topas.sim.cost import EngineCosts
from topas.sim.options import EngineOptions
from topas.sim.study.operating_point import OperatingPoint
from topas.sim.study.replicates import Outcome, Replicates, Run, run_all
from topas.sim.study.versus import JCT_METRICS, Ratio, Values, best_of, ratio_to

__all__ = [
    "LOADS",
    "MIN_EFFECT",
    "Advice",
    "LoadAdvice",
    "Question",
    "Setting",
    "advise",
    "candidates",
]

#: Arrivals are sped up by these factors: the advice must hold around the workload's own load.
LOADS: tuple[float, ...] = (0.5, 1.0, 2.0)

#: Smallest change of a completion time that is called one.
MIN_EFFECT = 0.01

_OWN_LOAD = 1.0

# Settings that are tried besides the preset alone.
_TRIED: tuple[Mapping[str, Any], ...] = (
    {"redo_weight": 3.0},
    {"redo_weight": 10.0},
    {"redo_weight": 30.0},
    {"age_weight": 0.0},
    {"overtake_limit": 0.0},
    {"urgency": 0.5},
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A preset of topas with some fields on top.

    Parameters
    ----------
    preset : str
        One of :data:`topas.PRESETS`.
    config : mapping
        Fields of :class:`topas.Config`.
    """

    preset: str
    config: Mapping[str, Any]

    @property
    def policy(self) -> str:
        """The policy of this preset."""
        return PRESET_POLICIES[self.preset]

    @property
    def label(self) -> str:
        """For reports, unique among different settings."""
        fields = ", ".join(f"{name}={value}" for name, value in self.config.items())
        return f"preset {self.preset}" + (f" with {fields}" if fields else "")


def candidates(preset: str | None = None, config: Mapping[str, Any] | None = None) -> list[Setting]:
    """The settings that are tried, a small fixed set; the first is the preset alone.

    Parameters
    ----------
    preset : {"paper", "guarded", "default", "rollout"}, optional
        Only this one; without it the default preset with its variations, and the others alone.
    config : mapping, optional
        Fields that all of them have; what would change these is not tried.

    Raises
    ------
    ConfigError
        The preset is unknown.
    """
    if preset not in (None, *PRESET_POLICIES):
        known = ", ".join(PRESET_POLICIES)
        raise ConfigError(f"preset: unknown {preset!r}, known are {known}")
    fixed, own = dict(config or {}), preset or "default"
    tried = [fields for fields in _TRIED if not fields.keys() & fixed.keys()]
    found = [Setting(preset=own, config={**fixed, **fields}) for fields in ({}, *tried)]
    if preset is not None:
        return found
    others = (name for name in PRESET_POLICIES if name != own)
    return [*found, *(Setting(preset=name, config=fixed) for name in others)]


@dataclass(frozen=True, kw_only=True)
class LoadAdvice:
    """The judged half at one load.

    Parameters
    ----------
    factor : float
        How many times faster than recorded the tasks arrive.
    values : mapping
        For each metric and each policy or setting the figure of each repetition.
    best : mapping
        By kind of baseline (``all``, ``without_host``, ``with_host``) the one with the least mean
        JCT.
    ratios : mapping
        For each metric and kind of baseline the advised setting against that one; ``None`` where
        the setting does not finish all tasks.
    """

    factor: float
    values: Mapping[str, Mapping[str, Values]]
    best: Mapping[str, str]
    ratios: Mapping[str, Mapping[str, Ratio | None]]

    def direction(self, metric: str, kind: str) -> int:
        """-1: topas is better, 1: worse or does not finish, 0: within the noise."""
        found = self.ratios[metric][kind]
        return 1 if found is None else found.direction(MIN_EFFECT)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        ratios = {
            metric: {kind: found and found.to_dict() for kind, found in kinds.items()}
            for metric, kinds in self.ratios.items()
        }
        values = {
            metric: {name: list(of) for name, of in policies.items()}
            for metric, policies in self.values.items()
        }
        return {
            "factor": self.factor,
            "best": dict(self.best),
            "ratios": ratios,
            "values": values,
        }


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do about a workload.

    Parameters
    ----------
    workload : str
        Its name.
    point : OperatingPoint
        Where it lies on a phase map.
    left_out : int
        Tasks that can never run and were left out.
    resampled : bool
        Whether intervals come from bootstrap replicates of the tasks rather than from seeds.
    setting : Setting
        What is advised: the pick if it was better than the preset alone on the judged half too,
        else the preset alone.
    picked : Setting
        What had the least mean JCT on the selection half, over all loads.
    scores : mapping
        Of each candidate on the selection half: geometric mean of the mean JCT over loads and
        repetitions, seconds; ``None`` if it did not finish all tasks.
    confirmed : Ratio or None
        The pick against the preset alone on the judged half; ``None`` if they are the same, or one
        did not finish.
    loads : tuple of LoadAdvice
        By factor, ascending.
    """

    workload: str
    point: OperatingPoint
    left_out: int
    resampled: bool
    setting: Setting
    picked: Setting
    scores: Mapping[str, float | None]
    confirmed: Ratio | None
    loads: tuple[LoadAdvice, ...]

    @property
    def kinds(self) -> list[str]:
        """The kinds of baselines that it was compared with; the first is that of the verdict."""
        return list(self.own.ratios[JCT_METRICS[0]])

    @property
    def own(self) -> LoadAdvice:
        """The workload's own load."""
        return next(load for load in self.loads if load.factor == _OWN_LOAD)

    def verdict(self, kind: str | None = None) -> str:
        """``yes``, ``no``, ``does not matter`` or ``it depends``.

        At the workload's own load mean and p99 JCT decide: ``yes`` if one is better and none worse,
        ``no`` if one is worse and none better, ``it depends`` if both. A ``yes`` becomes ``it
        depends`` if mean JCT is worse at another load. If neither has changed, mean JCT at the
        other loads decides whether it is ``no``, ``it depends`` or ``does not matter``; being
        better at another load only does not make a ``yes``.

        Parameters
        ----------
        kind : str, optional
            One of :attr:`kinds`.
        """
        of = kind or self.kinds[0]
        here = {self.own.direction(metric, of) for metric in JCT_METRICS}
        others = (load for load in self.loads if load is not self.own)
        elsewhere = {load.direction(JCT_METRICS[0], of) for load in others}
        if here == {0}:
            words = {(True, False): "no", (True, True): "it depends"}
            return words.get((1 in elsewhere, -1 in elsewhere), "does not matter")
        if -1 not in here:
            return "no"
        return "it depends" if 1 in here or 1 in elsewhere else "yes"

    def to_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order; they depend on nothing but the inputs."""
        return {
            "workload": self.workload,
            "verdict": self.verdict(),
            "verdicts": {kind: self.verdict(kind) for kind in self.kinds},
            "operating_point": self.point.to_dict(),
            "tasks_left_out": self.left_out,
            "intervals": "bootstrap" if self.resampled else "seeds",
            "setting": {"preset": self.setting.preset, "config": dict(self.setting.config)},
            "picked": {"preset": self.picked.preset, "config": dict(self.picked.config)},
            "scores": dict(self.scores),
            "picked_against_preset": self.confirmed and self.confirmed.to_dict(),
            "loads": [load.to_dict() for load in self.loads],
        }


def _kinds(host: bool | None) -> dict[str, bool | None]:
    """Which baselines are compared with, the first for the verdict."""
    if host is None:
        return {"all": None, "without_host": False, "with_host": True}
    return {"with_host": True} if host else {"without_host": False}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about a workload.

    Parameters
    ----------
    replicates : Replicates
        Its repetitions, of :func:`topas.sim.study.replicates.redraw` or
        :func:`topas.sim.study.replicates.resample`.
    point : OperatingPoint
        Where it lies.
    left_out : int
        Tasks that can never run and were left out before.
    costs, options : EngineCosts, EngineOptions
        The engine; what ``options`` say of a host cache does not count.
    settings : sequence of Setting
        What is tried, at least one; the first is the one without variations.
    baselines : sequence of str
        Policies that topas is compared with, without suffixes.
    host : bool or None
        Baselines with a host cache, without one, or (``None``) the better of both.
    loads : sequence of float
        Factors on the speed of arrivals, 1 among them.

    Raises
    ------
    ConfigError
        A field is not legal; the message names it.
    """

    replicates: Replicates
    point: OperatingPoint
    left_out: int = 0
    costs: EngineCosts = field(default_factory=EngineCosts)
    options: EngineOptions = field(default_factory=EngineOptions)
    settings: Sequence[Setting] = field(default_factory=candidates)
    baselines: Sequence[str] = BASELINE_NAMES
    host: bool | None = None
    loads: Sequence[float] = LOADS

    def __post_init__(self) -> None:
        for factor in self.loads:
            check_number("loads", factor, above=True)
        if _OWN_LOAD not in self.loads:
            raise ConfigError(f"loads: 1 must be among them, got {list(self.loads)}")
        if not self.settings:
            raise ConfigError("settings: none given")
        for kind, names in self.kinds.items():
            if not names:
                raise ConfigError(f"baselines: {list(self.baselines)} has none {kind}")

    @property
    def kinds(self) -> dict[str, list[str]]:
        """The baselines by kind, the first kind that of the verdict."""
        return {
            kind: [
                name
                for name in both_ways(self.baselines)
                if wanted in (None, PolicyName.parse(name).has_host_cache)
            ]
            for kind, wanted in _kinds(self.host).items()
        }


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    there = list(values)
    logs = [math.log(value) for value in there if value]
    return math.exp(math.fsum(logs) / len(logs)) if logs and len(logs) == len(there) else None


#: Values by load, metric and policy or setting.
_Judged = Mapping[float, Mapping[str, Mapping[str, Values]]]


class _Judge:
    """Runs of both halves, and what they say."""

    def __init__(
        self,
        question: Question,
        processes: int,
        resume: Path | None,
        on_run: Callable[[Any], None] | None,
    ) -> None:
        self._question = question
        self._resume = resume
        self._processes = processes
        self._on_run = on_run
        self._loads = sorted(set(question.loads))
        self._resampled = question.replicates.resampled
        self._count = len(question.replicates.selection)

    def _execute(self, runs: Sequence[Run]) -> list[Outcome]:
        question = self._question
        return run_all(
            (*question.replicates.selection, *question.replicates.held_out),
            runs,
            costs=question.costs,
            options=question.options,
            processes=self._processes,
            resume=self._resume,
            on_run=self._on_run,
        )

    def _figures(
        self, contenders: Mapping[str, tuple[str, Mapping[str, Any]]], begin: int
    ) -> dict[tuple[str, float], list[Outcome]]:
        """Outcomes of each contender and load on the repetitions from ``begin`` on."""
        keys = [(label, factor) for label in contenders for factor in self._loads]
        runs = [
            Run(
                workload=begin + index,
                factor=factor,
                policy=contenders[label][0],
                config=contenders[label][1],
            )
            for label, factor in keys
            for index in range(self._count)
        ]
        outcomes = iter(self._execute(runs))
        return {key: [next(outcomes) for _ in range(self._count)] for key in keys}

    def scores(self, settings: Sequence[Setting]) -> dict[str, float | None]:
        """Score of each setting on the selection half."""
        figures = self._figures({s.label: (s.policy, s.config) for s in settings}, 0)
        return {
            s.label: _geometric_mean(
                outcome.mean_jct_s for factor in self._loads for outcome in figures[s.label, factor]
            )
            for s in settings
        }

    def judged(self, settings: Sequence[Setting], baselines: Sequence[str]) -> _Judged:
        """Values on the judged half by load, metric and policy or setting."""
        plain: dict[str, tuple[str, Mapping[str, Any]]] = {name: (name, {}) for name in baselines}
        contenders = {**plain, **{s.label: (s.policy, s.config) for s in settings}}
        figures = self._figures(contenders, self._count)
        return {
            factor: {
                metric: {
                    label: [getattr(outcome, metric) for outcome in figures[label, factor]]
                    for label in contenders
                }
                for metric in JCT_METRICS
            }
            for factor in self._loads
        }

    def confirmation(self, judged: _Judged, picked: Setting, plain: Setting) -> Ratio | None:
        """The picked setting against the plain one: mean JCT over all loads, by repetition."""
        if picked == plain:
            return None
        over_loads = [
            [
                _geometric_mean(
                    judged[factor][JCT_METRICS[0]][setting.label][index] for factor in self._loads
                )
                for index in range(self._count)
            ]
            for setting in (picked, plain)
        ]
        return ratio_to(over_loads[0], plain.label, over_loads[1], resampled=self._resampled)

    def load_advice(
        self, factor: float, judged: _Judged, setting: Setting, kinds: Mapping[str, list[str]]
    ) -> LoadAdvice:
        """A setting against the best baseline of each kind, at one load."""
        values = judged[factor]
        ratios: dict[str, dict[str, Ratio | None]] = {metric: {} for metric in values}
        best: dict[str, str] = {}
        for kind, names in kinds.items():
            found = best_of({name: values[JCT_METRICS[0]][name] for name in names})
            if found is None:
                raise StateError(f"no baseline ({kind}) finished all tasks at load x{factor:g}")
            best[kind] = found
            for metric, policies in values.items():
                ours, theirs = policies[setting.label], policies[found]
                ratios[metric][kind] = ratio_to(ours, found, theirs, resampled=self._resampled)
        return LoadAdvice(factor=factor, values=values, best=best, ratios=ratios)


def advise(
    question: Question,
    *,
    processes: int = 1,
    resume: Path | None = None,
    progress: Callable[[int], AbstractContextManager[Callable[[Any], None]]] | None = None,
) -> Advice:
    """Whether topas pays on a workload.

    Parameters
    ----------
    question : Question
        What is asked.
    processes, resume
        As of :func:`topas.sim.study.replicates.run_all`.
    progress : callable, optional
        Given the greatest number of runs, a context whose value is called after each run.

    Returns
    -------
    Advice
        The same for the same question, whatever ``processes`` and ``resume`` are.

    Raises
    ------
    ConfigError
        A setting or ``processes`` is not legal.
    StateError
        A run cannot go on, or no baseline finishes all tasks at some load.
    """
    tried, kinds = list(question.settings), question.kinds
    names = next(iter(kinds.values()))
    plain = tried[0]
    with _progress(question, len(tried) + len(names) + 2, progress) as on_run:
        judge = _Judge(question, processes, resume, on_run)
        scores = judge.scores(tried)
        picked = min(tried, key=lambda setting: scores[setting.label] or math.inf)
        judged = judge.judged([plain] if picked == plain else [plain, picked], names)
    confirmed = judge.confirmation(judged, picked, plain)
    holds = confirmed is not None and confirmed.direction(MIN_EFFECT) < 0
    setting = picked if holds else plain
    return Advice(
        workload=question.replicates.selection[0].name,
        point=question.point,
        left_out=question.left_out,
        resampled=question.replicates.resampled,
        setting=setting,
        picked=picked,
        scores=scores,
        confirmed=confirmed,
        loads=tuple(judge.load_advice(factor, judged, setting, kinds) for factor in judged),
    )


def _progress(
    question: Question,
    contenders: int,
    progress: Callable[[int], AbstractContextManager[Callable[[Any], None]]] | None,
) -> AbstractContextManager[Callable[[Any], None] | None]:
    if progress is None:
        return nullcontext()
    return progress(len(question.replicates.selection) * len(set(question.loads)) * contenders)
