"""Settings of the cells: their learning rates, the sweep, and the test of what was prescribed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from .learner import LearnerSettings, objective_of
from .strict import Count, Grid, Rate, SettingError, Settings, check_budget

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


class SweepConfig(Settings):
    """The cells of one problem set: every n × B_p × seed, each with a budget of ``rollouts``."""

    rollouts_per_problem: Grid[Count]
    """Group sizes (rollouts per problem), every n."""
    problems_per_batch: Grid[Count]
    """Problems per batch, every B_p."""
    seeds: Grid[int]
    """Seeds of each (n, B_p)."""
    rollouts: Count
    """Budget of a cell, C (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations; the same for every budget, since runs are extended."""
    evaluations_per_octave: Annotated[int, Field(ge=1)] | None = None
    """Points an octave of a grid of evaluations that is spaced by the logarithm: with 2 and ``evaluate_every: 512``
    there is one at 512, 1,024, 1,536, 2,048, 3,072, 4,096, 6,144, … rollouts; null: at every multiple."""
    warmup_rollouts: Annotated[int, Field(ge=1)] | None = None
    """Rollouts over which the learning rate rises, the same for every n: a cell's ``warmup_steps`` is this over its B,
    rounded, and at least 1; null: ``optimizer.warmup_steps``, the same in steps."""
    learner: Annotated[Mapping[str, Any], LearnerSettings()]
    """Settings of the learner, without the learning rate."""
    learning_rate: LearningRate
    """How the learning rate of the cells is found, or that it is declared."""
    rate_factors: Grid[Rate] = (1.0,)
    """Factors on that rate: every (n, B_p) is trained at each, and the best is found with n."""
    max_batch_rollouts: int | None = None
    """B_max (rollouts): pairs with B_p · n above it are left out; null keeps all."""

    def grid(self) -> list[tuple[int, int]]:
        """Every (n, B_p) with B_p · n at most B_max, by n, then B_p."""
        return self.within_largest_batch(self.rollouts_per_problem)

    def within_largest_batch(self, group_sizes: Iterable[int]) -> list[tuple[int, int]]:
        """Every (n, B_p) of some n with B_p · n at most B_max, by n, then B_p."""
        most = self.max_batch_rollouts
        return [(n, size) for n in group_sizes for size in self.problems_per_batch if most is None or n * size <= most]

    @property
    def search(self) -> AnchoredRate | TunedRate | None:
        """How learning rates are searched; None where the rate is declared, so that there are no pilots."""
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
    def _a_pair_is_left(self) -> Self:
        if not self.grid():
            raise SettingError(
                "max_batch_rollouts", f"is {self.max_batch_rollouts}; no pair has B_p · n of that or less"
            )
        return self

    @model_validator(mode="after")
    def _budget_is_whole(self) -> Self:
        check_budget(self.rollouts, self.evaluate_every, [n * size for n, size in self.grid()])
        if self.search:
            batches = [n * size for n, size in self.searched()]
            if not batches:
                raise SettingError(
                    "learning_rate.rollouts_per_problem",
                    f"holds no n with B_p · n of {self.max_batch_rollouts} or less",
                )
            check_budget(self.search.rollouts, self.search.evaluate_every, batches, where="learning_rate.")
        return self

    @model_validator(mode="after")
    def _warm_up_is_given_once(self) -> Self:
        if self.warmup_rollouts is not None and "warmup_steps" in self.learner.get("optimizer", {}):
            raise SettingError(
                "warmup_rollouts",
                f"is {self.warmup_rollouts}, and learner.optimizer.warmup_steps is given: leave one out",
            )
        return self

    @model_validator(mode="after")
    def _what_selects_never_measures(self) -> Self:
        # Responses that chose the learning rate must not measure it.
        used = sorted(set(self.search.seeds if self.search else ()) & set(self.seeds))
        if used:
            raise SettingError(
                "learning_rate.seeds",
                f"holds {used[0]}, which is also a seed of the sweep; a search needs seeds of its own",
            )
        return self

    @model_validator(mode="after")
    def _groups_suit_the_learner(self) -> Self:
        # The least n shows whether the learner can make advantages of all.
        least = min(n for n, _ in [*self.grid(), *self.searched()])
        objective = objective_of(self.learner)
        if least == 1 and objective.baseline == "group":
            raise SettingError(
                "rollouts_per_problem",
                f"holds 1; a group baseline needs 2 or more responses ({objective.algorithm}; ppo has none)",
            )
        trained = self.learner.get("batch", {}).get("trained_rollouts")
        if trained is not None and trained > least:
            raise SettingError(
                "learner.batch.trained_rollouts",
                f"is {trained}; it must be at most every n, and rollouts_per_problem holds {least}",
            )
        return self


class PrescribeConfig(Settings):
    """The budget at which the prescription is tested: what is decided for it, beside fixed n."""

    rollouts: Count
    """Budget of a cell (rollouts), that of the sweep or more; as far as the sweep says what to decide."""
    baselines: Grid[Count]
    """Every n of the sweep that the prescribed one is compared with, at the best rate and B_p of each."""
    seeds: Grid[int]
    """Seeds of each n, two or more."""
    evaluate_every: Count
    """Rollouts between evaluations; divides ``rollouts``."""

    @model_validator(mode="after")
    def _an_interval_can_be_given(self) -> Self:
        if len(self.seeds) == 1:
            raise SettingError(
                "seeds", f"is {list(self.seeds)}; one seed gives no interval: give two or more, or leave the test out"
            )
        return self
