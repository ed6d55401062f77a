"""Rules that say whether a response is right: 1 or 0, never in between, never an exception."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from .errors import RolloutError

Verifier = Callable[[str, str], bool]
"""From a response's text and the reference answer to whether it is right."""


@cache
def verifier(name: str) -> Verifier:
    """Return the rule called ``name``.

    * ``exact``: the response, stripped, is the answer.
    * ``reasoning_gym:TASK``: the task's own scorer gives exactly 1; its partial scores count as wrong.
    * ``math``: math-verify finds the answer's value in the response.

    Raises:
        RolloutError: There is no such rule, or the library it needs is not installed.
    """
    if name == "exact":
        return lambda response, answer: response.strip() == answer.strip()
    if name == "math":
        return _math()
    if name.startswith("reasoning_gym:"):
        return _reasoning_gym(name.removeprefix("reasoning_gym:"))
    raise RolloutError(f"there is no verifier called {name!r}; there are exact, math and reasoning_gym:TASK")


def _reasoning_gym(task: str) -> Verifier:
    try:
        import reasoning_gym
    except ImportError:
        raise RolloutError('verifying needs reasoning-gym: pip install "isocompute-rollout[reasoning-gym]"') from None
    try:
        scorer: Any = reasoning_gym.create_dataset(task, size=1, seed=0)
    except ValueError:
        raise RolloutError(f"reasoning-gym has no task called {task!r}") from None

    # A sweep meets the same few thousand (answer, reference) pairs hundreds of times.
    @lru_cache(maxsize=1 << 18)
    def right(response: str, answer: str) -> bool:
        stated = response.rpartition("=")[2] if task == "chain_sum" else response
        try:
            return float(scorer.score_answer(stated.strip(), {"answer": answer, "metadata": {}})) == 1.0
        except Exception:
            # A scorer meets whatever a policy writes; what it cannot read is wrong.
            return False

    return right


def _math() -> Verifier:
    try:
        from math_verify import parse, verify
    except ImportError:
        raise RolloutError('verifying needs math-verify: pip install "isocompute-rollout[math]"') from None

    def right(response: str, answer: str) -> bool:
        try:
            # Time limits use signals, which only the main thread of a process may set.
            gold = parse(f"${answer}$", parsing_timeout=None)
            return bool(verify(gold, parse(response, parsing_timeout=None), timeout_seconds=None))
        except Exception:
            return False

    return right
