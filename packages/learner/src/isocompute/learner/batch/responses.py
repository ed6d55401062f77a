"""Reads a ``rollouts`` table: checks its columns, and stores its lists as offsets and joined values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ..errors import LearnerError


class Column(NamedTuple):
    """A column of a ``rollouts`` table: its type in words, the check of that type, and its purpose."""

    type: str
    is_it: Callable[[pl.DataType], bool]
    purpose: str


def _lists_of(accepts: Callable[[Any], bool]) -> Callable[[pl.DataType], bool]:
    # If all responses failed, the table's lists have no element type.
    return lambda dtype: isinstance(dtype, pl.List) and (dtype.inner == pl.Null or accepts(dtype.inner))


def _text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)


def _whole(dtype: pl.DataType) -> bool:
    return dtype.is_integer()


def _number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or isinstance(dtype, pl.Boolean)


COLUMNS = {
    "problem_id": Column("text", _text, "the problem that was answered: a group is its responses"),
    "sample": Column("a whole number", _whole, "the number of the response to its problem"),
    "finish_reason": Column("text", _text, "stop, length where the response was cut off, or aborted where it failed"),
    "reward": Column("a number", _number, "what the response is worth"),
    "prompt_ids": Column("a list of whole numbers", _lists_of(_whole), "the tokens that the first one follows"),
    "response_ids": Column("a list of whole numbers", _lists_of(_whole), "the tokens that are learnt from"),
    "logprobs": Column(
        "a list of numbers",
        _lists_of(_number),
        "the log-probability of each token under the sampler, by which its weights are verified and its difference "
        "from the learner is corrected",
    ),
    "weights_version": Column(
        "a whole number", _whole, "the version of the weights that sampled, by which stale responses are refused"
    ),
}
"""The columns that a sampler must report."""


def check_columns(
    rollouts: pl.DataFrame, names: Collection[str] = tuple(COLUMNS), *, source: str = "the table of rollouts"
) -> None:
    """Refuse a table that lacks a column or has one of the wrong type; the error says what the column is for."""
    for name in names:
        column = COLUMNS[name]
        if name not in rollouts.columns:
            raise LearnerError(
                f"{source} has no column {name} ({column.type}), {column.purpose}: the sampler must report it"
            )
        # A column without values has no type, as in a table without rows or with failed responses only.
        dtype = rollouts.schema[name]
        if not isinstance(dtype, pl.Null) and not column.is_it(dtype):
            raise LearnerError(
                f"the column {name} of {source} is of the type {dtype}; it must be {column.type}, {column.purpose}"
            )


def check_sampled(rollouts: object, problems: pl.DataFrame, *, source: str) -> None:
    """Refuse a sampler's result if it is not a table of responses to the given problems."""
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


def last_version(rollouts: pl.DataFrame) -> pl.Expr:
    """Return the weights version that sampled each response's last token, for each row of a table."""
    oldest = pl.col("weights_version")
    if "versions" not in rollouts.columns:
        return oldest
    return pl.coalesce(pl.col("versions").list.last(), oldest)


def marks(rollouts: pl.DataFrame, *, of: str = "response_ids") -> pl.Expr:
    """Whether the policy sampled each token; all of them in a row without a value or a table without the column."""
    throughout = pl.lit(True).repeat_by(pl.col(of).list.len())
    return pl.coalesce("sampled", throughout) if "sampled" in rollouts.columns else throughout


OF_TOKENS = ("old_logprobs", "reference_logprobs", "old_values", "advantages", "returns")
"""List columns from ``measure`` and ``objective.prepare`` with one number per sampled token."""
OF_ROWS = ("advantage", "loss_weight", "zero_variance")
"""Columns from ``objective.prepare`` with one number per response."""
MEASURED = {"values": "old_values"}
"""Columns that have another name in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """A column of lists.

    Two lists ``[5, 6]`` and ``[7]`` have the offsets ``[0, 2, 3]`` and the values ``[5, 6, 7]``.

    Attributes:
        offsets: Where each list begins in the values, and the end of the last; shape ``(rows + 1,)``.
        values: All lists joined, shape ``(tokens,)``.
    """

    offsets: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, lengths: np.ndarray) -> Lists:
        """Build lists from joined values and their lengths."""
        return cls(offsets=np.concatenate([[0], np.cumsum(lengths)]), values=values)

    @property
    def lengths(self) -> np.ndarray:
        """Length of each list, shape ``(rows,)``."""
        lengths: np.ndarray = np.diff(self.offsets)
        return lengths

    @property
    def last(self) -> np.ndarray:
        """Index of the last value of each non-empty list, shape ``(non-empty rows,)``."""
        ends: np.ndarray = self.offsets[1:][self.lengths > 0] - 1
        return ends

    @property
    def mask(self) -> np.ndarray:
        """Mask of the values in the matrix ``padded``, shape ``(rows, longest)``."""
        within: np.ndarray = np.arange(int(self.lengths.max(initial=0)))[None, :] < self.lengths[:, None]
        return within

    def padded(self) -> np.ndarray:
        """The lists as a matrix padded with 0, shape ``(rows, longest)``."""
        matrix = np.zeros(self.mask.shape)
        matrix[self.mask] = self.values
        return matrix

    def sums(self) -> np.ndarray:
        """Sum of each list, shape ``(rows,)``."""
        lengths = self.lengths
        return np.bincount(np.repeat(np.arange(len(lengths)), lengths), weights=self.values, minlength=len(lengths))

    def joined(self, rows: np.ndarray) -> np.ndarray:
        """The lists of some rows, joined."""
        values: np.ndarray = self.values[positions(self.offsets[rows], self.lengths[rows])]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """Responses to learn from, each with at least one sampled token.

    Attributes:
        sampled: Whether the policy sampled each token of a response; shape ``(response tokens,)``.
        counts: Number of sampled tokens of each response, shape ``(rows,)``.
        logprobs: The sampler's log-probabilities, one per response token.
        shares_prompt: Whether each response has the same prompt as the previous one, shape ``(rows,)``.
        of_rows: Columns with one number per response (``OF_ROWS``).
        of_tokens: List columns of the table with one number per sampled token (``OF_TOKENS``).
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
        """Indices of the sampled tokens of some rows among all sampled tokens, in the order of these rows."""
        ends = np.cumsum(self.counts)
        return positions((ends - self.counts)[rows], self.counts[rows])


def positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Count up from each start, ``lengths`` numbers each: starts 5 and 0 with lengths 2 and 1 give 5, 6, 0."""
    ends = np.cumsum(lengths)
    steps: np.ndarray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return np.asarray(steps + np.repeat(starts, lengths))


def read(rollouts: pl.DataFrame, *, vocabulary: int) -> Responses:
    """Read the responses of a table that have a sampled token; the others add nothing to a sum over tokens.

    Args:
        rollouts: A ``rollouts`` table. Missing columns ``advantage`` and ``loss_weight`` count as 0. The optional
            column ``sampled`` says of each response token whether the policy sampled it. If the column or a row's value
            is missing, all tokens count as sampled.
    """
    check_columns(rollouts, ("prompt_ids", "response_ids", "logprobs"))
    rollouts = rollouts.filter(pl.col("response_ids").list.len() > 0)
    check_rows(rollouts, vocabulary=vocabulary)
    rollouts = rollouts.with_columns(sampled=marks(rollouts)).filter(pl.col("sampled").list.any())
    responses, sampled = _lists(rollouts["response_ids"]), _lists(rollouts["sampled"])
    counts = sampled.sums().astype(np.int64)
    named = {MEASURED.get(name, name): name for name in rollouts.columns}
    of_tokens = {name: _lists(rollouts[named[name]]) for name in OF_TOKENS if name in named}
    for name, lists in of_tokens.items():
        if (lists.lengths != counts).any():
            raise LearnerError(f"the column {named[name]} has other than one number per sampled token")
    return Responses(
        prompts=_lists(rollouts["prompt_ids"]),
        responses=responses,
        sampled=sampled.values.astype(bool),
        counts=counts,
        logprobs=_lists(rollouts["logprobs"]),
        shares_prompt=rollouts["prompt_ids"].eq_missing(rollouts["prompt_ids"].shift(1)).to_numpy(),
        of_rows={name: _numbers(rollouts, name) for name in OF_ROWS},
        of_tokens=of_tokens,
    )


def _numbers(rollouts: pl.DataFrame, name: str) -> np.ndarray:
    if name not in rollouts.columns:
        return np.zeros(len(rollouts))
    return rollouts[name].cast(pl.Float64).to_numpy()


def _lists(column: pl.Series) -> Lists:
    array: Any = column.rechunk().to_arrow()
    offsets = array.offsets.to_numpy().astype(np.int64)
    # A slice shares its values with the whole column; values outside the slice are left out.
    return Lists(offsets=offsets - offsets[0], values=array.flatten().to_numpy(zero_copy_only=False))


FINISH_REASONS = ("stop", "length", "aborted")
ABOVE_ZERO = 1e-3
"""Log-probabilities (nats) up to this count as 0 with a rounding error."""


def check_answers(rollouts: pl.DataFrame, problems: pl.DataFrame, *, samples: int, source: str) -> None:
    """Refuse answers that were not asked for or cannot be learnt from, by problem and sample.

    A problem needs at least ``samples`` rows, of which at most ``samples`` are completed. Failed attempts are rows,
    too; their contents are not checked. A response may have no tokens if a stop text ended it at once.
    """
    ends = pl.col("finish_reason").cast(pl.String)
    reasons = f"a finish_reason that is none of {', '.join(FINISH_REASONS)}"
    _refuse(rollouts, "finish_reason", reasons, ~ends.is_in(FINISH_REASONS))
    _refuse(rollouts, "sample", "no sample number, 0 or more", pl.col("sample") < 0)
    _refuse(rollouts, "sample", "a number that another has, too", pl.struct("problem_id", "sample").is_duplicated())
    completed = rollouts.filter(ends != "aborted")
    count = pl.col("len").fill_null(0)
    for rows, wrong, wanted in (
        (rollouts, count < samples, f"{samples} or more, failed tries included"),
        (completed, count > samples, f"at most {samples} that were completed"),
    ):
        of_each = rows.group_by(pl.col("problem_id").cast(pl.String)).len()
        found = problems.select("problem_id").join(of_each, on="problem_id", how="left").filter(wrong)
        for problem, number in found.head(1).iter_rows():
            raise LearnerError(f"{source} has {number or 0} responses to problem {problem}; it must have {wanted}")
    if completed.is_empty():
        return
    check_rewards(completed)
    _refuse(completed, "weights_version", "no version of the weights")
    _refuse(completed, "response_ids", "no tokens")
    tokens = pl.col("response_ids").list.len()
    _refuse(completed, "response_ids", "no tokens, and ended at its limit", (tokens == 0) & (ends == "length"))
    check_rows(completed.filter(tokens > 0))


def check_rewards(rollouts: pl.DataFrame) -> None:
    """Refuse a reward that is missing or not finite."""
    finite = pl.col("reward").cast(pl.Float64).is_finite()
    _refuse(rollouts, "reward", "a reward that is not a finite number", ~finite)


def check_rows(rollouts: pl.DataFrame, *, vocabulary: int | None = None) -> None:
    """Refuse responses that cannot be learnt from; ``check_finite`` also refuses those of a diverged policy."""
    tokens, given, prompt = (pl.col(name).list.len() for name in ("response_ids", "logprobs", "prompt_ids"))
    none = "no log-probabilities, as where a server reports none: learning needs a sampler that does"
    _refuse(rollouts, "prompt_ids", "no prompt token, from which its first token would be predicted", prompt == 0)
    _refuse(rollouts, "logprobs", none, given == 0)
    _refuse(
        rollouts, "logprobs", "a number of log-probabilities that differs from its number of tokens", given != tokens
    )
    if "sampled" in rollouts.columns:
        marks = pl.col("sampled").list
        wrong = (marks.len() != tokens) | marks.eval(pl.element().is_null()).list.any()
        fault = "a mark (sampled) that is missing, or other than one per token"
        _refuse(rollouts.filter(pl.col("sampled").is_not_null()), "sampled", fault, wrong)
    for name in OF_ROWS:
        if name in rollouts.columns:
            _refuse(rollouts, name, f"no finite {name}", ~pl.col(name).cast(pl.Float64).is_finite())
    unknown = "a token outside the model's vocabulary" + ("" if vocabulary is None else f" of {vocabulary}")
    most = np.inf if vocabulary is None else vocabulary - 1
    for name in ("prompt_ids", "response_ids"):
        _refuse_element(rollouts, name, unknown, lambda ids: (ids < 0) | (ids > most))
    _refuse_element(rollouts, "logprobs", "a log-probability above 0", lambda values: values > ABOVE_ZERO)
    check_finite(rollouts, [name for name in rollouts.columns if MEASURED.get(name, name) in OF_TOKENS])


def check_finite(rollouts: pl.DataFrame, names: Collection[str] = ("logprobs",)) -> None:
    """Refuse per-token numbers that are missing or not finite."""
    for name in names:
        _refuse_element(rollouts, name, f"no finite number in {name}", lambda values: ~np.isfinite(values))


def _refuse(rollouts: pl.DataFrame, name: str, fault: str, wrong: pl.Expr | None = None) -> None:
    """Name the first row whose column has no value or that meets a condition."""
    rows = rollouts.filter(pl.col(name).is_null())
    if rows.is_empty() and wrong is not None:
        rows = rollouts.filter(wrong)
    if len(rows):
        raise LearnerError(f"{_response(rows, 0)} has {fault} ({name} is {rows[name].head(1).to_list()[0]})")


def _refuse_element(rollouts: pl.DataFrame, name: str, fault: str, wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    """Name the first row whose list has a missing or wrong element."""
    array: Any = rollouts[name].rechunk().to_arrow()
    lists, flat = _lists(rollouts[name]), array.flatten()
    places = wrong(lists.values) if len(flat) > flat.null_count else np.zeros(len(flat), dtype=bool)
    places = np.flatnonzero(places | flat.is_null().to_numpy(zero_copy_only=False) if flat.null_count else places)
    if len(places):
        row = int(np.searchsorted(lists.offsets, places[0], side="right")) - 1
        place = int(places[0] - lists.offsets[row])
        value = rollouts[name][row].to_list()[place]
        raise LearnerError(f"{_response(rollouts, row)} has {fault} ({name}[{place}] is {value})")


def _response(rollouts: pl.DataFrame, row: int) -> str:
    problem, sample = rollouts.select("problem_id", "sample").row(row)
    return f"response {sample} to problem {problem}"
