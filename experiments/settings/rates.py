"""Settings of the learning rate: how a sweep finds the one that each of its cells has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .strict import Count, Grid, GroupSize, Rate, Settings


class _Pilot(Settings):
    """What every search has: the rates tried, and how long each is trained."""

    learning_rates: Grid[Rate]
    """Learning rates tried, one cell for each and each seed."""
    rollouts: Count
    """Budget of a cell of the search (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations; divides ``rollouts``, so that the end is evaluated. Those in the last quarter are
    scored."""
    seeds: Grid[int]
    """Seeds of each rate, which no measured cell uses."""
    extensions: Annotated[int, Field(ge=0)] = 1
    """How often the rates go on by one step of their grid where the best one lies at its edge."""


class AnchoredRate(_Pilot):
    """One search at one batch, and a rule for the others (IsoCompute Playbook, section 3, Factor 3)."""

    rule: Literal["constant", "linear", "sqrt"]
    """How the rate grows with the batch B = B_p · n: not at all, with B, or with √B."""
    rollouts_per_problem: GroupSize
    """Rollouts per problem (group size), n, of the search."""
    problems_per_batch: Count
    """Problems per batch, B_p, of the search."""


class TunedRate(_Pilot):
    """A search at every (n, B_p)."""

    rule: Literal["tuned"]
    """Every (n, B_p) has the rate that its own search finds."""
    rollouts_per_problem: Grid[GroupSize] | None = None
    """The n that are searched; null: every n of the sweep. Between them the rate is interpolated in log n."""


LearningRate = Annotated[AnchoredRate | TunedRate, Field(discriminator="rule")]
