"""Settings of the learning rate: how a sweep finds the one that each of its cells has, or that it is declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from .strict import Count, Grid, Rate, Settings

Scaling = Literal["constant", "linear", "sqrt"]


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

    rule: Scaling
    """How the rate grows with the batch B = B_p · n: not at all, with B, or with √B."""
    rollouts_per_problem: Count
    """Rollouts per problem (group size), n, of the search."""
    problems_per_batch: Count
    """Problems per batch, B_p, of the search."""


class DeclaredRate(Settings):
    """A rate that is known, so that nothing is searched, and a rule for every batch."""

    rule: Scaling
    """How the rate grows with the batch B = B_p · n: not at all, with B, or with √B."""
    learning_rate: Rate
    """Learning rate at the batch ``batch_rollouts``."""
    batch_rollouts: Count = 1024
    """The batch B (rollouts) at which that is the rate; without effect for ``constant``. The default is that of the
    IsoCompute Playbook, η = 1e-6 · √(B / 1,024) (section 3, Factor 3)."""


class TunedRate(_Pilot):
    """A search at every (n, B_p)."""

    rule: Literal["tuned"]
    """Every (n, B_p) has the rate that its own search finds."""
    rollouts_per_problem: Grid[Count] | None = None
    """The n that are searched; null: every n of the sweep. Between them the rate is interpolated in log n."""


BOTH = "has both learning_rate, which declares a rate, and learning_rates, which are searched: leave one out"
"""What is wrong with settings that have a rule, and of which ``kind_of`` cannot tell the class."""


def kind_of(value: Any) -> str | None:
    """Name of the class that a learning rate's settings are of; None where their rule or their keys do not tell."""
    if not isinstance(value, Mapping):
        return type(value).__name__
    if {"learning_rate", "learning_rates"} <= set(value):
        return None
    if value.get("rule") == "tuned":
        return TunedRate.__name__
    if value.get("rule") not in get_args(Scaling):
        return None
    return (DeclaredRate if "learning_rate" in value else AnchoredRate).__name__


LearningRate = Annotated[
    Annotated[AnchoredRate, Tag(AnchoredRate.__name__)]
    | Annotated[DeclaredRate, Tag(DeclaredRate.__name__)]
    | Annotated[TunedRate, Tag(TunedRate.__name__)],
    Discriminator(kind_of),
]
