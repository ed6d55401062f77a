"""Which cells were unhealthy, and how, and which were too short to judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .html import table


def section(states: Sequence[Mapping[str, Any]]) -> str:
    """Every health flag of every cell, with the numbers that raised it, and in how many cells there is none.

    Args:
        states: The cells of ``cells.json``.
    """
    rows = [
        (state["purpose"], f"n = {state['rollouts_per_problem']}", state["problems_per_batch"], state["seed"],
         f"{state['learning_rate']:.3g}", f"{flag['step']:,}", flag["name"].replace("_", " "), flag["reason"])
        for state in states
        for flag in state["health"]
    ]  # fmt: skip
    clean = sum(state["judged"] and not state["health"] for state in states)
    short = sum(not state["judged"] for state in states)
    said = (
        f"<h3>Health</h3><p>No flags in {clean} of {len(states)} cells; {short} {'was' if short == 1 else 'were'} too "
        f"short to judge"
    )
    if short:
        said += " (most flags compare two windows of steps; only a sampler that differs from the learner shows before)"
    if not rows:
        return f"{said}.</p>"
    head = ("cell", "", "B_p", "seed", "learning rate", "step", "flag", "why")
    return f"{said}. Each flag is listed at the first step at which its condition was met.</p>" + table(head, rows)


def caveats(states: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """How many cells that are measured, pilots apart, have each flag.

    Args:
        states: The cells of ``cells.json``.

    Returns:
        What each caveat is about, and what it says.
    """
    measured = [state for state in states if state["purpose"] != "pilot"]
    found = Counter(flag["name"] for state in measured for flag in state["health"])
    return [
        ("health", f"{name.replace('_', ' ')} in {count} of {len(measured)} cells")
        for name, count in sorted(found.items())
    ]
