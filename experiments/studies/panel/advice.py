"""Tables of the page for somebody who must choose n tomorrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def crossings(measured: Measured) -> str:
    """After how many epochs of an n the next larger one leads."""
    pairs = next(iter(measured.values()))["crossings"]
    rows = [[name, *map(_crossing, own["crossings"])] for name, own in measured.items()]
    return table(["unit", *(f"n = {pair['few']} → {pair['many']}" for pair in pairs)], rows)


def _crossing(own: Mapping[str, Any]) -> str:
    leads = f"leads with {own['probability']:.0%}"
    if own["epochs"] is None:
        return f"not yet in {own['last']:.0f}; {leads}"
    middle, low = (f"{'≤ ' * (own[name] <= own['first'])}{own[name]:.0f}" for name in ("epochs", "low"))
    high = "not yet" if own["high"] is None else f"{own['high']:.0f}"
    return f"{middle} ({low}–{high}); {leads}"


def failures_by_cell(measured: Measured) -> dict[tuple[int, float], list[int]]:
    """By n and factor over all units: runs, those below their base model, and those that collapsed."""
    counted: dict[tuple[int, float], list[int]] = {}
    for own in measured.values():
        for row in own["failures"]:
            total = counted.setdefault((row["n"], row["factor"]), [0, 0, 0])
            for k, name in enumerate(("runs", "below the base", "collapsed")):
                total[k] += row[name]
    return counted


def failures(measured: Measured) -> dict[str, str]:
    """The table of failures, and the sums that its paragraph names."""
    counted = failures_by_cell(measured)
    runs, below, collapsed = (sum(total[k] for total in counted.values()) for k in range(3))
    factors = sorted({factor for _, factor in counted})
    rows = [
        [str(n), *(_share(*counted.get((n, factor), [0, 0, 0])[::-2]) for factor in factors)]
        for n in sorted({n for n, _ in counted})
    ]
    return {
        "runs": str(runs),
        "below": str(below),
        "collapsed": str(collapsed),
        "collapsed_share": _share(collapsed, runs),
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


def probes(measured: Measured) -> str:
    """Findings of the base model before any training, beside n*; unresolved where a guess has no upper end."""
    rows = []
    for name, own in measured.items():
        value, low, high = own["probe"]["guess"]
        guess = f"{value:.0f} ({low:.0f}–{high:.0f})" if None not in (value, high) else f"unresolved, {low:.0f} or more"
        signal = ", ".join(f"{share:.0%} at n = {n}" for n, share in own["probe"]["signal"].items())
        rows.append([name, guess, n_star(own["vertices"]["tuned"][1]), signal])
    return table(["unit", "guess of n", "n* at C_max", "groups with signal at the base model"], rows)
