"""Responses that trainers write to files, as a table of one row each: for runs that never knew of this package."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import BudgetError
from ..wording import reason

PROMPT_TOKENS = ("prompt_ids", "prompt_token_ids", "prompt_tokens", "prompt_length")
RESPONSE_TOKENS = (
    "response_ids", "response_token_ids", "response_tokens", "response_length",
    "completion_ids", "completion_token_ids", "completion_tokens", "completion_length",
)  # fmt: skip
"""Columns that hold the tokens, as ids or as their number: extra columns of TRL's ``log_extra``, veRL's extra infos."""

Encode = Callable[[Sequence[str]], list[list[int]]]
"""The token ids of texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFiles:
    """Files of a trainer's responses.

    Attributes:
        pattern: Their names.
        prompt: Column of the prompt, which is the problem.
        response: Column of the response.
        rewards: Columns that may be the reward; none where every other column of numbers is one reward function's.
        others: Columns of numbers that are no rewards.
        repeats: Whether a step that generated nothing has a file too, with what the one before it holds.
        note: What a file leaves out.
    """

    pattern: str
    prompt: str
    response: str
    rewards: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    repeats: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """What the files hold.

    Attributes:
        rows: ``run_id``, ``step``, ``phase`` (all ``train``), ``problem_id``, ``sample``, ``reward`` and ``text``; with
            ``prompt_ids``, ``response_ids`` and ``retokenized`` where they are known. What else a ``rollouts`` table
            has (log-probabilities, why a response ended, of which weights it is) is in no such file.
        ledger: A ``ledger`` table, or None where the number of tokens is not known.
        notes: Where the tokens come from, and what was left out.
    """

    rows: pl.DataFrame
    ledger: pl.DataFrame | None
    notes: tuple[str, ...]


def read_responses(
    places: Sequence[Path], files: RolloutFiles, *, metric: str = "", encode: Encode | None = None
) -> Responses:
    """The responses in files and below folders; each folder that holds such files is a run.

    Args:
        files: Of the trainer.
        metric: Column of the reward; needed where there are several.
        encode: The tokens of texts, for files without tokens of their own.

    Raises:
        BudgetError: There are none, one cannot be read, or which column is the reward is not known.
    """
    runs: dict[Path, list[Path]] = {}
    for place in places:
        paths = [place] if place.is_file() else sorted(place.rglob(files.pattern))
        if not paths:
            raise BudgetError(f"{place}: holds no {files.pattern}")
        for path in paths:
            of_run = runs.setdefault(path.parent.resolve(), [])
            if path.name not in {other.name for other in of_run}:
                of_run.append(path)
    notes: list[str] = []
    frames = [_run(paths, files, metric, encode, notes) for paths in runs.values()]
    rows = pl.concat(frames, how="diagonal_relaxed").sort("run_id", "step", "problem_id", "sample")
    counts = ("prompt_tokens", "response_tokens")
    known = all(rows[name].null_count() == 0 for name in counts)
    ledger = rows.group_by("run_id", "step", maintain_order=True).agg(
        cohort=pl.lit("trained"), rollouts=pl.len().cast(pl.Int64), **{name: pl.col(name).sum() for name in counts}
    )
    # A list that some run lacks would be read as a response without tokens.
    lacking = [name for name in ("prompt_ids", "response_ids") if name in rows and rows[name].null_count()]
    return Responses(
        rows=rows.drop(*counts, *lacking), ledger=ledger if known else None, notes=tuple(dict.fromkeys(notes))
    )


def rates(responses: pl.DataFrame) -> pl.DataFrame | None:
    """Successes of every problem at every step as a ``pass_rates`` table, or None where rewards are not 0 and 1."""
    if not responses["reward"].is_in([0.0, 1.0]).all():
        return None
    return responses.group_by("run_id", "step", "problem_id", maintain_order=True).agg(
        successes=pl.col("reward").sum().cast(pl.Int32), samples=pl.len().cast(pl.Int32)
    )


def tokenizer(source: Path) -> Encode:
    """The tokens of texts by a ``tokenizer.json``, or by the one in a folder: without special tokens and cuts.

    Raises:
        BudgetError: There is none, it cannot be read, or ``tokenizers`` is not installed.
    """
    path = source / "tokenizer.json" if source.is_dir() else source
    if not path.is_file():
        raise BudgetError(f"{path}: there is no such file; a tokenizer is a tokenizer.json or a folder that holds one")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BudgetError(
            f'{path}: counting tokens needs tokenizers: pip install "isocompute-budget[tokenizers]"'
        ) from None
    try:
        known = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises nothing more particular.
        raise BudgetError(f"{path}: is no tokenizer ({reason(error)})") from None
    # A file may say that texts are to be cut or filled up.
    known.no_truncation()
    known.no_padding()
    return lambda texts: [found.ids for found in known.encode_batch(list(texts), add_special_tokens=False)]


def _run(
    paths: Sequence[Path], files: RolloutFiles, metric: str, encode: Encode | None, notes: list[str]
) -> pl.DataFrame:
    """The responses of a run, with the number of their tokens, null where it is not known."""
    folder = paths[0].parent
    frames = sorted((_load(path, files) for path in paths), key=lambda frame: max(frame["step"].to_list(), default=0))
    if files.repeats:
        kept = [b for a, b in zip([None, *frames], frames, strict=False) if a is None or not _same(a, b)]
        if len(kept) < len(frames):
            notes.append(
                f"{folder}: {len(frames) - len(kept)} of {len(frames)} files hold what the one before them holds, of "
                "steps that generated nothing: counted once"
            )
        frames = kept
    whole = pl.concat(frames, how="diagonal_relaxed")
    column = _reward(whole, files, metric, folder)
    rows = whole.select(
        run_id=pl.lit(sha256(str(folder.resolve()).encode()).hexdigest()[:16]),
        step=pl.col("step").cast(pl.Int64),
        phase=pl.lit("train"),
        problem_id=_texts(whole[files.prompt], _identity),
        reward=pl.col(column).cast(pl.Float32),
        text=_texts(whole[files.response], _words),
    )
    numbered = pl.int_range(pl.len(), dtype=pl.Int32).over("step", "problem_id")
    return rows.with_columns(
        numbered.alias("sample"),
        *_tokens(whole, files.prompt, PROMPT_TOKENS, "prompt", encode, folder, notes),
        *_tokens(whole, files.response, RESPONSE_TOKENS, "response", encode, folder, notes),
    )


def _same(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    return one.drop("step").equals(other.drop("step"))


def _tokens(
    frame: pl.DataFrame,
    column: str,
    names: Sequence[str],
    kind: str,
    encode: Encode | None,
    folder: Path,
    notes: list[str],
) -> list[pl.Series]:
    """The number of tokens of each prompt or response, and the tokens themselves where they are known."""
    count = f"{kind}_tokens"
    own = [name for name in names if name in frame.columns and not frame[name].null_count()]
    if own:
        values = frame[own[0]]
        notes.append(f"{kind} tokens are of the column {own[0]}")
        if isinstance(values.dtype, pl.List):
            ids = [values.cast(pl.List(pl.Int32)).alias(f"{kind}_ids")] if values.dtype.inner.is_integer() else []
            return [values.list.len().cast(pl.Int64).alias(count), *ids]
        numbers = values.cast(pl.Int64, strict=False)
        if not values.dtype.is_numeric() or not (numbers == values).fill_null(False).all() or (numbers < 0).any():
            raise BudgetError(f"{folder}: {own[0]} holds neither token ids nor numbers of tokens")
        return [numbers.alias(count)]
    if encode is None:
        return [pl.Series(count, [None] * len(frame), dtype=pl.Int64)]
    texts = _texts(frame[column], _words)
    different = texts.unique().to_list()
    encoded = dict(zip(different, encode(different), strict=True))
    lists = pl.Series(f"{kind}_ids", [encoded[text] for text in texts], dtype=pl.List(pl.Int32))
    notes.append(
        "tokens are counted from the texts, which lack special tokens (a response's last one, a chat template's)"
    )
    marked = [pl.Series("retokenized", [True] * len(frame))] if kind == "response" else []
    return [lists.list.len().cast(pl.Int64).alias(count), lists, *marked]


def _load(path: Path, files: RolloutFiles) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    lacking = [c for c in ("step", files.prompt, files.response) if c not in frame.columns]
    if lacking:
        raise BudgetError(f"{path}: has no column {', '.join(lacking)}; it has {', '.join(frame.columns)}")
    # Chats are lists of messages, whose fields may differ from file to file.
    return frame.with_columns(
        pl.Series(name, [json.dumps(value, ensure_ascii=False) for value in frame[name].to_list()])
        .alias(name)
        for name in (files.prompt, files.response)
    )  # fmt: skip


def _reward(frame: pl.DataFrame, files: RolloutFiles, metric: str, folder: Path) -> str:
    """The column of the reward."""
    others = {"step", files.prompt, files.response, *files.others, *PROMPT_TOKENS, *RESPONSE_TOKENS}
    numbers = [c for c in frame.columns if c not in others and frame[c].dtype.is_numeric()]
    if metric and metric not in numbers:
        raise BudgetError(f"{folder}: has no column {metric!r} of numbers; it has {', '.join(numbers)}")
    found = [metric] if metric else [c for c in files.rewards if c in numbers][:1] or numbers
    if len(found) != 1:
        names = ", ".join(numbers) or "no column"
        raise BudgetError(f"{folder}: which of {names} is the reward is not known: --metric")
    if not frame[found[0]].cast(pl.Float64).is_finite().fill_null(False).all():
        raise BudgetError(f"{folder}: {found[0]} is missing for some responses")
    return found[0]


def _texts(values: pl.Series, of: Callable[[Any], str]) -> pl.Series:
    """What is made of each prompt or response, which are JSON."""
    return pl.Series(values.name, [of(json.loads(value)) for value in values], dtype=pl.String)


def _words(value: Any) -> str:
    """The text of a prompt or response, or of the messages of a chat."""
    if isinstance(value, list):
        return "".join(map(_words, value))
    if isinstance(value, dict):
        return _words(value.get("content") if "content" in value else value.get("text"))
    return "" if value is None else str(value)


def _identity(prompt: Any) -> str:
    return sha256(str(prompt).encode()).hexdigest()[:16]
