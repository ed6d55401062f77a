"""Counts of what was generated, and the cohorts that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add, sub
from typing import TYPE_CHECKING

from ..contract.errors import printable
from ..errors import BudgetError, check_whole_fields, shorten

if TYPE_CHECKING:
    import polars as pl

TRAINING_COHORTS = ("trained", "filtered", "stale", "unused", "failed")
"""A partition of the training rollouts by what became of them; their sum is charged to the budget."""

COHORTS = (*TRAINING_COHORTS, "eval", "pilot")
"""All cohorts; evaluations and pilots are counted apart and never charged to the training budget."""

TOKEN_COLUMNS = ("prompt_ids", "response_ids")
"""Columns of a ``rollouts`` table that hold lists of token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Rollouts and tokens that were generated. Counts add only to counts.

    A step of 8 problems with 4 rollouts each, prompts of 10 tokens and answers of 15::

        Counts(rollouts=32, prompt_tokens=320, response_tokens=480)

    Attributes:
        prompt_tokens: Prompt tokens, counted once per response.
    """

    rollouts: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0

    def __post_init__(self) -> None:
        check_whole_fields(self, "rollouts", "prompt_tokens", "response_tokens", least=0)

    def __add__(self, other: object) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        return unchecked_counts(*map(add, self.each, other.each))

    def __sub__(self, part: Counts) -> Counts:
        return unchecked_counts(*map(sub, self.each, part.each))

    def __bool__(self) -> bool:
        return any(self.each)

    @property
    def each(self) -> tuple[int, int, int]:
        """Rollouts, prompt tokens and response tokens."""
        return self.rollouts, self.prompt_tokens, self.response_tokens


def unchecked_counts(rollouts: int, prompt_tokens: int, response_tokens: int) -> Counts:
    """Counts that are sums of validated counts; they are not checked again and have no upper limit."""
    total = object.__new__(Counts)
    for name, number in zip(Counts.__slots__, (rollouts, prompt_tokens, response_tokens), strict=True):
        object.__setattr__(total, name, number)
    return total


def split(counts: Counts, shares: Sequence[int]) -> list[Counts]:
    """Split counts in proportion to shares, rounded so that the parts sum to the whole.

    Args:
        shares: One per part, each at least 1. Cumulative sums are rounded down, so the last part is never empty unless
            the count is 0.
    """
    taken = list(accumulate(shares))
    until = [unchecked_counts(*(count * so_far // taken[-1] for count in counts.each)) for so_far in taken]
    return [after - before for before, after in pairwise([Counts(), *until])]


def charged_counts(charged: Mapping[str, Counts] | pl.DataFrame) -> Mapping[str, Counts]:
    """Return a charge as counts by cohort; it is either that already, or a table as for ``counts_by_cohort``."""
    if not isinstance(charged, Mapping):
        return counts_by_cohort(charged)
    for unknown in (cohort for cohort in charged if cohort not in COHORTS):
        raise BudgetError(_no_cohort(unknown))
    return charged


def counts_by_cohort(rollouts: pl.DataFrame) -> dict[str, Counts]:
    """Count the rollouts and tokens of each cohort present, in the order of ``COHORTS``.

    Args:
        rollouts: One row per response: ``cohort`` (one of ``COHORTS``), ``prompt_ids`` and ``response_ids`` (lists of
            token ids). Other columns are ignored.

    Raises:
        BudgetError: A column is missing or of the wrong type, a cohort is null or unknown, or a list is null.
    """
    # A run that charges plain counts does not need polars.
    import polars as pl

    if not isinstance(rollouts, pl.DataFrame):
        raise BudgetError(f"what is charged is {shorten(rollouts)}; it must be counts by cohort or a rollouts table")
    if rollouts.is_empty():
        return {}
    missing = [name for name in ("cohort", *TOKEN_COLUMNS) if name not in rollouts.columns]
    if missing:
        raise BudgetError(
            f"the rollouts lack the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
            f"(they have {', '.join(map(printable, rollouts.columns))})"
        )
    for name in TOKEN_COLUMNS:
        if not isinstance(rollouts[name].dtype, pl.List):
            raise BudgetError(f"the column {name} of the rollouts is {rollouts[name].dtype}, not lists of token ids")
    for name in ("cohort", *TOKEN_COLUMNS):
        for row in rollouts[name].is_null().arg_true()[:1]:
            raise BudgetError(f"row {row + 1} of the rollouts has no {name}")
    cohorts = rollouts["cohort"].cast(pl.String)
    for row in (~cohorts.is_in(COHORTS)).arg_true()[:1]:
        raise BudgetError(f"row {row + 1} of the rollouts: {_no_cohort(cohorts[row])}")
    # Lengths are unsigned 32-bit numbers, so their sum could overflow.
    lengths = [pl.col(name).list.len().cast(pl.Int64).sum() for name in TOKEN_COLUMNS]
    sums = {cohort: counted for cohort, *counted in rollouts.group_by(cohorts).agg(pl.len(), *lengths).iter_rows()}
    return {cohort: unchecked_counts(*sums[cohort]) for cohort in COHORTS if cohort in sums}


def _no_cohort(name: str) -> str:
    return f"{name!r} is not a cohort; the cohorts are {', '.join(COHORTS)}"
