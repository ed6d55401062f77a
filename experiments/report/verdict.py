"""What was found about a problem set, in one sentence: which n it wants, at which budgets, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl

from ..settings import Preset
from .documents import document

OUTCOMES = {"won": "better than", "lost": "worse than", "unresolved": "not told apart from"}
"""What became of the prescription, jointly valid over its comparisons (``isocompute.frontier.compare``)."""
MOST_SPANS = 3
"""How many spans of budgets a sentence names; of more, the first and the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring budgets at which the same n cannot be excluded as the best.

    Attributes:
        left: Those n, in order: the 95 % set.
        first: The lowest of these budgets (rollouts).
        last: The highest of them.
        best: The n that was best most often at the highest.
        probability: Share of the refits in which it was.
    """

    left: tuple[int, ...]
    first: float
    last: float
    best: int
    probability: float

    def text(self, sizes: Sequence[int]) -> str:
        """Say which n are left.

        Args:
            sizes: Every n that was compared, in order.
        """
        where = f"from {self.first:,.0f} to {self.last:,.0f}" if self.first < self.last else f"at {self.last:,.0f}"
        excluded = [n for n in sizes if n not in self.left]
        if not excluded:
            said = f"no n can be excluded {where} rollouts"
        elif len(self.left) == 1:
            return f"n = {self.best} is best {where} rollouts"
        else:
            said = f"{_of(self.left)} cannot be told apart {where} rollouts, and {_of(excluded)} can be excluded"
        return f"{said} (n = {self.best} is best in {self.probability:.0%} of the refits at {self.last:,.0f})"


def spans(frontier: pl.DataFrame) -> list[Span]:
    """Cut a frontier where the set of n that cannot be excluded changes.

    Args:
        frontier: A ``frontier`` table: ``compute``, ``n``, ``probability`` and ``n_set`` are read.
    """
    rows = frontier.sort("compute").iter_rows(named=True)
    found = []
    for left, part in groupby(rows, key=lambda row: tuple(sorted(row["n_set"]))):
        first, *rest = part
        last = rest[-1] if rest else first
        found.append(
            Span(
                left=left,
                first=first["compute"],
                last=last["compute"],
                best=last["n"],
                probability=last["probability"],
            )
        )
    return found


def verdict(
    name: str, frontier: pl.DataFrame, comparison: Mapping[str, Any], *, sizes: Sequence[int], seeds: int, budget: int
) -> str:
    """Say in one sentence which n a problem set wants, at which budgets, and how sure that is.

    Args:
        name: The problem set.
        frontier: Its ``frontier`` table.
        comparison: What ``comparison.json`` holds: how the prescription fared against fixed n.
        sizes: Every n of the sweep.
        budget: Rollouts that the prescription is for.
    """
    found = [span.text(sorted(sizes)) for span in spans(frontier)]
    if len(found) > MOST_SPANS:
        found = [found[0], f"after {len(found) - 2} changes in between, {found[-1]}"]
    one = ", which leaves out how seeds differ" if seeds == 1 else ""
    return f"{name}: {'; '.join(found)}, over {_seeds(seeds)}{one}; {_tested(comparison, budget)}."


def verdict_of(preset: Preset, name: str, out: Path) -> str:
    """The sentence of ``verdict``, from what the stages wrote.

    Args:
        name: The problem set.
    """
    frontier, sweep = out / "frontier" / name / "frontier.parquet", preset.sweep[name]
    comparison = document(out / "prescribe" / name / "comparison.json")
    budget = preset.prescribe[name].rollouts
    if not frontier.exists():
        return f"{name}: no curve could be fitted; {_tested(comparison, budget)}."
    return verdict(
        name,
        pl.read_parquet(frontier),
        comparison,
        sizes=sweep.rollouts_per_problem,
        seeds=len(sweep.seeds),
        budget=budget,
    )


def _tested(comparison: Mapping[str, Any], budget: int) -> str:
    if not comparison["tested"]:
        return f"not tested at a larger budget ({comparison['reason']})"
    ended = len(comparison.get("diverged", []))
    diverged = f", and {ended} of the runs diverged" if ended else ""
    others = [each for each in comparison["against"] if each["verdict"] != "same"]
    if not others:
        return f"trained at {budget:,} rollouts, where it is the only n compared{diverged}"
    parts = [f"{OUTCOMES[each['verdict']]} fixed n = {each['baseline']}{_difference(each)}" for each in others]
    seeds = max(len(each["differences"]) for each in others)
    said = f"trained at {budget:,} rollouts on {_seeds(seeds)} of its own, n = {others[0]['prescribed']} was "
    return said + _listed(parts) + diverged


def _difference(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return " (no seed of both was trained to the end)"
    span = f"; 95 %: {found['interval'][0]:+.3f} to {found['interval'][1]:+.3f}" if found["interval"] else ""
    return f" ({found['mean']:+.3f}{span})"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _of(sizes: Sequence[int]) -> str:
    return _listed([f"n = {n}" for n in sizes])


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
