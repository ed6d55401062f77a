"""What training bought at each n, over the base model's score of fresh responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from .html import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What training bought at one (n, B_p), over the base model's score of fresh responses."""

    rollouts_per_problem: int
    problems_per_batch: int
    base: float
    last: float | None
    seeds: int
    diverged: int

    def text(self) -> str:
        """Scores and gain, to be printed."""
        lost = f", {self.diverged} diverged" if self.diverged else ""
        if self.last is None:
            return f"no seed was trained to the end{lost}"
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.base:.3f} -> {self.last:.3f} ({self.last - self.base:+.3f}, {seeds}{lost})"


def gains(evals: pl.DataFrame, metric: str, states: Sequence[Mapping[str, Any]], base: float) -> list[Gain]:
    """Last evaluation of each (n, B_p), a mean over the seeds that did not diverge, against the base model.

    Args:
        evals: The ``evals`` table of the cells.
        metric: The metric.
        states: The cells of ``cells.json``.
        base: The base model's score.
    """
    kind = ["rollouts_per_problem", "problems_per_batch"]
    diverged = [s["run_id"] for s in states if s["status"] == "diverged"]
    found = []
    for (n, size), part in sorted(evals.group_by(kind)):
        own = part.sort("rollouts").group_by("run_id", maintain_order=True).last()
        ended = own.filter(~pl.col("run_id").is_in(diverged))
        last = float(ended[metric].to_numpy().mean()) if len(ended) else None
        found.append(Gain(
            rollouts_per_problem=n, problems_per_batch=size, base=base, last=last, seeds=len(ended),
            diverged=len(own) - len(ended),
        ))  # fmt: skip
    return found


def metric_label(metric: str) -> str:
    """Display label of a metric: ``avg@4`` for ``avg_at_4``, since MLflow and column names cannot contain ``@``."""
    return metric.replace("_at_", "@")


def gains_table(found: Sequence[Gain], metric: str) -> str:
    """What training bought, as a table.

    Args:
        found: From ``gains``.
        metric: The metric.
    """
    rows = [
        (f"n = {g.rollouts_per_problem}", g.problems_per_batch, f"{g.base:.3f}",
         "—" if g.last is None else f"{g.last:.3f}", "—" if g.last is None else f"{g.last - g.base:+.3f}",
         g.seeds, g.diverged)
        for g in found
    ]  # fmt: skip
    head = ("", "B_p", "base model, measured again", f"{metric_label(metric)} at the end", "gain", "seeds", "diverged")
    return table(head, rows)
