"""Tables of the page for somebody who must choose n tomorrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

from scipy import stats

from .questions import Measured
from .statistics import clopper_pearson

RIVALS = ("prescribed", "best so far", "n = 8", "n = 16")
PROTOCOLS = {"sqrt": "√B rule", "tuned": "tuned per n", "decay": "tuned per (n, C), with decay"}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def protocols(measured: Measured) -> str:
    """n* of every unit at both budgets, by protocol."""
    rows = [[name, *(_moves(own["vertices"][protocol]) for protocol in PROTOCOLS)] for name, own in measured.items()]
    return table(["unit", *PROTOCOLS.values()], rows)


def _moves(vertices: Sequence[Sequence[float]]) -> str:
    early, late, same = vertices
    return f"{n_star(early)} → {n_star(late)}; {2 ** same[0]:.1f}"


def n_star(number: Sequence[float]) -> str:
    """A vertex in log2 n with its interval, as n."""
    value, low, high = (2**each for each in number)
    return f"{value:.1f} ({low:.1f}–{high:.1f})"


def failures(measured: Measured) -> dict[str, str]:
    """The table of failures by n and factor over all units, and their sum."""
    counted: dict[tuple[int, float], list[int]] = {}
    for own in measured.values():
        for row in own["failures"]:
            total = counted.setdefault((row["n"], row["factor"]), [0, 0])
            total[0] += row["failed"]
            total[1] += row["runs"]
    factors = sorted({factor for _, factor in counted})
    rows = [
        [str(n), *(_share(*counted.get((n, factor), [0, 0])) for factor in factors)]
        for n in sorted({n for n, _ in counted})
    ]
    return {
        "failed": _share(*map(sum, zip(*counted.values(), strict=True))),
        "failures": table(["n", *(f"× {factor:g}" for factor in factors)], rows),
    }


def _share(count: int, of: int) -> str:
    if not of:
        return "–"
    low, high = clopper_pearson(count, of)
    return f"{count} of {of} ({100 * low:.0f}–{100 * high:.0f} %)"


def regret(measured: Measured) -> str:
    """Regret at C_max of what a quarter of the budget prescribes, and of rivals."""
    rows = [[name, *(f"{own['regret'][rival]:.3f}" for rival in RIVALS)] for name, own in measured.items()]
    return table(["unit", *RIVALS], rows)


def signals(measured: Measured) -> str:
    """Share of groups with signal at the base model, beside n* of the trained unit."""
    group_sizes = next(iter(measured.values()))["signal"]
    rows = [
        [name, *(f"{share:.0%}" for share in own["signal"].values()), n_star(own["vertices"]["tuned"][1])]
        for name, own in measured.items()
    ]
    return table(["unit", *(f"n = {n}" for n in group_sizes), "n* at C_max"], rows)


def guessed(measured: Measured, guesses: Mapping[str, float]) -> str:
    """Regret of the n that the noise of the base model's gradient named, and of rivals, over units."""
    regrets, ranks = [], []
    for name, own in measured.items():
        by_n = {int(n): regret for n, regret in own["regret by n"].items()}
        nearest = min(by_n, key=lambda n: abs(log2(n / guesses[name])))
        regrets.append([by_n[nearest], sum(by_n.values()) / len(by_n), by_n[8]])
        ranks.append([guesses[name], own["vertices"]["tuned"][1][0]])
    guess, drawn, always = (sum(each) / len(regrets) for each in zip(*regrets, strict=True))
    rank = stats.spearmanr(ranks)[0]
    return (
        f"{guess:.3f}, where n drawn at random loses {drawn:.3f} and n = 8 always {always:.3f}; "
        f"its rank correlation with n* is {rank:+.2f}".replace("-", "−")
    )
