"""What training bought at each n, over the base model's score of fresh responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

import polars as pl

from ..rates.record import Pilot
from ..rates.trials import mean_over_seeds, sampled
from .html import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What training bought at one (n, B_p), over the base model's score of fresh responses.

    Attributes:
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        base: The base model's score.
        last: Mean of the last evaluations over the seeds that did not diverge; None where there is none.
        error: Standard error of the gain: that of the mean over these seeds, no lower than that of sampling, and that
            of the base model's score, added in square. None with fewer than two seeds, which say nothing of others.
        seeds: Seeds that were trained to the end.
        diverged: Seeds that were not.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    base: float
    last: float | None
    error: float | None
    seeds: int
    diverged: int

    def difference(self) -> str:
        """The gain with its standard error, to be printed."""
        if self.last is None:
            return "—"
        return f"{self.last - self.base:+.3f}" + ("" if self.error is None else f" ± {self.error:.3f}")

    def text(self) -> str:
        """Scores and gain, to be printed."""
        lost = f", {self.diverged} diverged" if self.diverged else ""
        if self.last is None:
            return f"no seed was trained to the end{lost}"
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.base:.3f} -> {self.last:.3f} ({self.difference()}, {seeds}{lost})"


def gains(
    evals: pl.DataFrame, metric: str, states: Sequence[Mapping[str, Any]], base: float, base_error: float = 0.0
) -> list[Gain]:
    """Last evaluation of each (n, B_p), a mean over the seeds that did not diverge, against the base model.

    Args:
        evals: The ``evals`` table of the cells.
        states: The cells of ``cells.json``.
        base: The base model's score.
    """
    kind = ["rollouts_per_problem", "problems_per_batch"]
    diverged = [s["run_id"] for s in states if s["status"] == "diverged"]
    found = []
    for (n, size), part in sorted(evals.group_by(kind)):
        own = part.sort("rollouts").group_by("run_id", maintain_order=True).last()
        ended = own.filter(~pl.col("run_id").is_in(diverged))
        ends = [
            sampled(score, questions=questions, samples=samples, metric=metric)
            for score, questions, samples in ended.select(metric, "questions", "samples").iter_rows()
        ]
        last = mean_over_seeds(ends) if ends else None
        found.append(Gain(
            rollouts_per_problem=n, problems_per_batch=size, base=base, last=last.score if last else None,
            error=hypot(last.standard_error, base_error) if last and len(ends) > 1 else None, seeds=len(ended),
            diverged=len(own) - len(ended),
        ))  # fmt: skip
    return found


def metric_label(metric: str) -> str:
    """Display label of a metric: ``avg@4`` for ``avg_at_4``, since MLflow and column names cannot contain ``@``."""
    return metric.replace("_at_", "@")


def base_source(pilot: Pilot) -> str:
    """Which responses the base model's score is from."""
    if pilot.metric.startswith("avg_"):
        return "measured again"
    return "the cells' first evaluations" if pilot.declared else "the pilots' first evaluations"


def gains_table(found: Sequence[Gain], pilot: Pilot) -> str:
    """What training bought, as a table.

    Args:
        found: From ``gains``.
    """
    rows = [
        (f"n = {g.rollouts_per_problem}", g.problems_per_batch, f"{g.base:.3f}",
         "—" if g.last is None else f"{g.last:.3f}", g.difference(), g.seeds, g.diverged)
        for g in found
    ]  # fmt: skip
    base = f"base model, {base_source(pilot)}"
    return table(("", "B_p", base, f"{metric_label(pilot.metric)} at the end", "gain", "seeds", "diverged"), rows)
