"""The search for learning rates: the one chosen at each (n, B_p), where a grid goes on, and what is written of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ExperimentError
from .rule import Rates
from .trials import Evaluation, Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search at one (n, B_p) found.

    Attributes:
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        grid: Every rate tried, lowest first, from ``tried``.

    Raises:
        ExperimentError: Every rate diverged.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    grid: tuple[Tried, ...]

    def __post_init__(self) -> None:
        _ = self.chosen

    @property
    def chosen(self) -> Tried:
        """Of the rates that neither diverged nor collapsed in any seed the one with the highest score.

        Of equal scores it is the lowest rate; where every rate collapsed, the best of them.
        """
        best = _best(self.grid)
        if best is None:
            raise ExperimentError(
                f"every learning rate tried at n = {self.rollouts_per_problem}, B_p = {self.problems_per_batch} "
                f"diverged ({', '.join(f'{each.learning_rate:g}' for each in self.grid)}): give lower ones"
            )
        return best

    @property
    def edge(self) -> str | None:
        """The end of the grid, ``lowest`` or ``highest``, that the chosen rate is; ``both``, or None inside.

        Beyond it a better rate may lie.
        """
        if len(self.grid) == 1:
            return "both"
        return {self.grid[0]: "lowest", self.grid[-1]: "highest"}.get(self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The learning rates of a problem set, and how they were found.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        base: The base model's score, of responses that selected nothing.
        budget: Rollouts that one cell of the search was to be trained on.
        searches: What was found at every (n, B_p) searched.
    """

    rule: str
    metric: str
    base: Evaluation
    budget: int
    searches: tuple[Search, ...]

    def rates(self) -> Rates:
        """The learning rates that follow."""
        found = {(s.rollouts_per_problem, s.problems_per_batch): s.chosen.learning_rate for s in self.searches}
        return Rates(rule=self.rule, found=found)

    def document(self) -> dict[str, Any]:
        """As in ``pilot.json``."""
        return {**asdict(self), "searches": [_document(each) for each in self.searches]}


def extension(grid: Sequence[Tried]) -> float | None:
    """The next rate of a grid whose best rate lies at its edge: one more step of the same ratio.

    Where no rate is stable the grid goes on below its lowest rate.

    Args:
        grid: Every rate tried, lowest first.

    Returns:
        The rate, or None where the best one lies inside, or where the grid has one rate and so no step.
    """
    rates = [each.learning_rate for each in grid]
    if len(rates) < 2:
        return None
    best = _best(each for each in grid if each.stable)
    if best is None or best.learning_rate == rates[0]:
        return _rounded(rates[0] * (rates[0] / rates[1]))
    if best.learning_rate == rates[-1]:
        return _rounded(rates[-1] * (rates[-1] / rates[-2]))
    return None


def _document(found: Search) -> dict[str, Any]:
    chosen = found.chosen
    return {
        **asdict(found), "learning_rate": chosen.learning_rate, "score": chosen.score,
        "standard_error": chosen.standard_error, "stable": chosen.stable, "edge": found.edge,
    }  # fmt: skip


def _best(grid: Iterable[Tried]) -> Tried | None:
    """The stable rate with the highest score, else the best that did not diverge; of equal ones the lowest."""
    there = [each for each in grid if each.score is not None and not each.diverged]
    stable = [each for each in there if each.stable]
    return max(stable or there, key=lambda each: (each.score, -each.learning_rate), default=None)


def _rounded(rate: float) -> float:
    """To twelve digits: a rate is part of a run's identity, and 0.001 is not to be 0.0010000000000000002."""
    return float(f"{rate:.12g}")
