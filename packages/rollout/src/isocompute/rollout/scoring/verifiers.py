"""Rules that say whether a response is right: 1 or 0, never in between, and no response makes one raise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

from ..errors import RolloutError
from . import metadata as codec
from .refused import check_task

LONGEST_CACHED = 256
"""Characters of the longest response whose verdict is cached; longer ones do not occur twice."""


class Verifier(Protocol):
    """A binary reward function: whether a response is right."""

    def __call__(self, response: str, answer: str, metadata: str = "") -> bool:
        """Say whether the response is right.

        Args:
            response: The response's text.
            answer: The reference answer.
            metadata: The problem's ``metadata`` (``metadata.encode``).
        """
        ...


@cache
def verifier(name: str, *, seconds: float = 5.0) -> Verifier:
    """Return the rule called ``name``.

    * ``exact``: the response, stripped, is the answer.
    * ``reasoning_gym:TASK``: the task's own scorer, with the settings, question and metadata of the problem's
      ``metadata`` column, gives exactly 1; its partial scores count as wrong.
    * ``math``: math-verify finds the answer's value in the response.

    Args:
        name: Name of the rule, as in the ``verifier`` column.
        seconds: For ``math``: processor time one response may take; what takes more is wrong.

    Returns:
        The rule; verdicts of short responses are cached.

    Raises:
        RolloutError: There is no such rule, the library it needs is not installed, or the task is refused
            (``refused.REFUSED``). The rule itself raises it when metadata that it needs are missing or unreadable.
    """
    if name == "exact":
        return lambda response, answer, metadata="": response.strip() == answer.strip()
    if name == "math":
        return _math(seconds)
    if name.startswith("reasoning_gym:"):
        task = name.removeprefix("reasoning_gym:")
        check_task(task)
        return _reasoning_gym(task)
    raise RolloutError(f"there is no verifier called {name!r}; there are exact, math and reasoning_gym:TASK")


def _reasoning_gym(task: str) -> Verifier:
    try:
        import reasoning_gym
    except ImportError:
        raise RolloutError('verifying needs reasoning-gym: pip install "isocompute-rollout[reasoning-gym]"') from None

    def scorer_with(settings: Mapping[str, Any]) -> Any:
        try:
            return reasoning_gym.create_dataset(task, size=1, seed=0, **settings)
        except Exception as error:
            raise RolloutError(f"reasoning-gym refuses the task {task!r}: {error}") from None

    default_scorer = scorer_with({})
    with_settings = lru_cache(maxsize=64)(lambda settings: scorer_with(codec.decode(settings, where=task)))

    def scored(response: str, answer: str, metadata: str) -> bool:
        final = response.rpartition("=")[2] if task == "chain_sum" else response
        entry = _Entry(answer=answer)
        scorer = default_scorer
        if metadata:
            decoded = codec.decode(metadata, where=task)
            entry.update((key, decoded[key]) for key in ("question", "metadata") if key in decoded)
            if decoded.get("settings"):
                scorer = with_settings(codec.encode(decoded["settings"]))
        try:
            right = float(scorer.score_answer(final.strip(), entry)) == 1.0
        except Exception:
            # A scorer meets whatever a policy writes; what it cannot read is wrong.
            right = False
        if entry.missing:
            raise RolloutError(
                f"the scorer of {task} needs the {entry.missing} of a problem, and its column metadata lacks it: "
                "make the problems table again"
            )
        return right

    return _cached(scored)


class _Entry(dict[str, Any]):
    """A problem as reasoning-gym has it, which records the missing key that a scorer asked for."""

    missing = ""

    def __missing__(self, key: str) -> Any:
        self.missing = key
        raise KeyError(key)


def _math(seconds: float) -> Verifier:
    if find_spec("math_verify") is None:
        raise RolloutError('verifying needs math-verify: pip install "isocompute-rollout[math]"')
    from .math_process import MathProcess

    process = MathProcess(seconds=seconds)

    def scored(response: str, answer: str, metadata: str) -> bool:
        try:
            return process.right(response, answer)
        except RuntimeError as error:
            raise RolloutError(str(error)) from None

    return _cached(scored)


def _cached(scored: Callable[[str, str, str], bool]) -> Verifier:
    """Cache verdicts: a sweep meets the same few thousand short responses hundreds of times."""
    cached = lru_cache(maxsize=1 << 18)(scored)

    def right(response: str, answer: str, metadata: str = "") -> bool:
        if len(response) > LONGEST_CACHED:
            return scored(response, answer, metadata)
        # Every table brings its own copies of the metadata; the cache keeps one of each.
        return cached(response, answer, sys.intern(metadata))

    return right
