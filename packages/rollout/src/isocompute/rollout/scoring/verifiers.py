"""Rules that say whether a response is right: 1 or 0, never in between, and no response makes one raise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

from . import metadata as notes
from .errors import RolloutError
from .refused import check_task

LONGEST_KEPT = 256
"""Characters of a response whose verdict is remembered; long ones do not occur twice."""


class Verifier(Protocol):
    """From a response's text, the reference answer and the problem's metadata to whether the response is right."""

    def __call__(self, response: str, answer: str, metadata: str = "") -> bool:
        """Say whether the response is right."""
        ...


@cache
def verifier(name: str, *, seconds: float = 5.0) -> Verifier:
    """Return the rule called ``name``.

    * ``exact``: the response, stripped, is the answer.
    * ``reasoning_gym:TASK``: the task's own scorer, with the settings, question and metadata of the problem's
      ``metadata`` column, gives exactly 1; its partial scores count as wrong.
    * ``math``: math-verify finds the answer's value in the response.

    Args:
        name: Name of the rule.
        seconds: For ``math``: processor time one response may take; what takes more is wrong.

    Raises:
        RolloutError: There is no such rule, the library it needs is not installed, or the task is refused
            (``refused.REFUSED``). The rule itself raises it for metadata that are missing or unreadable.
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

    plain = scorer_with({})
    with_settings = lru_cache(maxsize=64)(lambda settings: scorer_with(notes.read(settings, where=task)))

    def scored(response: str, answer: str, metadata: str) -> bool:
        stated = response.rpartition("=")[2] if task == "chain_sum" else response
        entry = _Entry(answer=answer)
        scorer = plain
        if metadata:
            held = notes.read(metadata, where=task)
            entry.update((key, held[key]) for key in ("question", "metadata") if key in held)
            if held.get("settings"):
                scorer = with_settings(notes.written(held["settings"]))
        try:
            right = float(scorer.score_answer(stated.strip(), entry)) == 1.0
        except Exception:
            # A scorer meets whatever a policy writes; what it cannot read is wrong.
            right = False
        if entry.lacking:
            raise RolloutError(
                f"the scorer of {task} needs the {entry.lacking} of a problem, and its column metadata lacks it: "
                "make the problems table again"
            )
        return right

    return _remembering(scored)


class _Entry(dict[str, Any]):
    """A problem as reasoning-gym has it, which notes what it was asked for and lacks."""

    lacking = ""

    def __missing__(self, key: str) -> Any:
        self.lacking = key
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

    return _remembering(scored)


def _remembering(scored: Callable[[str, str, str], bool]) -> Verifier:
    """Remember verdicts: a sweep meets the same few thousand short responses hundreds of times."""
    known = lru_cache(maxsize=1 << 18)(scored)

    def right(response: str, answer: str, metadata: str = "") -> bool:
        if len(response) > LONGEST_KEPT:
            return scored(response, answer, metadata)
        # Every table brings its own copies; the memory keeps one of each.
        return known(response, answer, sys.intern(metadata))

    return right
