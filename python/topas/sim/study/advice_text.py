"""Advice in three lines."""

from __future__ import annotations

from topas.sim.study.advice import Advice, LoadAdvice
from topas.sim.study.versus import JCT_METRICS, Ratio

__all__ = ["three_lines"]

_NAMES = {"mean_jct_s": "mean JCT", "p99_jct_s": "p99"}
# Half of an interval that leaves room for changes that would matter.
_WIDE = 0.05
_OTHER_KINDS = {
    "without_host": "Baselines without a host cache",
    "with_host": "Baselines with a host cache",
}


def _change(found: Ratio | None) -> str:
    """A ratio as a change in percent with its interval."""
    if found is None:
        return "not all tasks finish"
    percent = 100.0 * (found.ratio.mean - 1.0)
    half = found.ratio.half_width
    spread = "" if half is None else f" (±{100.0 * half:.1f})"
    if abs(percent) < 0.05:
        return f"unchanged{spread}"
    return f"{abs(percent):.1f} % {'less' if percent < 0.0 else 'more'}{spread}"


def _changes(load: LoadAdvice, kind: str) -> str:
    return ", ".join(f"{_NAMES[m]} {_change(load.ratios[m][kind])}" for m in JCT_METRICS)


def _first(advice: Advice) -> str:
    kind = advice.kinds[0]
    load, verdict = advice.own, advice.verdict()
    text = (
        f"TOPAS: {verdict}. Against the best plain policy, {load.best[kind]}: "
        f"{_changes(load, kind)}."
    )
    found = load.ratios[JCT_METRICS[0]][kind]
    half = None if found is None else found.ratio.half_width
    if verdict == "does not matter" and half is not None and half > _WIDE:
        more = "a longer trace" if advice.resampled else "more replicates"
        return f"{text} The interval is wide; {more} would tell more."
    return text


def _second(advice: Advice) -> str:
    begin, tried = f"Settings: {advice.setting.label}", f"of {len(advice.scores)} tried"
    if advice.confirmed is None and advice.picked == advice.setting:
        return f"{begin}, the best {tried}."
    change = f"mean JCT {_change(advice.confirmed)}"
    if advice.picked == advice.setting:
        return f"{begin}, the best {tried}; on the held-out half {change} than the preset alone."
    return (
        f"{begin}. The best {tried}, {advice.picked.label}, does not hold on the held-out half: "
        f"{change}."
    )


def _third(advice: Advice) -> str:
    kind, point = advice.kinds[0], advice.point
    load = "unknown (all at once)" if point.load is None else f"{point.load:.2f}"
    parts = [f"Workload: prefix pressure {point.pressure:.2f}, load {load}."]
    for other in advice.loads:
        if other is not advice.own:
            parts.append(f"At x{other.factor:g}: {_changes(other, kind)} ({other.best[kind]}).")
    for name in advice.kinds[1:]:
        if advice.verdict(name) != advice.verdict():
            parts.append(
                f"{_OTHER_KINDS[name]} alone: {advice.verdict(name)}, "
                f"{_changes(advice.own, name)} ({advice.own.best[name]})."
            )
    if advice.left_out:
        parts.append(f"{advice.left_out} tasks never fit and are left out.")
    return " ".join(parts)


def three_lines(advice: Advice) -> list[str]:
    """Whether to switch topas on and by how much; with which settings; where the workload lies.

    Changes are those of the advised setting against the best baseline, with 95 % intervals.

    Parameters
    ----------
    advice : Advice
        What to say.
    """
    return [_first(advice), _second(advice), _third(advice)]
