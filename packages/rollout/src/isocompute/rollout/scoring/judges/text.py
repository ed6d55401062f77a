"""``exact``: the response is the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import RolloutError


def same(response: str, answer: str) -> bool:
    """Return whether two texts agree up to surrounding white space."""
    return response.strip() == answer.strip()


Scored = Callable[[str], float | bool]
"""Scores a response: 1 if it is right."""


class Judge:
    """Scores the rules of one worker pool."""

    def prepare(self, base: str, answer: str, metadata: str) -> Scored:
        """Return the function that scores responses to a problem.

        Args:
            base: Name of the rule, without answer extraction; never ``exact``, which every worker scores itself.

        Raises:
            RolloutError: The problem cannot be scored, whatever the response.
        """
        raise NotImplementedError

    def draw(self, task: str, settings: Mapping[str, Any], *, size: int, seed: int, index: int) -> str:
        """Generate a problem, with a generator made for ``size`` problems, in the form of ``rules.encode_metadata``."""
        raise RolloutError(f"{task} is not a generator of problems")
