"""Tables and plot of the sampling study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_tables(found: dict[str, Any]) -> None:
    """Print what docs/sampling.md shows, in Markdown."""
    runs, draws = found["runs"], found["effort"]["draws"]
    names = [one["run"] for one in runs]
    _print_shares(found)
    rows = [[f"{n:,}", *(_error(one["marginals"], n) for one in runs)] for n in draws]
    rows.append(["exponent", *(_exponents(one["marginals"]) for one in runs)])
    rows.append(["draws saved", *(f"{one['marginals']['draws_saved']:.1f} x" for one in runs)])
    title = "RMSE (p95) of a marginal by stratified draws / RMSE by plain, % of the mean marginal"
    _table(title, ["draws", *names], rows)
    _print_regrets(found, names)
    rows = [[f"{n:,}", *(_cost(one["cost_us"], n) for one in runs)] for n in draws]
    _table("topas.decide, µs, and in units of 128 draws", ["draws", *names], rows)
    rows = []
    for n in found["effort"]["run_draws"]:
        facts = [one["runs"][n] for one in runs]
        error = sum(one["change_error"] ** 2 for one in facts) ** 0.5 / len(facts)
        change = fmean(one["change"] for one in facts)
        rows.append([f"{n:,}", *map(_whole, facts), _change(change, error)])
    title = "Whole runs: mean JCT against 128 draws ± error; Scheduler.decide, µs"
    _table(title, ["draws", *names, "mean"], rows)


def _print_regrets(found: dict[str, Any], names: Sequence[str]) -> None:
    runs, draws = found["runs"], found["effort"]["draws"]
    for method in ("stratified", "plain"):
        rows = [
            [
                f"{n:,}",
                *(_regret(one["regret"][method][n]) for one in runs),
                f"{100 * fmean(one['regret'][method][n]['mean'] for one in runs):.2f}",
            ]
            for n in draws
        ]
        title = f"Regret by {method} draws, % of the mean score: mean ± error, p95, other decisions"
        _table(title, ["draws", *names, "mean"], rows)


def _print_shares(found: dict[str, Any]) -> None:
    rows = [
        [name, *map(_percent, share.values()), "0 %"] for name, share in found["chains"].items()
    ]
    for one in found["runs"]:
        facts = one["marginals"]
        rows.append(
            [one["run"], *map(_percent, one["shares"].values()), _percent(one["concerned"])]
        )
        print(
            f"{one['run']}: {facts['cases']} marginals, mean {facts['mean_alone_s']:.3f} s alone, "
            f"{facts['mean_after_half_s']:.3f} s after half; the truth is sure to "
            f"{1e3 * facts['truth_rms_difference_s']:.2f} ms; {one['regret']['states']} states, "
            f"mean score {one['regret']['mean_score_s']:.2f} s, two true decisions differ by "
            f"{1e3 * one['regret']['truth_mean_difference_s']:.1f} ms; {one['checks']}"
        )
    head = ["run", "states", "tasks", "waiting requests", "states whose score depends on the draws"]
    _table("Share that sampling has a part in", head, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _error(facts: dict[str, Any], n: int) -> str:
    mean = facts["mean_s"] / 100
    strata, free = facts["stratified"][n], facts["plain"][n]
    by_strata = f"{strata['rmse_s'] / mean:.1f} ({strata['p95_s'] / mean:.1f})"
    return f"{by_strata} / {free['rmse_s'] / mean:.1f}"


def _exponents(facts: dict[str, Any]) -> str:
    return f"{facts['stratified']['exponent']:.2f} / {facts['plain']['exponent']:.2f}"


def _regret(facts: dict[str, float]) -> str:
    error = facts["error_s"] * (facts["mean"] / facts["mean_s"] if facts["mean_s"] else 0.0)
    return (
        f"{100 * facts['mean']:.2f} ± {100 * error:.2f}, {100 * facts['p95']:.1f}, "
        f"{100 * facts['different']:.0f} %"
    )


def _cost(cost: dict[int, float], n: int) -> str:
    return f"{cost[n]:,.0f} ({cost[n] / cost[128]:.2f})"


def _whole(facts: dict[str, float]) -> str:
    return f"{_change(facts['change'], facts['change_error'])}; {facts['decide_us']:,.0f}"


def _change(change: float, error: float) -> str:
    return f"{100 * change:+.1f} ± {100 * error:.1f} %"


def save_plot(found: dict[str, Any], path: Path) -> None:
    """Draw RMSE and regret against the draws."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    draws = found["effort"]["draws"]
    for index, one in enumerate(found["runs"]):
        for method, line in (("stratified", "-"), ("plain", ":")):
            facts, style = one["marginals"], {"color": f"C{index}", "linestyle": line}
            label = one["run"] if line == "-" else None
            error = [100 * facts[method][n]["rmse_s"] / facts["mean_s"] for n in draws]
            left.loglog(draws, error, label=label, **style)
            regret = [100 * one["regret"][method][n]["mean"] for n in draws]
            right.semilogx(draws, regret, label=label, **style)
    left.set(xlabel="draws", ylabel="RMSE of a marginal, % of the mean")
    right.set(xlabel="draws", ylabel="mean regret, % of the mean score")
    right.axhline(0.0, color="grey", linewidth=0.5)
    left.legend(title="solid: stratified, dotted: plain")
    figure.savefig(path, dpi=120)
    plt.close(figure)
