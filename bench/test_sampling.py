"""The sampling study runs, and its own arithmetic is that of the core."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import sampling
import topas
from sampling_paths import Fork, MethodScorer, as_the_core, enumerated, is_fork, supports_of
from sampling_states import Run, StudyState, recorded, simulate, with_plain_draws
from topas.reference.expectation import stage_draws

RUNS = (Run("dag-10-wide", 0.05, 20), Run("layers-4x4", 0.04, 12))


@cache
def states() -> list[StudyState]:
    found = [recorded(simulate(run, seed=3, samples=128)[0]) for run in RUNS]
    return [state for some in found for state in some if state.sampled][::12]


def test_a_quick_study(tmp_path, capsys):
    files = tmp_path / "study.json", tmp_path / "study.png"
    found = sampling.main(["--quick", "--json", str(files[0]), "--plot", str(files[1])])
    assert all(file.stat().st_size > 0 for file in files)
    assert "Regret by stratified draws" in capsys.readouterr().out
    errors = found["runs"][0]["marginals"]
    assert errors["stratified"][512]["rmse_s"] < errors["stratified"][32]["rmse_s"]
    assert errors["stratified"][512]["rmse_s"] < errors["plain"][512]["rmse_s"]


def test_scores_are_those_of_the_core():
    """By the core's own outcomes the score of its decision comes out again."""
    assert len(states()) > 5
    for study in states():
        decision = topas.decide(study.snapshot, study.config)
        scorer = MethodScorer(study.state, as_the_core(study.state.settings))
        assert scorer.score(decision) == pytest.approx(decision.score, rel=1e-9, abs=1e-9)


def test_a_fork_is_its_enumeration():
    task, block = next(found for s in states() for found in s.sampled if is_fork(*found))
    some, lowered = block[:3], np.array([0.0, 2.5, 40.0])
    by_all = enumerated(task, some).expected(lowered)
    assert Fork(supports_of(task, some)).expected(lowered) == pytest.approx(by_all, rel=1e-12)


def test_plain_draws_come_out_of_the_core_as_they_went_in():
    study = states()[0]
    snapshot, config = with_plain_draws(study, 64, np.random.default_rng(1))
    plain = StudyState(snapshot, config)
    assert [(task.id, block) for task, block in plain.sampled] == [
        (task.id, block) for task, block in study.sampled
    ]
    for task, block in plain.sampled:
        for v, support in zip(block, supports_of(task, block), strict=True):
            drawn = stage_draws(support.tolist(), config.samples, config.seed, task.id, v)
            assert len(support) == 1 or Counter(drawn) == Counter(support.tolist())
