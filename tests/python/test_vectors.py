"""The handed-out decisions: 300 snapshots with the right answer under SPEC, preset paper, exact."""

from __future__ import annotations

import json
from functools import cache
from random import Random

import pytest
from agreement import Json, differences, shared_file, shuffled
from topas import Config, Snapshot, decide

COUNT = 300
EXACT = 2**20


@cache
def vectors() -> list[Json]:
    with shared_file("vectors/decisions_11.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def config_of(fields: Json) -> Config:
    return Config.from_dict({**fields["config"], "exact_limit": EXACT}, preset="paper")


def test_every_vector_is_tested() -> None:
    assert len(vectors()) == COUNT


@pytest.mark.parametrize("line", range(COUNT))
def test_decision(line: int) -> None:
    fields = vectors()[line]
    got = decide(Snapshot.from_dict(fields), config_of(fields)).to_dict()
    got["credits"] = {str(name): value for name, value in got["credits"].items()}
    assert differences(got, fields["expect"]) == []


def test_the_answers_are_not_all_alike() -> None:
    """Otherwise the vectors would prove little."""
    answers = [fields["expect"] for fields in vectors()]
    assert sum(bool(answer["admit"]) for answer in answers) > COUNT / 3
    assert sum(bool(answer["preempt"]) for answer in answers) > COUNT / 30
    assert sum(answer["terms"]["reuse"] > 0 for answer in answers) > COUNT / 30
    assert sum(answer["terms"]["move"] > 0 for answer in answers) > COUNT / 30


def test_decision_survives_the_way_through_plain_values() -> None:
    for fields in vectors():
        config = config_of(fields)
        snapshot = Snapshot.from_dict(fields)
        again = Snapshot.from_dict(json.loads(json.dumps(snapshot.to_dict())))
        assert again == snapshot
        assert decide(again, config) == decide(snapshot, config)


def test_decision_does_not_depend_on_the_order_of_the_input() -> None:
    rng = Random(11)
    for fields in vectors():
        config = config_of(fields)
        decision = decide(Snapshot.from_dict(fields), config)
        for _ in range(3):
            assert decide(Snapshot.from_dict(shuffled(fields, rng)), config) == decision
