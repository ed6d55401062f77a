"""Settings of the cells: the pilot, the sweep, and the test of what was prescribed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from isocompute.learner import LearnerConfig
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from .strict import Count, Distinct, Grid, GroupSize, Rate, SettingError, Settings


class PilotConfig(Settings):
    """The search for the learning-rate anchor, at one batch (IsoCompute Playbook, section 3, Factor 3)."""

    learning_rates: Grid[Rate]
    """Learning rates tried, one cell each."""
    rollouts_per_problem: GroupSize
    """Rollouts per problem (group size), n, of its cells."""
    problems_per_batch: Count
    """Problems per batch, B_p, of its cells."""
    rollouts: Count
    """Budget of each cell (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations; divides ``rollouts``, so that the end is evaluated."""
    seed: int
    """A seed that no measured cell uses."""

    @model_validator(mode="after")
    def _budget_is_whole(self) -> Self:
        check_budget(self.rollouts, self.evaluate_every, [self.rollouts_per_problem * self.problems_per_batch])
        return self


class LearnerSettings:
    """Marks the settings of the learner that a sweep gives: those of ``LearnerConfig`` but two, all optional.

    They are checked as a ``LearnerConfig`` is, and kept as they were given: what is left out is the learner's default.
    """

    ELSEWHERE: Mapping[str, str] = {
        "learning_rate": "the pilot finds it; see pilot.learning_rates",
        "temperature": "it is the sampler's; see sampling.temperature",
    }
    """Settings of the learner that a sweep does not give, and where they come from."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A mapping whose values a ``LearnerConfig`` takes."""
        return core_schema.no_info_wrap_validator_function(self._checked, handler.generate_schema(LearnerConfig))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema of ``LearnerConfig`` without what is given elsewhere."""
        shown = dict(handler.resolve_ref_schema(handler(schema)))
        shown["properties"] = {k: v for k, v in shown["properties"].items() if k not in self.ELSEWHERE}
        del shown["required"]
        return shown

    def _checked(self, given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(given, Mapping):
            return validate(given)
        for name, advice in self.ELSEWHERE.items():
            if name in given:
                raise SettingError("", f"has no setting {name!r}: {advice}")
        # A cell has a learning rate and a horizon of its own; any that pass will do here.
        horizon = {} if given.get("decay", "constant") == "constant" else {"decay_steps": 2**31}
        validate({"learning_rate": 1.0, **horizon, **given})
        return dict(given)


class SweepConfig(Settings):
    """The cells of one problem set: every n × B_p × seed, each with a budget of ``rollouts``."""

    rollouts_per_problem: Grid[GroupSize]
    """Group sizes (rollouts per problem), every n."""
    problems_per_batch: Grid[Count]
    """Problems per batch, every B_p."""
    seeds: Grid[int]
    """Seeds of each (n, B_p)."""
    rollouts: Count
    """Budget of a cell, C (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations; the same for every budget, since runs are extended."""
    learner: Annotated[Mapping[str, Any], LearnerSettings()]
    """Settings of the learner, without the learning rate."""
    pilot: PilotConfig
    """The search for the learning rate."""
    max_batch_rollouts: int | None = None
    """B_max (rollouts): pairs with B_p · n above it are left out; null keeps all."""

    def grid(self) -> list[tuple[int, int]]:
        """Every (n, B_p) with B_p · n at most B_max, by n, then B_p."""
        return self.within_largest_batch(self.rollouts_per_problem)

    def within_largest_batch(self, group_sizes: Iterable[int]) -> list[tuple[int, int]]:
        """Every (n, B_p) of some n with B_p · n at most B_max, by n, then B_p."""
        most = self.max_batch_rollouts
        return [(n, size) for n in group_sizes for size in self.problems_per_batch if most is None or n * size <= most]

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
        return self

    @model_validator(mode="after")
    def _what_selects_never_measures(self) -> Self:
        # Responses that chose the learning rate must not measure it.
        if self.pilot.seed in self.seeds:
            raise SettingError(
                "pilot.seed",
                f"is {self.pilot.seed}, which is also a seed of the sweep; the pilot needs a seed of its own",
            )
        return self


class PrescribeConfig(Settings):
    """The larger budget at which the prescription is tested."""

    rollouts: Count
    """Budget of a cell (rollouts); above that of the sweep."""
    baselines: Distinct[GroupSize]
    """Every fixed n that the prescribed one is compared with."""
    seeds: Distinct[int]
    """Seeds of each n, two or more; none: the prescription is written and not tested."""
    evaluate_every: Count
    """Rollouts between evaluations; divides ``rollouts``."""

    @model_validator(mode="after")
    def _an_interval_can_be_given(self) -> Self:
        if len(self.seeds) == 1:
            raise SettingError(
                "seeds", f"is {list(self.seeds)}; one seed gives no interval: give two or more, or none to test nothing"
            )
        return self


def check_budget(rollouts: int, evaluate_every: int, batches: Iterable[int], *, where: str = "") -> None:
    """Refuse a budget in which no step could be taken, or whose evaluations fall between two steps.

    Args:
        rollouts: The budget of a cell.
        evaluate_every: Rollouts between its evaluations.
        batches: Rollouts of one step, B = B_p · n, of every cell.
        where: Dotted path of the settings with its last dot, in front of the names ``rollouts`` and
            ``evaluate_every``.

    Raises:
        SettingError: A batch does not fit.
    """
    for batch in batches:
        if batch > rollouts:
            raise SettingError(f"{where}rollouts", f"is {rollouts}; one step takes {batch}: no step could be taken")
        if evaluate_every % batch or rollouts % evaluate_every:
            raise SettingError(
                f"{where}evaluate_every",
                f"is {evaluate_every}; it must be a multiple of every batch ({batch}) and divide rollouts ({rollouts})",
            )
