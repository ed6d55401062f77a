"""What a fit chooses in a few words: the n, how often it is best, and which others lose next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isocompute.frontier import Fitted


def choice(fitted: Fitted) -> dict[str, Any]:
    """The n of least expected regret at the largest compute, how often an n is best, and those within noise of it."""
    decision = fitted.decide(fitted.largest)
    n = decision.chosen.cell.rollouts_per_problem
    return {
        "rollouts_per_problem": n,
        "probability_best": sum(o.probability_best for o in decision.options if o.cell.rollouts_per_problem == n),
        "near": sorted({o.cell.rollouts_per_problem for o in decision.near()}),
    }


def text(found: Mapping[str, Any]) -> str:
    """A choice, to be printed."""
    near = [str(n) for n in found["near"]]
    said = f"n = {found['rollouts_per_problem']} with {found['probability_best']:.0%}"
    return said if len(near) == 1 else f"undecided between n = {' and '.join(near)} ({said})"
