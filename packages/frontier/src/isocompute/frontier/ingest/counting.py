"""Cumulative counts from what was logged of each step."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FrontierError
from .run import Run

MOST = 2**53
"""Counts beyond are no counts: a float holds whole numbers up to here."""
LONGEST = 2**40


@dataclass(slots=True, kw_only=True)
class Tally:
    """Rollouts and response tokens of a run, step by step.

    Attributes:
        where: The run, for messages.
        each: Rollouts of a step whose count is not logged, where that is known.
        unless: Why it is not known otherwise, and what a log would have to hold.
        step: Last step counted.
        rollouts: Generated up to and including it.
        tokens: Response tokens of these rollouts.
    """

    where: str
    each: int | None
    unless: str
    step: int = 0
    rollouts: int = 0
    tokens: float = 0.0

    def advance(self, step: int, own: int | None, length: float) -> None:
        """Count all steps up to one.

        Args:
            step: The step; nothing happens where it is counted already.
            own: Rollouts that it generated, where its log says so.
            length: Mean tokens of the responses.

        Raises:
            FrontierError: What a step generated is not known, or cannot be.
        """
        if step <= self.step:
            return
        if own is not None and not 0 <= own < MOST:
            raise FrontierError(f"{self.where}: step {step} is logged with {own:g} rollouts, which cannot be")
        missing = step - self.step - (own is not None)
        if missing and self.each is None:
            raise FrontierError(
                f"{self.where}: how many rollouts step {self.step + 1} generated is not known: {self.unless}; log or "
                "export it, or give --set rollouts_per_step=NUMBER for such steps"
            )
        new = missing * (self.each or 0) + (own or 0)
        self.step = step
        self.rollouts += new
        self.tokens += new * length


def lengths(run: Run, *names: str) -> list[float]:
    """Mean response length at each row: the last one logged, before the first log the first one; 0 where none is.

    Raises:
        FrontierError: What is logged is no length.
    """
    logged = [next((metrics[name] for name in names if name in metrics), None) for _, metrics in run.rows]
    odd = next((k for k, value in enumerate(logged) if value is not None and not 0 <= value < LONGEST), None)
    if odd is not None:
        raise FrontierError(f"{run.name}: {names[0]} is {logged[odd]:g} at step {run.rows[odd][0]}, which is no length")
    last = next((value for value in logged if value is not None), 0.0)
    out = []
    for value in logged:
        last = last if value is None else value
        out.append(last)
    return out
