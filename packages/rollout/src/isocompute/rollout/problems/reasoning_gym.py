"""Problems from reasoning-gym's generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import RolloutError
from ..scoring import metadata
from ..scoring.refused import check_task
from .candidates import Candidate
from .sources import ReasoningGymSource

DRAWS_PER_PROBLEM = 400
"""Candidates generated per problem asked for before the source counts as exhausted."""


def candidates(source: ReasoningGymSource) -> Iterator[Candidate]:
    """Yield each generated problem.

    The prompt of ``chain_sum`` is its bare expression, ``3+2-4=``, and its scorer needs only the answer; the prompt of
    another task is its question, and its settings, question and metadata are kept for the scorer.

    Args:
        source: The task and its settings.

    Raises:
        RolloutError: The library is not installed, it refuses the task or a setting, or the task is one of
            ``scoring.refused.REFUSED``.
    """
    check_task(source.task)
    try:
        import reasoning_gym
    except ImportError:
        raise RolloutError(
            'these problems need reasoning-gym: pip install "isocompute-rollout[reasoning-gym]"'
        ) from None
    draws = DRAWS_PER_PROBLEM * (source.train + source.validation)
    try:
        dataset: Any = reasoning_gym.create_dataset(source.task, size=draws, seed=source.seed, **dict(source.settings))
    except (ValueError, TypeError, AssertionError) as error:
        raise RolloutError(f"reasoning-gym refuses the task {source.task!r}: {error}") from None
    rule = f"reasoning_gym:{source.task}"
    for index in range(draws):
        entry = dataset[index]
        answer = "" if entry["answer"] is None else str(entry["answer"])
        if source.task != "chain_sum":
            question = str(entry["question"])
            context = {"settings": source.settings, "question": question, "metadata": entry["metadata"]}
            yield Candidate(prompt=question, answer=answer, verifier=rule, metadata=metadata.encode(context))
            continue
        expression = str(entry["metadata"]["expression"]).replace(" ", "")
        if not source.digits or set(expression) <= set(source.digits) | set("+-"):
            yield Candidate(prompt=expression + "=", answer=answer, verifier=rule)
