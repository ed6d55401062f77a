"""Reading a ``rollouts`` table: its columns checked, and its lists as offsets and joined values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
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
        type="a list of whole numbers",
        is_it=_lists_of(_whole),
        purpose="the tokens of the prompt, from which the first token is predicted",
    ),
    "response_ids": Column(
        type="a list of whole numbers", is_it=_lists_of(_whole), purpose="the tokens that are learnt from"
    ),
    "logprobs": Column(
        type="a list of numbers",
        is_it=_lists_of(_number),
        purpose="the log-probability of each token under the sampler, by which its weights are verified and its "
        "difference from the learner is corrected",
    ),
    "weights_version": Column(
        type="a whole number",
        is_it=_whole,
        purpose="the version of the weights that sampled, by which stale responses are refused",
    ),
}
"""The columns that a sampler must report."""


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


OF_TOKENS = ("old_logprobs", "reference_logprobs", "old_values", "advantages", "returns")
"""List columns with a number for each sampled token, of ``measure`` and ``objective.prepare``."""


MEASURED = {"values": "old_values"}
"""Columns that are called otherwise in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """A column of lists.

    Two lists ``[5, 6]`` and ``[7]`` have the offsets ``[0, 2, 3]`` and the values ``[5, 6, 7]``.

    Attributes:
        offsets: Where each list begins in the values, and the end of the last; shape ``(rows + 1,)``.
        values: All lists joined.
    """

    offsets: np.ndarray
    values: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Length of each list, shape ``(rows,)``."""
        lengths: np.ndarray = np.diff(self.offsets)
        return lengths

    def row(self, i: int) -> np.ndarray:
        """The list of a row."""
        values: np.ndarray = self.values[self.offsets[i] : self.offsets[i + 1]]
        return values

    def joined(self, rows: np.ndarray) -> np.ndarray:
        """The lists of some rows, joined."""
        values: np.ndarray = self.values[positions(self.offsets[rows], self.lengths[rows])]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """Responses that are learnt from, with at least one sampled token each.

    Attributes:
        prompts: Prompts' tokens.
        responses: Responses' tokens.
        sampled: Whether the policy sampled each token of a response; shape ``(response tokens,)``.
        counts: Sampled tokens of each response, shape ``(rows,)``.
        logprobs: The sampler's log-probabilities, one for each token of a response.
        shares_prompt: Whether a response has the same prompt as the one before it, shape ``(rows,)``.
        of_rows: A number for each response: ``advantage``, ``loss_weight``, ``zero_variance``.
        of_tokens: Lists with a number for each sampled token (``OF_TOKENS``), where the table has them.
    """

    prompts: Lists
    responses: Lists
    sampled: np.ndarray
    counts: np.ndarray
    logprobs: Lists
    shares_prompt: np.ndarray
    of_rows: Mapping[str, np.ndarray]
    of_tokens: Mapping[str, Lists]

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def run_lengths(self) -> np.ndarray:
        """Tokens of each response that pass through the model: all but the last, which predicts nothing."""
        lengths: np.ndarray = self.responses.lengths - 1
        return lengths

    @property
    def whole_lengths(self) -> np.ndarray:
        """Tokens of each response and its prompt that pass through the model."""
        lengths: np.ndarray = self.prompts.lengths + self.run_lengths
        return lengths

    def tokens_of(self, rows: np.ndarray) -> np.ndarray:
        """Where the sampled tokens of some rows are among the sampled tokens of all, in the order of these rows."""
        ends = np.cumsum(self.counts)
        return positions((ends - self.counts)[rows], self.counts[rows])


def positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers from each start on, as many as its length says: starts 5 and 0, lengths 2 and 1 give 5, 6, 0.

    Args:
        starts: Shape ``(n,)``.
        lengths: Shape ``(n,)``.
    """
    ends = np.cumsum(lengths)
    steps: np.ndarray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return np.asarray(steps + np.repeat(starts, lengths))


def read(rollouts: pl.DataFrame, *, vocabulary: int) -> Responses:
    """Read the responses of a table that have a sampled token; the others add nothing to a sum over tokens.

    Args:
        rollouts: A ``rollouts`` table. ``advantage`` and ``loss_weight`` count as 0 where it lacks them. Where it has
            a column ``sampled``, it says of each response token whether the policy sampled it; a row without a value,
            and a table without the column, is sampled throughout.
        vocabulary: Number of tokens that the policy knows.

    Raises:
        LearnerError: A column is missing; or a row has no prompt, other than one log-probability or mark per token, an
            unknown token, or other than one number per sampled token in a column that needs it.
    """
    check_columns(rollouts, ("prompt_ids", "response_ids", "logprobs"))
    rollouts = rollouts.filter(pl.col("response_ids").list.len() > 0)
    _check(rollouts, vocabulary)
    if "sampled" in rollouts.columns:
        rollouts = _marked(rollouts).filter(pl.col("sampled").list.any())
    responses = _lists(rollouts["response_ids"])
    sampled, counts = np.ones(len(responses.values), dtype=bool), responses.lengths
    if "sampled" in rollouts.columns:
        marks = _lists(rollouts["sampled"])
        sampled = marks.values.astype(bool)
        counts = np.add.reduceat(sampled.astype(np.int64), marks.offsets[:-1]) if len(rollouts) else marks.lengths
    prompts = _lists(rollouts["prompt_ids"])
    named = {MEASURED.get(name, name): name for name in rollouts.columns}
    of_tokens = {name: _lists(rollouts[named[name]]) for name in OF_TOKENS if name in named}
    for name, lists in of_tokens.items():
        if (lists.lengths != counts).any():
            raise LearnerError(f"the column {named[name]} has other than one number per sampled token")
    return Responses(
        prompts=prompts,
        responses=responses,
        sampled=sampled,
        counts=counts,
        logprobs=_lists(rollouts["logprobs"]),
        shares_prompt=_same_as_before(prompts),
        of_rows={name: _numbers(rollouts, name) for name in ("advantage", "loss_weight", "zero_variance")},
        of_tokens=of_tokens,
    )


def _marked(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Give every row of the column ``sampled`` a value."""
    throughout = pl.lit(True).repeat_by(pl.col("response_ids").list.len())
    return rollouts.with_columns(sampled=pl.coalesce("sampled", throughout))


def _same_as_before(prompts: Lists) -> np.ndarray:
    same = np.zeros(len(prompts.lengths), dtype=bool)
    rows = [prompts.row(i).tobytes() for i in range(len(same))]
    same[1:] = [before == after for before, after in pairwise(rows)]
    return same


def _numbers(rollouts: pl.DataFrame, name: str) -> np.ndarray:
    if name not in rollouts.columns:
        return np.zeros(len(rollouts))
    return rollouts[name].cast(pl.Float64).to_numpy()


def _lists(column: pl.Series) -> Lists:
    array: Any = column.rechunk().to_arrow()
    offsets = array.offsets.to_numpy().astype(np.int64)
    # Of a slice, the values that it shares with the whole column are left out.
    return Lists(offsets=offsets - offsets[0], values=array.flatten().to_numpy(zero_copy_only=False))


def _check(rollouts: pl.DataFrame, vocabulary: int) -> None:
    prompt, response, logprobs = (pl.col(name).list for name in ("prompt_ids", "response_ids", "logprobs"))
    if "sampled" not in rollouts.columns:
        rollouts = rollouts.with_columns(sampled=pl.lit(None, dtype=pl.List(pl.Boolean)))
    marks = pl.col("sampled").list
    given = logprobs.len().fill_null(0)
    unknown = (prompt.max() >= vocabulary) | (response.max() >= vocabulary) | (prompt.min() < 0) | (response.min() < 0)
    faults = {
        "no prompt token, from which its first token would be predicted": prompt.len() == 0,
        "no log-probabilities, as where a server reports none: learning needs a sampler that does": given == 0,
        "a number of log-probabilities that differs from its number of tokens": given != response.len(),
        "a mark (sampled) that is missing, or other than one per token": (marks.len() != response.len())
        | marks.eval(pl.element().is_null()).list.any(),
        f"a token outside the model's vocabulary of {vocabulary}": unknown,
    }
    for fault, condition in faults.items():
        rows = rollouts.filter(condition)
        if len(rows):
            problem, sample = rows.select("problem_id", "sample").row(0)
            raise LearnerError(f"response {sample} to problem {problem} has {fault}")
