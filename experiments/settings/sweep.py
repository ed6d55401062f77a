"""The cells of a problem set: their grid, their learning rates, and the test of what is prescribed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, get_args

from isocompute.learner import RunConfig
from isocompute.learner.config import with_recipe
from isocompute.rollout.contract.settings import Count, Positive, Whole
from pydantic import Discriminator, Tag, model_validator

from .strict import Grid, Settings

Scaling = Literal["constant", "linear", "sqrt"]


class Trained(Settings):
    """Cells that are trained for one purpose: a search, the sweep, a test."""

    rollouts: Count
    """Budget of a cell (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations: a multiple of every batch, and a divisor of ``rollouts``, so that the end is
    evaluated; the same for every budget, since runs are extended."""
    seeds: Grid[int]
    """Seeds of each (n, B_p); a search, the sweep and a test have different ones, since what selects never measures."""

    def run(self, n: int, problems_per_batch: int, seed: int) -> RunConfig:
        """The learner's settings of a cell, but for the name of its run."""
        return RunConfig(
            rollouts_per_problem=n,
            problems_per_batch=problems_per_batch,
            seed=seed,
            evaluate_every=self.evaluate_every,
        )

    def check_budget(self, pairs: Iterable[tuple[int, int]], where: str = "") -> None:
        """Refuse a budget in which no step could be taken, or whose evaluations fall between two steps.

        Args:
            pairs: Every (n, B_p).
            where: Dotted path of these settings with its last dot.
        """
        for batch in (n * size for n, size in pairs):
            if batch > self.rollouts:
                raise ValueError(f"{where}rollouts is {self.rollouts}; one step takes {batch}: no step could be taken")
            if self.evaluate_every % batch or self.rollouts % self.evaluate_every:
                raise ValueError(
                    f"{where}evaluate_every is {self.evaluate_every}; it must be a multiple of every batch ({batch}) "
                    f"and divide rollouts ({self.rollouts})"
                )


class Searched(Trained):
    """Settings of every search: the rates tried, scored by the evaluations in the last quarter of the budget."""

    learning_rates: Grid[Positive]
    """Learning rates tried, one cell for each and each seed."""
    extensions: Whole = 1
    """Most further steps of the grid where its best rate lies at the edge."""


class AnchoredRate(Searched):
    """One search at one batch, and a rule for the others (IsoCompute Playbook, section 3, Factor 3)."""

    rule: Scaling
    """Scaling of the rate with the batch B = B_p · n: constant, with B, or with √B."""
    rollouts_per_problem: Count
    """Rollouts per problem (group size), n, of the search."""
    problems_per_batch: Count
    """Problems per batch, B_p, of the search."""


class DeclaredRate(Settings):
    """A rate that is known, so that nothing is searched, and a rule for every batch."""

    rule: Scaling
    """Scaling of the rate with the batch B = B_p · n: constant, with B, or with √B."""
    learning_rate: Positive
    """Learning rate at the batch ``batch_rollouts``."""
    batch_rollouts: Count = 1024
    """The batch B (rollouts) at which that is the rate; without effect for ``constant``. The default is that of the
    IsoCompute Playbook, η = 1e-6 · √(B / 1,024) (section 3, Factor 3)."""


class TunedRate(Searched):
    """A search at every (n, B_p)."""

    rule: Literal["tuned"]
    """Every (n, B_p) has the rate that its own search finds."""
    rollouts_per_problem: Grid[Count] | None = None
    """The n that are searched; null: every n of the sweep. Between them the rate is interpolated in log n."""


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
    Discriminator(
        kind_of,
        custom_error_type="learning_rate_kind",
        custom_error_message="it must have a rule (constant, linear, sqrt or tuned), and either learning_rate, which "
        "declares a rate, or learning_rates, which are searched",
    ),
]


class SweepConfig(Trained):
    """The cells of one problem set: every n × B_p × seed, each with a budget of ``rollouts``."""

    rollouts_per_problem: Grid[Count]
    """Group sizes (rollouts per problem), every n."""
    problems_per_batch: Grid[Count]
    """Problems per batch, every B_p."""
    evaluations_per_octave: Count | None = None
    """Points an octave of a grid of evaluations that is spaced by the logarithm: with 2 and ``evaluate_every: 512``
    there is one at 512, 1,024, 1,536, 2,048, 3,072, 4,096, 6,144, … rollouts; null: at every multiple."""
    warmup_rollouts: Count | None = None
    """Rollouts over which the learning rate rises, the same for every n: a cell's ``warmup_steps`` is this over its B,
    rounded, and at least 1; null: ``optimizer.warmup_steps``, the same in steps."""
    learner: Mapping[str, Any]
    """Settings of the learner as they are written, since what is given must be told from what is not; see
    ``learner_config``."""
    learning_rate: LearningRate
    """Search for the learning rate of the cells, or its declaration."""
    rate_factors: Grid[Positive] = (1.0,)
    """Factors on that rate: every (n, B_p) is trained at each, and the best is found with n."""
    max_batch_rollouts: int | None = None
    """B_max (rollouts): pairs with B_p · n above it are left out; null keeps all."""

    def run(self, n: int, problems_per_batch: int, seed: int) -> RunConfig:
        """The learner's settings of a cell, on the grid of evaluations of the sweep."""
        return replace(super().run(n, problems_per_batch, seed), evaluations_per_octave=self.evaluations_per_octave)

    def grid(self) -> list[tuple[int, int]]:
        """Every (n, B_p) with B_p · n at most B_max, by n, then B_p."""
        return self.within_largest_batch(self.rollouts_per_problem)

    def within_largest_batch(self, group_sizes: Iterable[int]) -> list[tuple[int, int]]:
        """Every (n, B_p) of some n with B_p · n at most B_max, by n, then B_p."""
        most = self.max_batch_rollouts
        return [(n, size) for n in group_sizes for size in self.problems_per_batch if most is None or n * size <= most]

    @property
    def search(self) -> AnchoredRate | TunedRate | None:
        """The search for learning rates; None where the rate is declared, so that there are no pilots."""
        return None if isinstance(self.learning_rate, DeclaredRate) else self.learning_rate

    def searched(self) -> list[tuple[int, int]]:
        """Every (n, B_p) at which learning rates are tried."""
        search = self.search
        if search is None:
            return []
        if isinstance(search, AnchoredRate):
            return [(search.rollouts_per_problem, search.problems_per_batch)]
        return self.within_largest_batch(search.rollouts_per_problem or self.rollouts_per_problem)

    def selecting_seeds(self) -> set[int]:
        """Seeds of the sweep and of its search, which choose what is prescribed."""
        return {*self.seeds, *(self.search.seeds if self.search else ())}

    @model_validator(mode="after")
    def _budgets_are_whole(self) -> Self:
        pairs, most = self.grid(), self.max_batch_rollouts
        if not pairs:
            raise ValueError(f"max_batch_rollouts is {most}; no pair has B_p · n of that or less")
        self.check_budget(pairs)
        if not self.run(*pairs[0], seed=0).evaluated_at(self.rollouts):
            raise ValueError(
                f"rollouts is {self.rollouts}, no point of the grid of evaluations with {self.evaluations_per_octave} "
                f"an octave of {self.evaluate_every}: the end would not be evaluated"
            )
        if self.search:
            if not self.searched():
                raise ValueError(f"learning_rate.rollouts_per_problem holds no n with B_p · n of {most} or less")
            self.search.check_budget(self.searched(), "learning_rate.")
        return self

    @model_validator(mode="after")
    def _what_selects_never_measures(self) -> Self:
        # Responses that chose the learning rate must not measure it.
        used = sorted(set(self.search.seeds if self.search else ()) & set(self.seeds))
        if used:
            raise ValueError(
                f"learning_rate.seeds holds {used[0]}, which is also a seed of the sweep; a search needs seeds of its "
                "own"
            )
        return self

    @model_validator(mode="after")
    def _warm_up_is_given_once(self) -> Self:
        optimizer = with_recipe(self.learner).get("optimizer")
        if self.warmup_rollouts is not None and isinstance(optimizer, Mapping) and "warmup_steps" in optimizer:
            raise ValueError(
                f"warmup_rollouts is {self.warmup_rollouts}, and learner.optimizer.warmup_steps is given: leave one out"
            )
        return self


class PrescribeConfig(Trained):
    """The test of the prescription at the budget of the sweep or more: what is decided for it, beside fixed n."""

    baselines: Grid[Count]
    """Every n of the sweep that the prescribed one is compared with, at the best rate and B_p of each."""

    @model_validator(mode="after")
    def _an_interval_can_be_given(self) -> Self:
        if len(self.seeds) == 1:
            raise ValueError(
                f"seeds is {list(self.seeds)}; one seed gives no interval: give two or more, or leave the test out"
            )
        return self
