"""How many draws an expectation needs: error of marginals, regret and cost of decisions.

    python bench/sampling.py [--json OUT] [--plot PNG] [--quick]

On states of simulated runs; docs/sampling.md says what is measured and has the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import topas
from replaying import lowest, replay
from sampling_paths import MethodScorer, TaskPaths, as_the_core, plain, truth
from sampling_states import (
    Run,
    StudyState,
    case_tasks,
    recorded,
    shares,
    simulate,
    spread,
    with_plain_draws,
)
from sampling_tables import print_tables, save_plot
from topas.reference.state import Request, Task

RUNS = (
    Run("dag-4", 0.08, 200),
    Run("dag-10-wide", 0.02, 60),
    Run("dag-10-wide", 0.05, 60),
    Run("fork-16", 0.02, 60),
    Run("layers-4x4", 0.04, 60),
)
CHAINS = (Run("chain-3", 0.15, 100), Run("metagpt-sop", 0.025, 60), Run("metagpt-tl", 0.0175, 60))

Case = tuple[Request, frozenset[Request]]


@dataclass(frozen=True)
class Effort:
    """How much of everything."""

    draws: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    seeds: int = 20  # of sampled marginals, and of sampled decisions
    plain_seeds: int = 4  # of decisions by plain draws
    error_states: int = 16
    tasks: int = 2  # of a state, for the marginals
    requests: int = 4  # of a task
    regret_states: int = 32
    true_draws: int = 2**16  # of the true decision, and twice as many of a true marginal
    run_draws: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    run_seeds: int = 8


QUICK = Effort(
    draws=(32, 128, 512),
    seeds=3,
    plain_seeds=2,
    error_states=3,
    tasks=1,
    requests=2,
    regret_states=3,
    true_draws=2**13,
    run_draws=(32, 128),
    run_seeds=2,
)

# ------------------------------------------------------------------------------- marginals


def cases_of(requests: Sequence[Request], count: int) -> list[Case]:
    """Waiting requests with H: empty, and every second of the siblings."""
    cases = []
    for request in spread([r for r in requests if not r.running], count):
        siblings = [r for r in requests if r is not request]
        cases += [(request, frozenset()), (request, frozenset(siblings[::2]))]
    return cases


def deltas(total: Callable[[frozenset[Request]], float], cases: Sequence[Case]) -> list[float]:
    """Delta(r | H) of each case, seconds; each expectation is asked for once."""
    sets = {done for request, before in cases for done in (before, before | {request})}
    known = {done: total(done) for done in sets}
    return [known[before] - known[before | {request}] for request, before in cases]


def core_total(
    snapshot: topas.Snapshot, config: topas.Config, task: Task
) -> Callable[[frozenset[Request]], float]:
    """E[LP(Z(H))] as the core has it."""
    return lambda done: topas.expected_longest_path(
        snapshot, config, task.id, sorted(request.id for request in done)
    )


def errors_of_task(
    study: StudyState, task: Task, cases: Sequence[Case], effort: Effort, rng: np.random.Generator
) -> dict[str, Any]:
    """True marginals of one task, their doubt, and the errors by method and draws."""
    snapshot, config = study.of_task(task), study.config
    once, again = (
        np.array(deltas(TaskPaths(task, truth(2 * effort.true_draws, seed)).total, cases))
        for seed in (1, 2)
    )
    errors: dict[str, dict[int, list[float]]] = {"stratified": {}, "plain": {}}
    for draws in effort.draws:
        strata, free = [], []
        for seed in range(effort.seeds):
            sampled = config.replace(samples=draws, seed=seed)
            strata += list(deltas(core_total(snapshot, sampled, task), cases) - once)
            method = plain(draws, rng, config.exact_limit)
            free += list(deltas(TaskPaths(task, method).total, cases) - once)
        errors["stratified"][draws], errors["plain"][draws] = strata, free
    return {"truth": once, "doubt": once - again, "errors": errors}


def marginals(states: Sequence[StudyState], effort: Effort) -> dict[str, Any]:
    """Error of sampled marginals over the requests of some tasks of each state."""
    rng = np.random.default_rng(7)
    found = [
        errors_of_task(study, task, cases_of(requests, effort.requests), effort, rng)
        for study in states
        for task, requests in case_tasks(study, effort.tasks)
    ]
    true = np.concatenate([one["truth"] for one in found])
    doubt = np.concatenate([one["doubt"] for one in found])
    out: dict[str, Any] = {
        "cases": len(true),
        "mean_s": float(true.mean()),
        "mean_alone_s": float(true[::2].mean()),
        "mean_after_half_s": float(true[1::2].mean()),
        "truth_rms_difference_s": rms(doubt),
    }
    for method in ("stratified", "plain"):
        out[method] = {}
        for draws in effort.draws:
            error = np.concatenate([one["errors"][method][draws] for one in found])
            p95 = float(np.quantile(abs(error), 0.95))
            out[method][draws] = {"rmse_s": rms(error), "p95_s": p95}
        out[method]["exponent"] = exponent({n: out[method][n]["rmse_s"] for n in effort.draws})
    ratios = [out["plain"][n]["rmse_s"] / out["stratified"][n]["rmse_s"] for n in effort.draws]
    out["draws_saved"] = statistics.geometric_mean(ratios) ** 2
    return out


def rms(values: Any) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def exponent(error: dict[int, float]) -> float:
    """Slope of the logarithm of an error over that of the draws."""
    return float(np.polyfit(np.log(list(error)), np.log(list(error.values())), 1)[0])


# ---------------------------------------------------------------------------------- regret


class Judge:
    """What decisions in one state are worth by the truth, seconds."""

    def __init__(self, study: StudyState, effort: Effort) -> None:
        self._study = study
        self._scorer = MethodScorer(study.state, truth(2 * effort.true_draws, 1))
        self._known: dict[Any, float] = {}
        configs = [study.config.replace(samples=effort.true_draws, seed=seed) for seed in (1, 2)]
        self.best, again = (topas.decide(study.snapshot, config) for config in configs)
        self.best_s = self.value(self.best)
        self.doubt_s = abs(self.value(again) - self.best_s)

    def value(self, decision: topas.Decision) -> float:
        """Its true score."""
        key = self.key(decision)
        if key not in self._known:
            self._known[key] = self._scorer.score(decision)
        return self._known[key]

    @staticmethod
    def key(decision: topas.Decision) -> Any:
        """What a decision does, whatever the order and the score."""
        return frozenset(decision.resident), frozenset(decision.admit), tuple(decision.preempt)

    def stratified(self, draws: int, seed: int) -> topas.Decision:
        """The core's decision."""
        config = self._study.config.replace(samples=draws, seed=seed)
        return topas.decide(self._study.snapshot, config)

    def plain(self, draws: int, seed: int) -> topas.Decision:
        """The core's decision by plain draws."""
        rng = np.random.default_rng([seed, draws])
        return topas.decide(*with_plain_draws(self._study, draws, rng))


def regrets(states: Sequence[StudyState], effort: Effort) -> dict[str, Any]:
    """What the score loses by sampling, over states whose best score depends on the draws."""
    judges = [Judge(study, effort) for study in states]
    scale = statistics.fmean(abs(judge.best_s) for judge in judges)
    out: dict[str, Any] = {
        "states": len(judges),
        "mean_score_s": scale,
        "truth_mean_difference_s": statistics.fmean(judge.doubt_s for judge in judges),
    }
    for method, seeds in (("stratified", effort.seeds), ("plain", effort.plain_seeds)):
        out[method] = {}
        for draws in effort.draws:
            lost, different = [], 0
            for judge in judges:
                for seed in range(seeds):
                    decision = getattr(judge, method)(draws, seed)
                    lost.append(judge.best_s - judge.value(decision))
                    different += judge.key(decision) != judge.key(judge.best)
            out[method][draws] = {
                "mean_s": statistics.fmean(lost),
                "error_s": standard_error(lost, seeds),
                "mean": statistics.fmean(lost) / scale,
                "p95": float(np.quantile(lost, 0.95)) / scale,
                "different": different / len(lost),
            }
    return out


def standard_error(lost: Sequence[float], seeds: int) -> float:
    """Of the mean, over the states (the seeds of a state are no independent states)."""
    by_state = np.array(lost).reshape(-1, seeds).mean(axis=1)
    return float(by_state.std(ddof=1) / np.sqrt(len(by_state)))


def concerned(study: StudyState) -> bool:
    """Say whether the best score of a state depends on the draws."""
    configs = [study.config.replace(samples=32, seed=seed) for seed in (101, 102)]
    first, second = (topas.decide(study.snapshot, config).score for config in configs)
    return abs(first - second) > 1e-9


# ------------------------------------------------------------------------------------ cost


def cost(states: Sequence[StudyState], effort: Effort) -> dict[int, float]:
    """Mean microseconds of ``topas.decide``, each state with the lowest of seven calls in turn."""
    lowest = dict.fromkeys(effort.draws, 0.0)
    for study in states:
        configs = {draws: study.config.replace(samples=draws) for draws in effort.draws}
        calls = [
            {draws: decide_s(study.snapshot, config) for draws, config in configs.items()}
            for _ in range(7)
        ]
        for draws in effort.draws:
            lowest[draws] += min(call[draws] for call in calls)
    return {draws: 1e6 * total / len(states) for draws, total in lowest.items()}


def decide_s(snapshot: topas.Snapshot, config: topas.Config) -> float:
    """Seconds of one decision."""
    begin = time.perf_counter()
    topas.decide(snapshot, config)
    return time.perf_counter() - begin


def whole_runs(run: Run, effort: Effort) -> dict[int, dict[str, float]]:
    """Mean JCT over seeds by draws, and what ``Scheduler.decide`` costs in these runs."""
    jct: dict[int, list[float]] = {}
    decide_us: dict[int, list[float]] = {}
    out: dict[int, dict[str, float]] = {}
    for draws in effort.run_draws:
        jct[draws], decide_us[draws] = [], []
        for seed in range(1, effort.run_seeds + 1):
            log, mean_s = simulate(run, seed=seed, samples=draws)
            jct[draws].append(mean_s)
            decide_us[draws].append(statistics.fmean(lowest([replay(log), replay(log)], "decide")))
        out[draws] = {
            "jct_s": statistics.fmean(jct[draws]),
            "decide_us": statistics.fmean(decide_us[draws]),
        }
    for draws in effort.run_draws:
        change = [a / b - 1.0 for a, b in zip(jct[draws], jct[128], strict=True)]
        out[draws]["change"] = statistics.fmean(change)
        spread_of = statistics.stdev(change) if len(change) > 1 else 0.0
        out[draws]["change_error"] = spread_of / len(change) ** 0.5
    return out


# ---------------------------------------------------------------------------------- checks


def compared(states: Sequence[StudyState], effort: Effort) -> Iterator[tuple[str, float]]:
    """Greatest differences of what has to agree, relative to the value: kind and difference."""
    for study in states:
        for task, requests in case_tasks(study, 1):
            snapshot, done = study.of_task(task), frozenset(requests[::2])
            for exact in (study.config.exact_limit, 2**20):
                config = study.config.replace(exact_limit=exact)
                settings = replace(study.state.settings, exact_limit=exact)
                ours = TaskPaths(task, as_the_core(settings)).total(done)
                core = core_total(snapshot, config, task)(done)
                yield "NumPy and the core", abs(ours / core - 1.0)
            true = TaskPaths(task, truth(2 * effort.true_draws, 1)).total(done)
            for seed in (1, 2):
                config = study.config.replace(samples=2 * effort.true_draws, seed=seed)
                large = core_total(snapshot, config, task)(done)
                yield "truth and a large sample", abs(large / true - 1.0)


def checks(states: Sequence[StudyState], effort: Effort) -> dict[str, float]:
    """The greatest of each kind of difference; the core's arithmetic has to be ours.

    Raises
    ------
    AssertionError
        NumPy and the core differ by more than 1e-12, or the truth and large samples by far more
        than those can err.
    """
    greatest: dict[str, float] = {}
    for kind, difference in compared(states, effort):
        greatest[kind] = max(greatest.get(kind, 0.0), difference)
    assert greatest["NumPy and the core"] < 1e-12, greatest
    assert greatest["truth and a large sample"] < 2.0 / effort.true_draws**0.5, greatest
    return greatest


# ------------------------------------------------------------------------------------ main


def study_run(run: Run, effort: Effort) -> dict[str, Any]:
    """Everything about one run."""
    states = recorded(simulate(run, seed=1, samples=128)[0])
    sampled = [state for state in states if state.sampled]
    some = spread([s for s in sampled if list(case_tasks(s, 1))], effort.error_states)
    candidates = spread(sampled, 12 * effort.regret_states)
    open_states = [state for state in candidates if concerned(state)]
    chosen = spread(open_states, effort.regret_states)
    return {
        "run": run.name,
        "shares": shares(spread(states, 200)),
        "concerned": len(open_states) / len(candidates) * len(sampled) / len(states),
        "checks": checks(spread(some, 4), effort),
        "marginals": marginals(some, effort),
        "regret": regrets(chosen, effort),
        "cost_us": cost(chosen, effort),
        "runs": whole_runs(run, effort),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the study, print its tables, write what is asked for; the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw errors and regrets to this file")
    parser.add_argument("--quick", action="store_true", help="few states and draws, one run")
    given = parser.parse_args(arguments)
    effort, runs = (QUICK, RUNS[1:2]) if given.quick else (Effort(), RUNS)
    begin = time.perf_counter()
    found: dict[str, Any] = {"effort": asdict(effort), "runs": []}
    found["chains"] = {
        run.name: shares(spread(recorded(simulate(run, seed=1, samples=128)[0]), 50))
        for run in (CHAINS[:1] if given.quick else CHAINS)
    }
    for run in runs:
        found["runs"].append(study_run(run, effort))
        print(f"{run.name}: done after {time.perf_counter() - begin:.0f} s", flush=True)
    print_tables(found)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.plot:
        save_plot(found, given.plot)
    return found


if __name__ == "__main__":
    main()
