"""``reasoning_gym:TASK``: the task's own scorer, with the settings, question and metadata of the problem."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from types import ModuleType
from typing import Any

from ...errors import RolloutError
from ..rules import check_task, decode_metadata, encode_metadata
from . import guarded
from .text import Judge, Scored

SCORERS = 256
"""Number of tasks with settings that are kept."""
_NO_NUMBER = re.compile(r"(?<![a-z])(nan|inf|infinity)[ij]?(?![a-z])", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]{2}")


class TaskJudge(Judge):
    """Scores with reasoning-gym."""

    def __init__(self) -> None:
        try:
            import reasoning_gym
        except ImportError as error:
            raise RolloutError(f"reasoning-gym cannot be imported ({error})") from None
        self._create = reasoning_gym.create_dataset
        self._scorer = lru_cache(maxsize=SCORERS)(self._made)
        # Whatever the scorers evaluate, only calculations are possible.
        for module, name, value in guards():
            module.__dict__[name] = value

    def prepare(self, base: str, answer: str, metadata: str) -> Scored:
        """See ``Judge.prepare``: the task's scorer.

        Raises:
            RolloutError: The task is refused, unknown or has other settings, or the metadata cannot be read. The
                returned function raises it if metadata that it needs are missing.
        """
        task = base.partition(":")[2]
        check_task(task)
        settings = decode_metadata(metadata, where=task).get("settings") if metadata else None
        scorer = self._scorer(task, encode_metadata(settings or {}))
        return lambda response: _scored(task, scorer, response, answer, metadata)

    def draw(self, task: str, settings: Mapping[str, Any], *, size: int, seed: int, index: int) -> str:
        """See ``Judge.draw``; the seed also sets the global random generators."""
        dataset = self._scorer(task, encode_metadata(settings), size, seed)
        random.seed(seed + index)
        return encode_metadata(dict(dataset[index]))

    def _made(self, task: str, settings: str, size: int = 1, seed: int = 0) -> Any:
        try:
            return self._create(task, size=size, seed=seed, **decode_metadata(settings, where=task))
        except Exception as error:
            raise RolloutError(f"reasoning-gym refuses the task {task!r}: {error}") from None


def _scored(task: str, scorer: Any, response: str, answer: str, metadata: str) -> float:
    entry = _Entry(answer=answer)
    if metadata:
        # Decoded again for each response, since some scorers change their arguments.
        decoded = decode_metadata(metadata, where=task)
        entry.update((key, decoded[key]) for key in ("question", "metadata") if key in decoded)
    try:
        value = float(scorer.score_answer(response.strip(), entry))
        if value == 1.0 and not _meets_conditions(task, response, entry):
            value = 0.0
    except Exception:
        if not entry.missing:
            raise
    if entry.missing:
        raise RolloutError(
            f"the scorer of {task} needs the {entry.missing} of a problem, and its column metadata lacks it: "
            "make the problems table again"
        )
    # A score outside these bounds, which some tasks can give, is not a full score.
    return value if 0 <= value <= 1 else 0.0


class _Entry(dict[str, Any]):
    """A problem in reasoning-gym's form, which records a missing key that a scorer asked for."""

    missing = ""

    def __missing__(self, key: str) -> Any:
        self.missing = key
        raise KeyError(key)


def _meets_conditions(task: str, response: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a response with a score of 1 may have it."""
    # Some scorers parse numbers with float, and comparisons with NaN can come out either way.
    if not _WORD.search(entry["answer"]) and _NO_NUMBER.search(response):
        return False
    return task not in CONDITIONS or CONDITIONS[task](response, entry)


def _within_one_percent(response: str, entry: Mapping[str, Any]) -> bool:
    given, right = (Fraction(text.strip().replace(",", "")) for text in (response, entry["answer"]))
    return abs(given - right) <= abs(right) / 100


def _uses_the_numbers(response: str, entry: Mapping[str, Any]) -> bool:
    """Return whether an expression contains the numbers of its problem, each once."""
    return sorted(map(int, re.findall(r"\d+", response))) == sorted(entry["metadata"]["numbers"])


CONDITIONS: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    # Its scorer accepts any prefix of the answer, such as 0, and differences below 0.0001.
    "coin_flip": _within_one_percent,
    # Its scorer accepts any four numbers.
    "puzzle24": _uses_the_numbers,
}
"""Additional conditions on a response."""


def guards() -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield the evaluators that only calculate, each with its module and name there."""
    from reasoning_gym.algebra import intermediate_integration, polynomial_multiplication, simple_integration
    from reasoning_gym.algorithmic import binary_matrix, number_sorting, spiral_matrix, string_insertion
    from reasoning_gym.arithmetic import bitwise_arithmetic
    from reasoning_gym.games import countdown, n_queens, puzzle24

    # A name of the module hides the builtin.
    for module in (binary_matrix, bitwise_arithmetic, n_queens, number_sorting, spiral_matrix, string_insertion):
        yield module, "eval", guarded.evaluate
    sympy = importlib.import_module("sympy")
    formulas = guarded.guarded_module(sympy, parse_expr=guarded.guarded_parser(sympy.parse_expr))
    for module, name in (
        (intermediate_integration, "sympy"),
        (simple_integration, "sympy"),
        (polynomial_multiplication, "sp"),
    ):
        yield module, name, formulas
    for module in (countdown, puzzle24):
        yield module, "parse_expr", guarded.guarded_parser(sympy.parse_expr, frozenset(), letters=False)
