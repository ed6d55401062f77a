"""What a sampler's ``rollouts`` table must hold for learning, checked before anything is computed from it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import polars as pl

from ..errors import LearnerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a ``rollouts`` table.

    Attributes:
        type: Its type in words.
        is_it: Whether a type is that.
        purpose: What it is needed for.
    """

    type: str
    is_it: Callable[[pl.DataType], bool]
    purpose: str


def _lists_of(accepts: Callable[[Any], bool]) -> Callable[[pl.DataType], bool]:
    # A table of failed responses only has lists without a type.
    return lambda dtype: isinstance(dtype, pl.List) and (dtype.inner == pl.Null or accepts(dtype.inner))


def _text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)


def _whole(dtype: pl.DataType) -> bool:
    return dtype.is_integer()


def _number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or isinstance(dtype, pl.Boolean)


COLUMNS = {
    "problem_id": Column(type="text", is_it=_text, purpose="the problem that was answered: a group is its responses"),
    "sample": Column(type="a whole number", is_it=_whole, purpose="the number of the response to its problem"),
    "finish_reason": Column(
        type="text", is_it=_text, purpose="stop, length where the response was cut off, or aborted where it failed"
    ),
    "reward": Column(type="a number", is_it=_number, purpose="what the response is worth"),
    "prompt_ids": Column(
        type="a list of whole numbers", is_it=_lists_of(_whole),
        purpose="the tokens of the prompt, from which the first token is predicted",
    ),
    "response_ids": Column(
        type="a list of whole numbers", is_it=_lists_of(_whole), purpose="the tokens that are learnt from"
    ),
    "logprobs": Column(
        type="a list of numbers", is_it=_lists_of(_number),
        purpose="the log-probability of each token under the sampler, by which its weights are verified and its "
        "difference from the learner is corrected",
    ),
    "weights_version": Column(
        type="a whole number", is_it=_whole,
        purpose="the version of the weights that sampled, by which stale responses are refused",
    ),
}  # fmt: skip
"""What a sampler must report."""


def check_columns(
    rollouts: pl.DataFrame, names: Collection[str] = tuple(COLUMNS), *, source: str = "the table of rollouts"
) -> None:
    """Refuse a table that lacks a column, or has one of another type.

    Raises:
        LearnerError: It does; the error names the column, its type and its purpose.
    """
    for name in names:
        column = COLUMNS[name]
        if name not in rollouts.columns:
            raise LearnerError(
                f"{source} has no column {name} ({column.type}), {column.purpose}: the sampler must report it"
            )
        # A column without a value has no type: a table without rows, or of responses that all failed.
        dtype = rollouts.schema[name]
        if not isinstance(dtype, pl.Null) and not column.is_it(dtype):
            raise LearnerError(
                f"the column {name} of {source} is of the type {dtype}; it must be {column.type}, {column.purpose}"
            )


def check_sampled(rollouts: object, problems: pl.DataFrame, *, source: str) -> None:
    """Refuse what a sampler returned if it is not a table of responses to the problems that it was given.

    Raises:
        LearnerError: It is none, or a column is missing or of another type, or a problem is another one.
    """
    if not isinstance(rollouts, pl.DataFrame):
        raise LearnerError(
            f"{source} is a {type(rollouts).__name__}; it must be a polars.DataFrame, a row per response"
        )
    check_columns(rollouts, source=source)
    others = set(rollouts["problem_id"]) - set(problems["problem_id"])
    if others:
        raise LearnerError(
            f"{source} answers problem {min(map(str, others))}, which was not among those that it was given; "
            "problem_id must be that of the problem"
        )
