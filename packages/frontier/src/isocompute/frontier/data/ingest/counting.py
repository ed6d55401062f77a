"""Cumulative counts from what was logged of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import FrontierError
from .run import Run

LARGEST_COUNT = 2**53
"""A larger count is wrong: a float holds every whole number up to here."""
LONGEST_RESPONSE = 2**40
"""A longer mean response, in tokens, is wrong."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Rollouts and response tokens of a run, step by step.

    Attributes:
        where: The run, for messages.
        per_step: Rollouts of a step whose count is not logged, where that is known.
        reason_unknown: Why it is not known otherwise, and what a log must hold to say it.
        step: Last step counted.
        rollouts: Generated up to and including it.
        tokens: Response tokens of these rollouts.
    """

    where: str
    per_step: int | None
    reason_unknown: str
    step: int = 0
    rollouts: int = 0
    tokens: float = 0.0

    def advance(self, step: int, own: int | None, length: float) -> None:
        """Count all steps up to one.

        Args:
            step: The step; nothing happens where it has been counted already.
            own: Rollouts that it generated, where its log says so.
            length: Mean tokens of the responses.

        Raises:
            FrontierError: What a step generated is not known, or its log is impossible.
        """
        if step <= self.step:
            return
        if own is not None and not 0 <= own < LARGEST_COUNT:
            raise FrontierError(f"{self.where}: step {step} is logged with {own:g} rollouts, which is impossible")
        missing = step - self.step - (own is not None)
        if missing and self.per_step is None:
            raise FrontierError(
                f"{self.where}: how many rollouts step {self.step + 1} generated is not known: {self.reason_unknown}; "
                "log or export it, or give --set rollouts_per_step=NUMBER for such steps"
            )
        new = missing * (self.per_step or 0) + (own or 0)
        self.step = step
        self.rollouts += new
        self.tokens += new * length

    def row(
        self, common: Mapping[str, Any], *, step: int, problem_set: str, samples: int, scores: Mapping[str, float]
    ) -> dict[str, Any]:
        """A row of ``evals`` with what has been counted so far.

        Args:
            common: Columns that are the same in every row of the run.
            step: Update steps taken.
            scores: Metric columns.
        """
        return {
            **common, "step": step, "rollouts": self.rollouts, "tokens": int(self.tokens),
            "problem_set": problem_set, "samples": samples, **scores,
        }  # fmt: skip


def lengths(run: Run, *names: str) -> list[float]:
    """Mean response length at each row: the last one logged, or the first where none was logged before; 0 without any.

    Raises:
        FrontierError: A value logged cannot be a length.
    """
    logged = [next((metrics[name] for name in names if name in metrics), None) for _, metrics in run.rows]
    odd = next((k for k, value in enumerate(logged) if value is not None and not 0 <= value < LONGEST_RESPONSE), None)
    if odd is not None:
        raise FrontierError(
            f"{run.name}: {names[0]} is {logged[odd]:g} at step {run.rows[odd][0]}, which is not a length"
        )
    last = next((value for value in logged if value is not None), 0.0)
    out = []
    for value in logged:
        last = last if value is None else value
        out.append(last)
    return out
