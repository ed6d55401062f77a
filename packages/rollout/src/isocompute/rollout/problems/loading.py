"""The ``problems`` table of a source, with every reference answer scored by the rule that will score responses."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ..contract import tables
from ..errors import RolloutError
from ..verifiers import verifier
from .base import Candidate, Source, candidates, problem_id

MOST_DROPPED = 0.01
"""Share of the problems examined whose own answer may fail before the source is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a source gave.

    Attributes:
        problems: The ``problems`` table, of the sizes asked for.
        dropped: Problems whose own answer does not score 1, in the order met: ``problem_id``, ``prompt``, ``answer``,
            ``verifier``, ``reason``.
    """

    problems: pl.DataFrame
    dropped: pl.DataFrame


def load_problems(source: Source) -> pl.DataFrame:
    """Make the ``problems`` table; see ``load_checked``, of which this is the first half."""
    return load_checked(source).problems


def load_checked(source: Source) -> Loaded:
    """Make the ``problems`` table: distinct prompts, the training side and the validation side disjoint.

    Two prompts are the same problem when they agree up to case and white space. A problem whose own answer, written
    as a response, does not score 1 is dropped, and the next candidate takes its place.

    Raises:
        RolloutError: The source cannot be read, has too few distinct problems, or more than 1 % of the problems
            examined are dropped; the rule is not known or refused.
    """
    needed = source.train + source.validation
    seen: set[str] = set()
    kept: list[Candidate] = []
    dropped: list[dict[str, str]] = []
    for candidate in candidates(source):
        if candidate.key in seen:
            continue
        seen.add(candidate.key)
        reason = _fault(candidate)
        if not reason:
            kept.append(candidate)
        else:
            dropped.append(
                {
                    "problem_id": problem_id(source.name, candidate.prompt),
                    "prompt": candidate.prompt,
                    "answer": candidate.answer,
                    "verifier": candidate.verifier,
                    "reason": reason,
                }
            )
            _refuse_above(source, dropped, kept=len(kept), needed=needed)
        if len(kept) == needed:
            break
    if len(kept) < needed:
        also = f" ({len(dropped)} more do not score their own answer)" if dropped else ""
        raise RolloutError(
            f"{source.name} has {len(kept)} distinct problems{also}, and {source.train} training and "
            f"{source.validation} validation problems are asked for: ask for fewer, or widen the source"
        )
    columns = ("problem_id", "prompt", "answer", "verifier", "reason")
    return Loaded(
        problems=_table(source, kept),
        dropped=pl.DataFrame(dropped, schema=dict.fromkeys(columns, pl.String)),
    )


def _fault(candidate: Candidate) -> str:
    """Say why a problem cannot be used; nothing when its own answer scores 1."""
    answer, rule = candidate.answer, candidate.verifier
    # A policy is asked to box what math-verify reads; other rules read the response as it stands.
    response = f"\\boxed{{{answer}}}" if rule == "math" else answer
    right = verifier(rule)(response, answer, candidate.metadata)
    if answer.strip():
        return "" if right else "its own answer does not score 1"
    # A task may say that nothing is the right answer; in a file nothing is a gap, which silence would fill.
    return "" if right and rule.startswith("reasoning_gym:") else "it has no reference answer"


def _refuse_above(source: Source, dropped: list[dict[str, str]], *, kept: int, needed: int) -> None:
    """Refuse a source as soon as its share of dropped problems will be too large, whatever is still to come."""
    if len(dropped) <= MOST_DROPPED * (needed + len(dropped)):
        return
    last = dropped[-1]
    raise RolloutError(
        f"{source.name} is refused: {len(dropped)} of the first {kept + len(dropped)} problems examined cannot be "
        f"scored, and 1 % of the {needed} asked for would be too many already; such as {last['problem_id']}, since "
        f"{last['reason']} (the answer is {last['answer'][:60]!r})"
    )


def _table(source: Source, kept: list[Candidate]) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "problem_id": [problem_id(source.name, c.prompt) for c in kept],
            "prompt": [c.prompt for c in kept],
            "answer": [c.answer for c in kept],
            "verifier": [c.verifier for c in kept],
            "source": [source.name] * len(kept),
            "split": ["validation"] * source.validation + ["train"] * source.train,
            "metadata": [c.metadata for c in kept],
        }
    )
    return tables.check(frame, "problems", where=source.name)
