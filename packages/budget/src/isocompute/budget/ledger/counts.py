"""Counts of what was generated, the cohorts that they fall into, and the limits that admit or refuse a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..checks import finite, shorten, whole
from ..contract.errors import printable
from ..errors import BudgetError

if TYPE_CHECKING:
    import polars as pl

TRAINING_COHORTS = ("trained", "filtered", "stale", "failed")
"""A partition of the rollouts generated for training, by what became of them; the budget is charged with its sum."""

COHORTS = (*TRAINING_COHORTS, "eval", "pilot")
"""All cohorts; evaluations and pilots are counted apart and never charged to the training budget."""

TOKEN_COLUMNS = ("prompt_ids", "response_ids")
"""Columns of a ``rollouts`` table that hold lists of token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Rollouts and tokens that were generated. Counts add up with each other and with nothing else.

    A step of 8 problems with 4 rollouts each, prompts of 10 tokens and answers of 15::

        Counts(rollouts=32, prompt_tokens=320, response_tokens=480)

    Attributes:
        rollouts: Responses generated.
        prompt_tokens: Prompt tokens, counted once per response.
        response_tokens: Response tokens generated.

    Raises:
        BudgetError: A count is negative or not a whole number.
    """

    rollouts: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("rollouts", "prompt_tokens", "response_tokens"):
            object.__setattr__(self, name, whole(getattr(self, name), name, least=0))

    def __add__(self, other: object) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        return unchecked_counts(
            self.rollouts + other.rollouts,
            self.prompt_tokens + other.prompt_tokens,
            self.response_tokens + other.response_tokens,
        )

    def __bool__(self) -> bool:
        return bool(self.rollouts or self.prompt_tokens or self.response_tokens)


def unchecked_counts(rollouts: int, prompt_tokens: int, response_tokens: int) -> Counts:
    """Counts that are sums of counts: validated when those were made, and without an upper limit."""
    total = object.__new__(Counts)
    put = object.__setattr__
    put(total, "rollouts", rollouts)
    put(total, "prompt_tokens", prompt_tokens)
    put(total, "response_tokens", response_tokens)
    return total


def split(counts: Counts, shares: Sequence[int]) -> list[Counts]:
    """Split counts in proportion to some shares, rounded so that the parts sum to the whole.

    Args:
        shares: Of each part, at least 1. Sums of the first parts are rounded down, so that the last part is never
            empty where a count is not 0.
    """
    total, before, taken = sum(shares), Counts(), 0
    parts = []
    for share in shares:
        taken += share
        until = unchecked_counts(
            counts.rollouts * taken // total,
            counts.prompt_tokens * taken // total,
            counts.response_tokens * taken // total,
        )
        parts.append(
            unchecked_counts(
                until.rollouts - before.rollouts,
                until.prompt_tokens - before.prompt_tokens,
                until.response_tokens - before.response_tokens,
            )
        )
        before = until
    return parts


def check_cohorts(counts: Mapping[str, Counts]) -> None:
    """Refuse counts under a name that is not a cohort's.

    Raises:
        BudgetError: There is no such cohort.
    """
    for cohort in counts:
        if cohort not in COHORTS:
            raise BudgetError(f"{cohort!r} is not a cohort; the cohorts are {', '.join(COHORTS)}")


def charged_counts(charged: Mapping[str, Counts] | pl.DataFrame) -> Mapping[str, Counts]:
    """Return a charge as counts by cohort.

    Args:
        charged: Counts by cohort, or a ``rollouts`` table as ``counts_by_cohort`` takes it.

    Raises:
        BudgetError: It is neither, there is no such cohort, or the table is not as ``counts_by_cohort`` wants it.
    """
    if isinstance(charged, Mapping):
        check_cohorts(charged)
        return charged
    # A caller with a polars table has loaded polars; a run that charges plain counts never needs it.
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(charged, polars.DataFrame):
        raise BudgetError(
            f"what is charged is {shorten(charged)}; it must be counts by cohort or a rollouts table, a polars "
            "DataFrame"
        )
    return counts_by_cohort(charged)


def counts_by_cohort(rollouts: pl.DataFrame) -> dict[str, Counts]:
    """Count the rollouts and the tokens of each cohort.

    Args:
        rollouts: One row per response: ``cohort`` (one of ``COHORTS``), ``prompt_ids`` and ``response_ids`` (lists of
            token ids). Other columns are ignored.

    Returns:
        Counts of the cohorts that occur, in the order of ``COHORTS``; none for a table without rows.

    Raises:
        BudgetError: A column is missing or of the wrong type, a cohort is null or unknown, or a list is null.
    """
    import polars as pl

    if rollouts.is_empty():
        return {}
    _check_rollouts(rollouts)
    # Lengths are unsigned 32-bit numbers, whose sum could overflow.
    lengths = [pl.col(name).list.len().cast(pl.Int64).sum() for name in TOKEN_COLUMNS]
    sums = rollouts.group_by(pl.col("cohort").cast(pl.String)).agg(pl.len(), *lengths)
    counts = {
        cohort: Counts(rollouts=rows, prompt_tokens=prompt, response_tokens=response)
        for cohort, rows, prompt, response in sums.iter_rows()
    }
    return {cohort: counts[cohort] for cohort in COHORTS if cohort in counts}


def _check_rollouts(rollouts: pl.DataFrame) -> None:
    """Check the columns that are counted.

    Raises:
        BudgetError: As in ``counts_by_cohort``.
    """
    import polars as pl

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
        if rollouts[name].null_count():
            row = rollouts[name].is_null().arg_true()[0]
            raise BudgetError(f"row {row + 1} of the rollouts has no {name}")
    cohorts = rollouts["cohort"].cast(pl.String)
    unknown = (~cohorts.is_in(COHORTS)).arg_true()
    if len(unknown):
        row = unknown[0]
        raise BudgetError(
            f"row {row + 1} of the rollouts: {cohorts[row]!r} is not a cohort; the cohorts are {', '.join(COHORTS)}"
        )


Counted = Literal["paid", "used"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The amounts that a run may use; None is no limit, and several limits may hold at once.

    Rollouts and tokens are held against what was generated for training, never against evaluations and pilots. Device
    time and money are held against everything that was paid, lost work and evaluations included: a bill has no cohorts.

    Attributes:
        counted: What the limits on rollouts and response tokens count. ``"paid"``: what all attempts generated, so that
            no number of restarts spends more. ``"used"``: what survives (C_used, the canonical ledger), for a run that
            must end with the same steps however often it was killed; what it pays for is then not limited.
        rollouts: A run stops before the step that would exceed it.
        response_tokens: A run stops after the step that reaches it, since a step's tokens are not known
            before they are generated.
        device_seconds: A run stops after the step that reaches it: seconds times devices held.
        money: A run stops after the step that reaches it; needs the price.
        price_per_device_hour: What an hour of a device costs, in the same currency.

    Raises:
        BudgetError: A limit is not above 0 or not whole where it must be, or money has no price.
    """

    rollouts: int | None = None
    response_tokens: int | None = None
    device_seconds: float | None = None
    money: float | None = None
    price_per_device_hour: float | None = None
    counted: Counted = "paid"

    def __post_init__(self) -> None:
        if self.counted not in get_args(Counted):
            raise BudgetError(f"the limits count {self.counted!r}; they count 'paid' or 'used'")
        for name in ("rollouts", "response_tokens"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(value, f"the limit on {name}", least=1))
        for name in ("device_seconds", "money", "price_per_device_hour"):
            value = getattr(self, name)
            if value is not None:
                said = name if name == "price_per_device_hour" else f"the limit on {name}"
                object.__setattr__(self, name, finite(value, said))
        if self.money is not None and self.price_per_device_hour is None:
            raise BudgetError("a limit on money needs price_per_device_hour, the price of an hour of a device")

    @classmethod
    def given(
        cls,
        *,
        rollouts: float | None = None,
        response_tokens: float | None = None,
        device_hours: float | None = None,
        money: float | None = None,
        price_per_device_hour: float | None = None,
        counted: Counted = "paid",
    ) -> Limits:
        """Limits as they are given to a trainer: hours of devices, whole numbers also as 1e6, and at least one limit.

        Raises:
            BudgetError: There is no limit, or one that makes no sense.
        """
        if all(limit is None for limit in (rollouts, response_tokens, device_hours, money)):
            raise BudgetError(
                "there is no limit to hold the run to; give rollouts, response_tokens, device_hours or money"
            )
        return cls(
            rollouts=_as_count(rollouts),
            response_tokens=_as_count(response_tokens),
            device_seconds=None if device_hours is None else finite(device_hours, "the limit on device_hours") * 3600,
            money=money,
            price_per_device_hour=price_per_device_hour,
            counted=counted,
        )

    def held_against(self, used: Counts, lost: Counts) -> Counts:
        """Return what the limits on rollouts and response tokens count.

        Args:
            used: The training cohorts of what survives.
            lost: The training cohorts of lost work.
        """
        return used + lost if self.counted == "paid" else used

    def cost(self, device_seconds: float) -> float:
        """Money for device time at the price; 0 without one."""
        return device_seconds / 3600 * (self.price_per_device_hour or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Permission to take a step, true when it may be taken; otherwise ``reason`` says why not."""

    admitted: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.admitted


ADMITTED = Admission(admitted=True)


def admission(
    limits: Limits, step: int, rollouts: int, *, used: Counts, lost: Counts, reserved: int, device_seconds: float
) -> Admission:
    """Admit or refuse a step.

    Args:
        rollouts: Rollouts that the step would generate for training; 0 in a step that goes on with what it has, which
            only device time and money can refuse.
        used: C_used before the step.
        lost: Generated for training and lost before the step.
        reserved: Rollouts that ranks have reserved and not charged yet.
        device_seconds: Device time paid for so far (GPU-seconds on GPUs).
    """
    reason = ""
    counted = limits.held_against(used, lost)
    taken = counted.rollouts + reserved
    # Where nothing was lost, what was used and what was paid for are one.
    with_lost = limits.counted == "paid" and bool(lost)
    if limits.rollouts is not None and rollouts and taken + rollouts > limits.rollouts:
        reason = (
            f"step {step} would take the run from {taken:,}{f' ({lost.rollouts:,} of them lost)' if with_lost else ''} "
            f"to {taken + rollouts:,} rollouts{' paid for' if with_lost else ''}, and the budget is {limits.rollouts:,}"
        )
    elif limits.response_tokens is not None and rollouts and counted.response_tokens >= limits.response_tokens:
        reason = (
            f"the run has generated {counted.response_tokens:,} response tokens"
            f"{f' ({lost.response_tokens:,} of them lost)' if with_lost else ''} before step {step}, and the budget is "
            f"{limits.response_tokens:,}"
        )
    elif limits.device_seconds is not None and device_seconds >= limits.device_seconds:
        reason = (
            f"the run has taken {device_seconds:,.0f} device-seconds before step {step}, and the budget is "
            f"{limits.device_seconds:,.0f}"
        )
    elif limits.money is not None and limits.cost(device_seconds) >= limits.money:
        reason = (
            f"the run has cost {limits.cost(device_seconds):,.2f} before step {step}, and the budget is "
            f"{limits.money:,.2f}"
        )
    return Admission(admitted=False, reason=reason) if reason else ADMITTED


def _as_count(limit: Any) -> Any:
    """Turn a whole number written as a float, such as 1e6, into an int; what is neither is refused later."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def overshoot(counted: Counts, limits: Limits) -> Counts:
    """Return what exceeds the limits on rollouts and response tokens; zero where there is no limit.

    Args:
        counted: What they count, see ``Limits.held_against``.
    """
    return Counts(
        rollouts=max(0, counted.rollouts - (limits.rollouts or counted.rollouts)),
        response_tokens=max(0, counted.response_tokens - (limits.response_tokens or counted.response_tokens)),
    )


def time_overshoot(device_seconds: float, limits: Limits) -> float:
    """Device-seconds beyond the tighter of the limits on device time and money; zero where there is none."""
    most = limits.device_seconds
    if limits.money is not None and limits.price_per_device_hour is not None:
        bought = limits.money / limits.price_per_device_hour * 3600
        most = bought if most is None else min(most, bought)
    return 0.0 if most is None else max(0.0, device_seconds - most)
