"""The panel's units, and what their runs share; the frozen commit trained the cells (plan.md says which and why)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isocompute.rollout.contract.documents import parsed

from ...errors import ExperimentError

PANEL = Path(__file__).with_name("panel.yaml")
ROOT = Path(__file__).parents[3]
STUDY = parsed(PANEL.read_text("utf-8"))["study"]
"""Runs of every unit beside the grid of its preset's sweep."""
RATE_FACTORS = tuple(sorted(STUDY["rate_factors"]))
"""Factors on the rate that the ladder and the √B rule give a cell."""
EARLY = min(STUDY["branches"]["at"])
"""C_max/8 (rollouts), where the first decay branches end."""


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


UNITS = tuple(
    Unit(task=task, problem_set=name, base_seed=seed)
    for seed in STUDY["base_seeds"]
    for task, sets in STUDY["tasks"].items()
    for name in sets
)
"""All settings with one base model before those with the next."""


def unit_of(name: str) -> Unit:
    """The unit of that name.

    Raises:
        ExperimentError: There is none.
    """
    known = {unit.name: unit for unit in UNITS}
    if name not in known:
        raise ExperimentError(f"the panel has no unit {name!r}; it has {', '.join(known)}")
    return known[name]
