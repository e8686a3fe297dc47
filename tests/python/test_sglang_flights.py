"""Copies that are over: told by the first rank, well if they are well everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from topas.sglang.clock import RankClock
from topas.sglang.flights import Flights


class Outcome(Enum):
    DONE = "done"
    FAILED = "failed"


class FakeTransfer:
    """A copy that is over when it is told, or when somebody waits for it."""

    def __init__(self, fails: bool = False) -> None:
        self.is_over = False
        self._outcome = Outcome.FAILED if fails else Outcome.DONE

    def settle(self) -> Outcome:
        self.is_over = True
        return self._outcome


def transfer(fails: bool = False) -> Any:
    return FakeTransfer(fails)


def test_one_rank_needs_no_word() -> None:
    flights = Flights(RankClock(), None, lambda: 3.0)
    slow, quick, bad = transfer(), transfer(), transfer(fails=True)
    for key, one in (("slow", slow), ("quick", quick), ("bad", bad)):
        flights.add(key, one)
    assert flights.over() == []
    assert flights.rate is None
    quick.is_over = bad.is_over = True
    assert flights.over() == [("quick", True), ("bad", False)]
    assert flights.rate == 3.0
    assert flights.over() == []
    assert "slow" in flights
    assert len(flights) == 1
    flights.forget("slow")
    slow.is_over = True
    assert flights.over() == []


def test_the_first_rank_says_when_and_all_agree_on_how() -> None:
    clocks = [RankClock(), RankClock()]
    well_here: list[list[bool]] = [[], []]

    def all_well(rank: int, here: Sequence[bool]) -> list[bool]:
        well_here[rank] = list(here)
        return [False, True]  # the first copy failed somewhere

    ranks = [
        Flights(clock, lambda here, rank=rank: all_well(rank, here), lambda rank=rank: 10.0 + rank)
        for rank, clock in enumerate(clocks)
    ]
    ours, theirs = [transfer(), transfer()], [transfer(fails=True), transfer()]
    for flights, transfers in zip(ranks, (ours, theirs), strict=True):
        for key, one in zip("ab", transfers, strict=True):
            flights.add(key, one)
    theirs[0].is_over = True
    assert [clock.detach(clocks[0].attach([])) for clock in clocks] == [[], []]
    assert [flights.over() for flights in ranks] == [[], []], "the first rank's are not over"

    ours[0].is_over = ours[1].is_over = True
    messages = clocks[0].attach([])
    assert len(messages) == 1, "the word travels though nobody asked for the time"
    assert [clock.detach(messages) for clock in clocks] == [[], []]
    assert [flights.over() for flights in ranks] == [[("a", False), ("b", True)]] * 2
    assert well_here == [[True, True], [False, True]]
    assert theirs[1].is_over, "waited for"
    assert [flights.rate for flights in ranks] == [10.0, 10.0]
    assert clocks[0].attach([]) == []


def test_a_word_is_heard_once() -> None:
    clock = RankClock()
    flights = Flights(clock, list, lambda: None)
    flights.add("a", one := transfer())
    one.is_over = True
    clock.detach(clock.attach([]))
    assert flights.over() == [("a", True)]
    flights.add("b", other := transfer())
    assert flights.over() == []
    assert not other.is_over, "nobody has waited for it"
    flights.settle()
    assert other.is_over


def test_one_rank_does_not_wait_before_it_saves() -> None:
    flights = Flights(RankClock(), None, lambda: None)
    flights.add("a", one := transfer())
    flights.settle()
    assert not one.is_over
