"""Makes the ``problems`` table of a source; every reference answer is scored by the rule that will score responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from ..contract import tables
from ..errors import ProblemError, RolloutError, library
from ..scoring.evaluation import DROPPED
from ..scoring.judges.runs import tests_of
from ..scoring.rules import encode_metadata, own_response, rule
from ..scoring.scorer import Scorer, default_scorer, verifier
from . import rows
from .named import SetSource
from .sources import Candidate, HubSource, ReasoningGymSource, Source, normalised, problem_id

LARGEST_DROPPED_SHARE = 0.01
"""Largest share of examined problems whose own answer may fail before the source is refused."""
LARGEST_DROPPED_SHARE_OF_A_SET = 0.05
"""The same for a set that is used whole, where no problem replaces another."""
DRAWS_PER_PROBLEM = 400
"""Candidates generated per requested problem before the source counts as exhausted."""
EXAMPLES: Mapping[str, str] = {"graph_color": "possible_answer", "rubiks_cube": "example_correct_answer"}
"""Metadata keys under which tasks with many right answers keep one of them."""
PROGRAMS = frozenset({"codeio"})
"""Tasks whose generator executes programs; it runs in the sandbox."""
UNSOLVED: Mapping[str, str] = {"intermediate_integration": "Integral"}
"""Texts that show that a generator found no answer; a response that repeats the question would then be right."""
BARE = "chain_sum"
"""The task whose prompt is only its expression, such as ``3+2-4=``, with the digits that the source allows."""
CHUNK = 8
"""Problems generated per call in the sandbox."""
COLUMNS = dict.fromkeys(("problem_id", "prompt", "answer", "verifier", "source", "split", "metadata"), pl.String)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The problems of a source.

    Attributes:
        problems: The ``problems`` table, with as many problems as requested.
        dropped: Problems that cannot be scored or whose own answer does not score 1, in the order met, with the
            ``reason`` (``scoring.evaluation.DROPPED``).
    """

    problems: pl.DataFrame
    dropped: pl.DataFrame


def load_problems(source: Source, *, scorer: Scorer | None = None) -> pl.DataFrame:
    """Make the ``problems`` table like ``load_checked``, without the list of dropped problems."""
    return load_checked(source, scorer=scorer).problems


def load_checked(source: Source, *, scorer: Scorer | None = None) -> Loaded:
    """Make the ``problems`` table: prompts are distinct, and training and validation side are disjoint.

    Two prompts are the same problem if they agree up to case and white space. A problem whose own answer, written as a
    response, does not score 1 is dropped, and the next candidate takes its place. User functions are not called for
    this, since they may expect more than the bare answer.

    Raises:
        RolloutError: The source cannot be read or has too few distinct problems, more than 1 % of the examined problems
            are dropped, or the verifier is unknown or refused.
    """
    whole, key = (source.whole, source.key) if isinstance(source, SetSource) else (False, source.name)
    needed = source.train + source.validation
    seen: set[str] = set()
    kept: list[dict[str, str]] = []
    dropped: list[dict[str, str]] = []
    for candidate in candidates(source, scorer):
        if candidate.key in seen:
            continue
        seen.add(candidate.key)
        problem = {"problem_id": problem_id(key, candidate.prompt), **asdict(candidate)}
        if reason := _fault(candidate, scorer):
            dropped.append({**problem, "reason": reason})
            # A problem without an answer says nothing about the rule.
            wrong = [each for each in dropped if each["reason"] != rows.MISSING]
            # Stop as soon as the share cannot fall to the limit any more.
            if not whole and len(wrong) > LARGEST_DROPPED_SHARE * (needed + len(wrong)):
                raise RolloutError(
                    f"{source.name} is refused: {len(wrong)} of the first {len(kept) + len(wrong)} problems examined "
                    f"cannot be scored, more than 1 % of the {needed} asked for; {_such_as(wrong[-1])}"
                )
            continue
        side = "validation" if whole or len(kept) < source.validation else "train"
        kept.append({**problem, "source": source.name, "split": side})
        if len(kept) == needed and not whole:
            break
    if whole and len(dropped) > LARGEST_DROPPED_SHARE_OF_A_SET * (len(kept) + len(dropped)):
        raise RolloutError(
            f"{source.name} is refused: {len(dropped)} of its {len(kept) + len(dropped)} problems cannot be scored, "
            f"{_such_as(dropped[-1])}"
        )
    if len(kept) < needed and not whole:
        failed = f" ({len(dropped)} more were dropped, the last since {dropped[-1]['reason']})" if dropped else ""
        raise RolloutError(
            f"{source.name} has {len(kept)} distinct problems{failed}, and {source.train} training and "
            f"{source.validation} validation problems are asked for: ask for fewer, or widen the source"
        )
    problems = tables.check(pl.DataFrame(kept, schema=COLUMNS), "problems", where=source.name)
    return Loaded(problems=problems, dropped=pl.DataFrame(dropped, schema=DROPPED))


def joined(parts: Sequence[Loaded]) -> Loaded:
    """Join the problems of several sources, each once: a problem on both sides stays on the validation side."""
    problems = pl.concat([part.problems for part in parts], how="diagonal_relaxed")
    problems = problems.sort("split", "problem_id", descending=[True, False])
    first = pl.Series([normalised(prompt) for prompt in problems["prompt"]], dtype=pl.String).is_first_distinct()
    return Loaded(
        problems=tables.check(problems.filter(first), "problems", where="the sources"),
        dropped=pl.concat([part.dropped for part in parts]),
    )


def candidates(source: Source, scorer: Scorer | None = None) -> Iterator[Candidate]:
    """Yield the problems of a source, possibly with repeats. Generators that execute programs run in the sandbox."""
    if isinstance(source, ReasoningGymSource):
        return _generated(source, scorer)
    found = rows.of_hub(source) if isinstance(source, HubSource) else rows.of_file(source)
    return (rows.candidate(row, source, where=f"{source.name}: row {number}") for number, row in found)


def _generated(source: ReasoningGymSource, scorer: Scorer | None) -> Iterator[Candidate]:
    """Yield the problems of a reasoning-gym generator.

    The prompt is the question; the settings, question and metadata are kept for the scorer. For ``BARE`` the answer
    suffices.
    """
    reasoning_gym = library("reasoning_gym", extra="reasoning-gym")
    draws = DRAWS_PER_PROBLEM * (source.train + source.validation)
    try:
        dataset: Any = reasoning_gym.create_dataset(source.task, size=draws, seed=source.seed, **dict(source.settings))
    except (ValueError, TypeError, AssertionError) as error:
        raise RolloutError(f"reasoning-gym refuses the task {source.task!r}: {error}") from None
    apart = source.task in PROGRAMS
    for entry in _sandboxed(source, draws, scorer) if apart else (dataset[i] for i in range(draws)):
        answer = _answer(source.task, entry)
        if source.task == BARE:
            expression = str(entry["metadata"]["expression"]).replace(" ", "")
            if not source.digits or set(expression) <= set(source.digits) | set("+-"):
                yield Candidate(prompt=expression + "=", answer=answer, verifier=source.name)
        elif UNSOLVED.get(source.task, "\0") not in answer:
            question = str(entry["question"])
            context = {"settings": source.settings, "question": question, "metadata": entry["metadata"]}
            note = encode_metadata(context)
            yield Candidate(prompt=question, answer=answer, verifier=source.name, metadata=note)


def _answer(task: str, entry: Mapping[str, Any]) -> str:
    """Return the reference answer, an example of one if many are right, or an empty text if there is none."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    example = entry["metadata"].get(EXAMPLES.get(task, ""), "")
    return example if isinstance(example, str) else json.dumps(example)


def _sandboxed(source: ReasoningGymSource, draws: int, scorer: Scorer | None) -> Iterator[Mapping[str, Any]]:
    """Generate problems with a generator that executes programs, and leave out those whose program fails.

    A program may depend on the date, on the order of a set or on random numbers, so it runs twice and must give the
    same result.
    """
    scorer = scorer or default_scorer()
    scorer.check([source.name])
    for first in range(0, draws, CHUNK):
        wanted = [
            {"task": source.task, "settings": dict(source.settings), "size": draws, "seed": source.seed, "index": index}
            for index in range(first, min(first + CHUNK, draws))
        ]
        entries, again = (scorer.draw(source.name, wanted) for _ in range(2))
        for entry in entries:
            if entry in again and entry["metadata"].get("input_data"):
                yield entry


def _fault(candidate: Candidate, scorer: Scorer | None) -> str:
    """Return why a problem cannot be used, or an empty text if its own answer scores 1 or cannot be written down."""
    if candidate.fault:
        return candidate.fault
    if rule(candidate.verifier).base == "runs":
        # The answer consists of tests, not of a program that passes them.
        try:
            tests_of(candidate.answer)
        except ProblemError as error:
            return str(error)
        return ""
    answer, own = candidate.answer, rule(candidate.verifier).base.startswith("python:")
    name, response = (candidate.verifier, "") if own else own_response(candidate.verifier, answer)
    scores = verifier(name, scorer=scorer)
    reason = "its own answer does not score 1"
    try:
        right = own or scores(response, answer, candidate.metadata)
    except ProblemError as error:
        right, reason = False, str(error)
    if answer.strip():
        return "" if right else reason
    # A task's right answer may be empty; in a file, an empty answer is a missing one, and an empty response would be
    # right.
    return "" if right and candidate.verifier.startswith("reasoning_gym:") else "it has no reference answer"


def _such_as(dropped: dict[str, str]) -> str:
    return f"such as {dropped['problem_id']}, since {dropped['reason']} (the answer is {dropped['answer'][:60]!r})"
