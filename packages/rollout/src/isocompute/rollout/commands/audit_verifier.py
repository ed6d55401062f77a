"""``audit-verifier``: how often is a reward rule mistaken on a problem set?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from ..contract.files import write_text
from ..errors import RolloutError
from ..scoring.audit import Row, audit, compare
from ..scoring.estimators import wilson_interval
from ..scoring.metadata import metadata_of
from ..scoring.scorer import Item
from ..scoring.unusable import without_unusable
from .output import SOURCE, read
from .score import response_texts
from .values import add_scoring, chosen, scorer_of

LONGEST = 60
"""Characters of a response that are shown."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "audit-verifier", help="how often a reward rule is mistaken",
        description="Score responses that are right or wrong by construction, and say which of them the rule gets "
        "wrong. With --rollouts and --reference, compare the rule with another one on responses of a policy.",
    )  # fmt: skip
    command.add_argument("problems", help=SOURCE)
    command.add_argument("--verifier", help="the rule to audit, instead of each problem's own")
    command.add_argument("--limit", type=int, default=200, help="problems that responses are made to (default 200)")
    command.add_argument("--rollouts", help=f"responses of a policy to these problems: {SOURCE}")
    command.add_argument("--reference", help="the rule that is taken for the truth of those, such as math")
    command.add_argument("--model", help="the model whose tokenizer decodes them, unless they have the column text")
    command.add_argument("--json", help="the file to write every row and some mistakes to")
    add_scoring(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """Say how often responses of each form are accepted.

    Raises:
        RolloutError: --rollouts or --reference is given alone, or the rule cannot be audited.
    """
    if (arguments.rollouts is None) != (arguments.reference is None):
        raise RolloutError("--rollouts and --reference go together: what the policy answered, and what is right of it")
    asked, scorer = read(arguments.problems, "problems").table, scorer_of(arguments)
    if arguments.verifier is not None:
        asked = asked.with_columns(verifier=pl.lit(arguments.verifier))
    problems, dropped = without_unusable(chosen(asked, limit=arguments.limit, shard=None), scorer)
    if len(dropped):
        yield f"{len(dropped)} problems cannot be scored and are left out"
    rows = audit(problems, scorer)
    yield from _lines(rows, f"made responses to {len(problems)} problems")
    compared: list[Row] = []
    if arguments.rollouts is not None:
        compared = compare(_answered(arguments, asked), arguments.reference, scorer)
        yield ""
        yield from _lines(compared, f"{sum(row.responses for row in compared):,} responses of {arguments.rollouts}")
    if arguments.json is not None:
        document = {"made": [asdict(row) for row in rows], "compared": [asdict(row) for row in compared]}
        write_text(Path(arguments.json), json.dumps(document, indent=1) + "\n")


def _answered(arguments: argparse.Namespace, problems: pl.DataFrame) -> list[tuple[Item, str]]:
    """The responses of a table to some problems."""
    metadata = pl.Series(metadata_of(problems), dtype=pl.String)
    known = problems.select("problem_id", "answer", "verifier", metadata=metadata)
    rollouts = read(arguments.rollouts, "rollouts").table.filter(pl.col("finish_reason") != "aborted")
    joined = rollouts.join(known, on="problem_id", how="inner", maintain_order="left")
    if not len(joined):
        raise RolloutError(f"{arguments.rollouts}: answers none of the problems of {arguments.problems}")
    columns = (joined[name].to_list() for name in ("problem_id", "answer", "verifier", "metadata"))
    return [
        (Item(verifier=rule, response=text, answer=answer, metadata=note), problem_id)
        for text, problem_id, answer, rule, note in zip(response_texts(joined, arguments), *columns, strict=True)
    ]


def _lines(rows: Sequence[Row], title: str) -> Iterator[str]:
    """A table for each rule, its rates, and a mistake of each form that has any."""
    width = max(len(row.form) for row in rows)
    for name in dict.fromkeys(row.rule for row in rows):
        of_rule = [row for row in rows if row.rule == name]
        yield f"{name}: {title}"
        yield f"{'':5}  {'':{width}}  {'responses':>9}  accepted"
        for row in of_rule:
            yield f"{'right' if row.right else 'wrong':5}  {row.form:{width}}  {row.responses:>9,}  {_share(row)}"
        for right, kind in ((True, "false negatives"), (False, "false positives")):
            some = [row for row in of_rule if row.right == right]
            total = sum(row.responses for row in some)
            mistaken = sum(row.responses - row.accepted if right else row.accepted for row in some)
            if total:
                low, high = wilson_interval(mistaken / total, total)
                yield f"{kind}: {mistaken / total:.1%} ({low:.1%} to {high:.1%}) of these {total:,}"
        for row in of_rule:
            for mistake in row.mistakes[:1]:
                said = "refused, and right" if row.right else "accepted, and wrong"
                yield f"{said}: {_short(mistake.response)} for {_short(mistake.answer)} ({mistake.problem_id})"


def _share(row: Row) -> str:
    low, high = row.interval
    return f"{row.share:6.1%} ({low:.1%} to {high:.1%})"


def _short(text: str) -> str:
    """A text on one line, its end left out where it is long."""
    shown = repr(text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
