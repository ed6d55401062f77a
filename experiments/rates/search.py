"""The search at one (n, B_p): which learning rate is chosen, how sure that is, and where the grid goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from ..errors import ExperimentError
from .trials import NOISE, Tried


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
    def ties(self) -> tuple[float, ...]:
        """Stable rates whose score differs from the chosen one's by no more than two standard errors."""
        best = self.chosen
        return tuple(each.learning_rate for each in self.grid if each is not best and each.stable and _tied(each, best))

    @property
    def edge(self) -> str | None:
        """The end of the grid, ``lowest`` or ``highest``, that the chosen rate is; ``both``, or None inside.

        Beyond it a better rate may lie.
        """
        if len(self.grid) == 1:
            return "both"
        return {self.grid[0]: "lowest", self.grid[-1]: "highest"}.get(self.chosen)


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


def _best(grid: Iterable[Tried]) -> Tried | None:
    """The stable rate with the highest score, else the best that did not diverge; of equal ones the lowest."""
    there = [each for each in grid if each.score is not None and not each.diverged]
    stable = [each for each in there if each.stable]
    return max(stable or there, key=lambda each: (each.score, -each.learning_rate), default=None)


def _tied(one: Tried, best: Tried) -> bool:
    """Whether a rate may be as good as the best one."""
    if one.score is None or best.score is None:
        return False
    error = sqrt((one.standard_error or 0.0) ** 2 + (best.standard_error or 0.0) ** 2)
    return best.score - one.score <= NOISE * error


def _rounded(rate: float) -> float:
    """To twelve digits: a rate is part of a run's identity, and 0.001 is not to be 0.0010000000000000002."""
    return float(f"{rate:.12g}")
