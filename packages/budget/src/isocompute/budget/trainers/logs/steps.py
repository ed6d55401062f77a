"""Which of a log's columns counts the trainer's steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ...errors import BudgetError
from .log import Layout

LOG_CALLS = ("_step", "Step")
"""What W&B calls its own count, in its histories and in its exports."""


def step_columns(names: Collection[str], layout: Layout, named: str | None, where: str) -> tuple[str, ...]:
    """Those of a log's columns that count the trainer's steps, the preferred one first.

    Args:
        names: Columns of a table, or keys of a line.
        named: Column that the user says it is.

    Returns:
        The columns; none where the log has no steps at all.

    Raises:
        BudgetError: The named column is not there, or the log has W&B's count alone.
    """
    if named is not None:
        if named not in names:
            raise BudgetError(f"{where}: has no column {named!r}; it has {', '.join(names)}")
        return (named,)
    found = tuple(column for column in layout.steps if column in names)
    calls = [column for column in LOG_CALLS if column in names]
    if not found and calls:
        raise BudgetError(
            f"{where}: counts its rows only by {calls[0]}, with which W&B counts calls of its logger and not the "
            f"trainer's steps: export {layout.steps[0]} too, or name the column of steps with --set step_column=COLUMN"
        )
    return found


def step_of(entry: Mapping[str, Any], columns: tuple[str, ...], where: str) -> int | None:
    """The trainer's step of one row, or None where the row has none.

    Args:
        columns: Columns that count steps, the preferred one first.

    Raises:
        BudgetError: The value there is not a step.
    """
    column = next((c for c in columns if entry.get(c) is not None), None)
    if column is None:
        return None
    value = entry[column]
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < 2**53 or number != int(number):
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise BudgetError(f"{where} has the {column} {shown}, which is not a whole number")
    if number < 0:
        raise BudgetError(f"{where} has the {column} {number:g}; steps count from 0")
    return int(number)
