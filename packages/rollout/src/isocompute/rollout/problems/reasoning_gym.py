"""Problems from reasoning-gym's generators."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import RolloutError, library
from ..scoring import rules
from ..scoring.scorer import Scorer, default_scorer
from .sources import Candidate, ReasoningGymSource

DRAWS_PER_PROBLEM = 400
"""Candidates generated per problem asked for before the source counts as exhausted."""
EXAMPLES: Mapping[str, str] = {"graph_color": "possible_answer", "rubiks_cube": "example_correct_answer"}
"""Keys of the metadata in which tasks with many right answers keep one of them."""
PROGRAMS = frozenset({"codeio"})
"""Tasks whose generator executes programs, which it does in the sandbox."""
UNSOLVED: Mapping[str, str] = {"intermediate_integration": "Integral"}
"""Texts that show that a generator found no answer: a response that repeats the question would be right, too."""
BARE = "chain_sum"
"""The task whose prompt is its bare expression, such as ``3+2-4=``, with the digits that the source allows."""
CHUNK = 8
"""Problems generated in the sandbox at a time."""


def candidates(source: ReasoningGymSource, scorer: Scorer | None = None) -> Iterator[Candidate]:
    """Yield each generated problem.

    Its prompt is its question, and its settings, question and metadata are kept for the scorer; that of ``BARE`` needs
    only the answer.
    """
    reasoning_gym = library("reasoning_gym", extra="reasoning-gym")
    draws = DRAWS_PER_PROBLEM * (source.train + source.validation)
    try:
        dataset: Any = reasoning_gym.create_dataset(source.task, size=draws, seed=source.seed, **dict(source.settings))
    except (ValueError, TypeError, AssertionError) as error:
        raise RolloutError(f"reasoning-gym refuses the task {source.task!r}: {error}") from None
    rule = f"reasoning_gym:{source.task}"
    programs = source.task in PROGRAMS
    for entry in _sandboxed(source, rule, draws, scorer) if programs else (dataset[i] for i in range(draws)):
        answer = _answer(source.task, entry)
        if source.task == BARE:
            expression = str(entry["metadata"]["expression"]).replace(" ", "")
            if not source.digits or set(expression) <= set(source.digits) | set("+-"):
                yield Candidate(prompt=expression + "=", answer=answer, verifier=rule)
        elif UNSOLVED.get(source.task, "\0") not in answer:
            question = str(entry["question"])
            context = {"settings": source.settings, "question": question, "metadata": entry["metadata"]}
            yield Candidate(prompt=question, answer=answer, verifier=rule, metadata=rules.encode_metadata(context))


def _answer(task: str, entry: Mapping[str, Any]) -> str:
    """Return the reference answer, or an example of one where many are right; an empty text where there is none."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    example = entry["metadata"].get(EXAMPLES.get(task, ""), "")
    return example if isinstance(example, str) else json.dumps(example)


def _sandboxed(source: ReasoningGymSource, rule: str, draws: int, scorer: Scorer | None) -> Iterator[Mapping[str, Any]]:
    """Generate problems whose generator executes programs, without those whose program fails.

    A program may depend on the date, on the order of a set or on a random number: it runs twice, and must give the same
    result.
    """
    scorer = scorer or default_scorer()
    scorer.check([rule])
    for first in range(0, draws, CHUNK):
        wanted = [
            {"task": source.task, "settings": dict(source.settings), "size": draws, "seed": source.seed, "index": index}
            for index in range(first, min(first + CHUNK, draws))
        ]
        entries, again = scorer.draw(rule, wanted), scorer.draw(rule, wanted)
        for entry in entries:
            if entry in again and entry["metadata"].get("input_data"):
                yield entry
