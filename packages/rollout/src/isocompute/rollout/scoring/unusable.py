"""Problems that no response can be scored for, found before anything is sampled."""

from __future__ import annotations

from concurrent.futures import Future

import polars as pl

from ..errors import ProblemError, RolloutError
from .metadata import decode, metadata_of
from .rules import own_response, rule
from .scorer import Item, Scorer
from .verdicts import Verdict

DROPPED = dict.fromkeys(("problem_id", "prompt", "answer", "verifier", "reason"), pl.String)
"""Columns of a table of dropped problems."""


def without_unusable(problems: pl.DataFrame, scorer: Scorer) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Part problems from those that cannot be scored, whatever the response: their rule or its library says so.

    Each problem's own answer is scored, and what is said of it as a response does not matter. A function of the user's
    own is not called; its metadata must be readable.

    Returns:
        The problems that can be scored, in their order, and the others with the ``reason`` (``DROPPED``).

    Raises:
        RolloutError: None can be scored, or a rule is unknown or refused.
    """
    scorer.check(problems["verifier"].unique().to_list())
    columns = (problems["verifier"].to_list(), problems["answer"].to_list(), metadata_of(problems))
    futures = [_asked(name, answer, note, scorer) for name, answer, note in zip(*columns, strict=True)]
    scorer.flush()
    reasons = pl.Series("reason", [_reason(future) for future in futures], dtype=pl.String)
    marked = problems.with_columns(reasons)
    dropped = marked.filter(pl.col("reason").is_not_null()).select(*DROPPED)
    if len(dropped) == len(problems) and len(problems):
        raise RolloutError(
            f"none of the {len(problems)} problems can be scored, such as {dropped['problem_id'][0]}, since "
            f"{dropped['reason'][0]}"
        )
    return marked.filter(pl.col("reason").is_null()).drop("reason"), dropped


def _asked(name: str, answer: str, metadata: str, scorer: Scorer) -> Future[list[Verdict]]:
    if not rule(name).base.startswith("python:"):
        asked, response = own_response(name, answer)
        return scorer.submit([Item(verifier=asked, response=response, answer=answer, metadata=metadata)], hold=True)
    done: Future[list[Verdict]] = Future()
    try:
        if metadata:
            decode(metadata, where=name)
        done.set_result([])
    except RolloutError as error:
        done.set_exception(ProblemError(str(error)))
    return done


def _reason(future: Future[list[Verdict]]) -> str | None:
    try:
        future.result()
    except ProblemError as error:
        return str(error)
    return None
