"""Nobody starves: a cold prefix gets room beside prefixes whose requests always overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driving import PREFIXES, bridge_of, finish, tokens

if TYPE_CHECKING:
    from driving import Start
    from engine import InProcessEngine

HOT = 60  # requests of each hot prefix: some 300 passes
SENT = 60  # the pass with the cold one, when all others overlap


def first_answer(drive: Start, policy: dict[str, float]) -> tuple[int, int]:
    """Return the pass of the cold request's first token and the last pass with hot ones to come.

    Two prefixes of 96 tokens and three short requests of each leave no room for a third prefix.
    """
    engine = drive({"policy": policy}, max_total_tokens=310)
    sent, seen, coming = [0, 0], [0], [0]

    def feed(engine: InProcessEngine) -> bool:
        for hot in (0, 1):
            live = sum(not engine.outputs[f"hot{hot}.{at}"].finish for at in range(sent[hot]))
            if sent[hot] < HOT and live < 3 and engine.passes >= 4 * sent[hot]:
                prompt = PREFIXES[hot] + tokens(100 * hot + sent[hot], 5)
                engine.submit(f"hot{hot}.{sent[hot]}", prompt, 10 + 3 * sent[hot] % 7)
                sent[hot] += 1
        if engine.passes == SENT:
            engine.submit("cold", PREFIXES[2] + tokens(900, 5), 4)
        cold = engine.outputs.get("cold")
        if not seen[0] and cold is not None and cold.token_ids:
            seen[0] = engine.passes
        if min(sent) < HOT:
            coming[0] = engine.passes
        return min(sent) < HOT

    finish(engine, feed)
    assert bridge_of(engine).counts.preemptions == 0
    assert seen[0] > SENT
    return seen[0], coming[0]


def test_a_cold_prefix_waits_for_a_multiple_of_what_is_usual(drive: Start) -> None:
    answered, _ = first_answer(drive, {})
    assert answered < SENT + 60
    answered, coming = first_answer(drive, {"reserve_limit": 0.0})
    assert answered >= coming, "without it the cold one is served when the hot ones end"


def test_the_limit_says_how_long(drive: Start) -> None:
    waits = [first_answer(drive, {"reserve_limit": limit})[0] - SENT for limit in (1.0, 4.0, 8.0)]
    assert waits == sorted(set(waits)), waits
