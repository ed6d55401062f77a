"""Judges, which score inside the sandbox: one for each library, chosen by worker pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .callables import CallableJudge
from .equivalence import MathJudge
from .programs import Apart
from .runs import RunsJudge
from .tasks import TaskJudge
from .text import TextJudge

__all__ = ["CallableJudge", "Judge", "Scored", "load"]

Scored = Callable[[str], float | bool]
"""Scores a response: 1 where it is right."""


class Judge(Protocol):
    """Scores the rules of one worker pool."""

    def executing(self, base: str) -> bool:
        """Return whether a rule may execute what a response says, so that each response needs a process of its own.

        Args:
            base: Name of the rule, without answer extraction.
        """
        ...

    def prepare(self, base: str, answer: str, metadata: str) -> Scored:
        """Return the function that scores responses to a problem.

        Args:
            base: Name of the rule, without answer extraction.

        Raises:
            RolloutError: The problem cannot be scored, whatever the response.
        """
        ...

    def draw(self, task: str, settings: Mapping[str, Any], *, size: int, seed: int, index: int) -> str:
        """Generate a problem and return its text (``rules.encode_metadata``).

        Args:
            task: Name of the generator.
            size: Problems that the generator is made for.
        """
        ...


def load(pool: str, apart: Apart | None = None) -> Judge:
    """Load the library of a pool.

    Args:
        pool: ``exact``, ``math``, ``reasoning_gym``, ``runs`` or ``python:MODULE:FUNCTION``.
        apart: Keeps the programs of ``runs`` apart from this process.

    Raises:
        RolloutError: The library or the function cannot be loaded.
    """
    if pool == "exact":
        return TextJudge()
    if pool == "math":
        return MathJudge()
    if pool == "reasoning_gym":
        return TaskJudge()
    if pool == "runs":
        return RunsJudge(apart)
    return CallableJudge(pool)
