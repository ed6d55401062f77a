"""The panel's grid: which units there are, and what each runs (plan.md says why); the frozen commit makes its cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError

from ..errors import ExperimentError
from ..settings.strict import Count, Grid, Rate, Settings

PANEL = Path(__file__).with_name("panel.yaml")
ROOT = Path(__file__).parents[2]


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
