"""``score``: verify rollouts again."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import polars as pl

from ..contract import tables
from ..errors import RolloutError
from ..samplers.models import load_tokenizer
from ..scoring.metadata import metadata_of
from ..scoring.verifiers import verifier
from .output import SOURCE, Output, add_flags, deliver, rewarded


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    score = commands.add_parser("score", help="verify rollouts again")
    score.add_argument("rollouts", help=SOURCE)
    score.add_argument("--problems", required=True, help=SOURCE)
    score.add_argument("--model", required=True, help="the model whose tokenizer decodes the responses")
    add_flags(score)
    score.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Score the rollouts and say their mean reward."""
    return deliver(arguments, _score)


def _score(arguments: argparse.Namespace) -> Output:
    rollouts = tables.read(arguments.rollouts, "rollouts")
    problems = tables.read(arguments.problems, "problems")
    metadata = pl.Series(metadata_of(problems), dtype=pl.String)
    joined = rollouts.join(
        problems.select("problem_id", "answer", "verifier", metadata=metadata),
        on="problem_id", how="left", maintain_order="left",
    )  # fmt: skip
    unknown = joined.filter(pl.col("verifier").is_null())["problem_id"].unique()
    if len(unknown):
        raise RolloutError(f"{arguments.problems}: lacks {len(unknown)} problems answered, such as {unknown[0]}")
    tokenizer = load_tokenizer(arguments.model)
    texts = tokenizer.batch_decode(joined["response_ids"].to_list(), skip_special_tokens=True)
    columns = (joined[name].to_list() for name in ("answer", "verifier", "metadata", "finish_reason"))
    rewards = [
        float(reason != "aborted" and verifier(rule)(text, answer, note))
        for text, answer, rule, note, reason in zip(texts, *columns, strict=True)
    ]
    scored = rollouts.with_columns(reward=pl.Series(rewards, dtype=pl.Float32))
    return rewarded(scored, sources={"rollouts": arguments.rollouts, "problems": arguments.problems})
