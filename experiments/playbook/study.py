"""The panel's grid: which units there are, and the cells of each (plan.md says why these)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError

from ..errors import ExperimentError
from ..rates.rule import Rates
from ..running.cells import Cell, TrainingRates, decay_begins
from ..running.design import Design
from ..settings.strict import Count, Grid, Rate, Settings

PANEL = Path(__file__).with_name("panel.yaml")
SELECTED_BY = 2
"""Evaluations of a trunk before a branch begins whose mean selects its learning rate."""


class Branches(Settings):
    """Decay branches of the constant trunks."""

    at: Grid[Count]
    """Budgets (rollouts) at which a branch ends."""
    share: Annotated[float, Field(gt=0, lt=1)]
    """Share of that budget over which its rate decays to 0."""


class MeasuredTraining(Settings):
    """Pass rates of the training problems."""

    at: Grid[Count]
    """Nominal rollouts at which they are measured."""
    samples: Count
    """Responses per training problem."""


class EqualBatches(Settings):
    """Cells whose B = B_p · n is that of another n: does only B count."""

    rollouts_per_problem: Count
    """Their n."""
    problems_per_batch: Grid[Count]
    """Every B_p; each B must be that of a trunk, whose rate it takes."""
    units: Grid[str]
    """Units that have them."""


class FurtherSeeds(Settings):
    """Cells trained again with other seeds, at the best rate."""

    seeds: Grid[int]
    """Their seeds."""
    units: Grid[str]
    """Units that have them."""


class Study(Settings):
    """What every unit of the panel runs, beside the grid of its preset's sweep."""

    tasks: Mapping[str, tuple[str, ...]]
    """Problem sets of each preset of panel.yaml, which share a base model."""
    base_seeds: Grid[int]
    """Seeds of the base models."""
    rate_factors: Grid[Rate]
    """Factors on the rate that the ladder and the √B rule give a cell."""
    branches: Branches
    training_rates: MeasuredTraining
    equal_batches: EqualBatches
    further_seeds: FurtherSeeds

    def units(self) -> list[Unit]:
        """Every unit, in the order in which they run: all settings with one base model before the next."""
        return [
            Unit(task=task, problem_set=name, base_seed=seed)
            for seed in self.base_seeds
            for task, sets in self.tasks.items()
            for name in sets
        ]

    def unit(self, name: str) -> Unit:
        """The unit of that name."""
        known = {unit.name: unit for unit in self.units()}
        if name not in known:
            raise ExperimentError(f"the panel has no unit {name!r}; it has {', '.join(known)}")
        return known[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A setting with a base model: what the panel generalises over.

    Attributes:
        task: The preset of panel.yaml.
        problem_set: The problem set, which names the setting.
    """

    task: str
    problem_set: str
    base_seed: int

    @property
    def name(self) -> str:
        """Such as ``hard-0``."""
        return f"{self.problem_set}-{self.base_seed}"


def load() -> Study:
    """The study in panel.yaml."""
    try:
        # As JSON, whose lists are the tuples of a strict model.
        return Study.model_validate_json(json.dumps(yaml.safe_load(PANEL.read_text())["study"]))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ExperimentError(f"{PANEL.name}: study.{where}: {first['msg']}") from None


def trunks(study: Study, design: Design, rates: Rates) -> list[Cell]:
    """Constant rates: every n × rate factor, the cheapest n first."""
    sweep = design.sweep
    grid = sorted(sweep.grid(), reverse=True)
    return [
        _trunk(study, design, n, size, seed=sweep.seeds[0], learning_rate=rates.at(n, size) * factor)
        for n, size in grid
        for factor in study.rate_factors
    ]


def _trunk(study: Study, design: Design, n: int, problems_per_batch: int, *, seed: int, learning_rate: float) -> Cell:
    cell = design.cell(
        "sweep", n=n, problems_per_batch=problems_per_batch, seed=seed, rollouts=design.sweep.rollouts,
        evaluate_every=design.sweep.evaluate_every, learning_rate=float(f"{learning_rate:.12g}"),
    )  # fmt: skip
    measured = study.training_rates
    kept = {decay_begins(end // cell.batch_rollouts, share=study.branches.share) for end in study.branches.at}
    return replace(
        cell,
        training_rates=TrainingRates(at=measured.at, samples=measured.samples),
        branches_at=tuple(sorted(kept)),
    )


def branches(study: Study, cells: Sequence[Cell], scores: Mapping[str, Mapping[int, float]]) -> list[Cell]:
    """For each n and each end the branch of the trunk that was best when it begins.

    What selects is measured before the branch begins; the branch's own evaluations come after it.

    Args:
        scores: Score of each evaluation of each trunk, by run id and cumulative rollouts.
    """
    return [
        best(own, scores, before=_begins(own[0], end, study)).branch(end, share=study.branches.share)
        for end in study.branches.at
        for own in _by_size(cells).values()
    ]


def _begins(cell: Cell, end: int, study: Study) -> int:
    steps = end // cell.batch_rollouts
    return decay_begins(steps, share=study.branches.share) * cell.batch_rollouts


def best(cells: Sequence[Cell], scores: Mapping[str, Mapping[int, float]], *, before: int) -> Cell:
    """The cell with the highest mean of its last evaluations up to some rollouts; of equal ones the lowest rate."""

    def score(cell: Cell) -> float:
        own = scores[cell.run_id]
        last = sorted(at for at in own if at <= before)[-SELECTED_BY:]
        return sum(own[at] for at in last) / len(last)

    return max(cells, key=lambda cell: (score(cell), -cell.learner.learning_rate))


def _by_size(cells: Sequence[Cell]) -> dict[tuple[int, int], list[Cell]]:
    """Cells by (n, B_p), in their order."""
    found: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.rollouts_per_problem, cell.problems_per_batch), []).append(cell)
    return found


def extras(
    study: Study, unit: Unit, design: Design, cells: Sequence[Cell], scores: Mapping[str, Mapping[int, float]]
) -> list[Cell]:
    """Equal batches and further seeds of a unit, each at the rate that was best for the trunks of its B or n."""
    found, equal, more = [], study.equal_batches, study.further_seeds
    chosen = [best(own, scores, before=design.sweep.rollouts) for own in _by_size(cells).values()]
    if unit.name in equal.units:
        n = equal.rollouts_per_problem
        for size in equal.problems_per_batch:
            like = next(cell for cell in chosen if cell.batch_rollouts == n * size)
            rate = like.learner.learning_rate
            found.append(_trunk(study, design, n, size, seed=like.seed, learning_rate=rate))
    if unit.name in more.units:
        found += [replace(cell, seed=seed) for seed in more.seeds for cell in chosen]
    return found
