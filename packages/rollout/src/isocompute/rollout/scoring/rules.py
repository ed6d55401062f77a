"""The rules that score responses, by name.

A name is a rule, and after it words separated by ``|``: how the answer is extracted from the response (``extraction``)
and ``partial``. Rules are ``exact``, ``math``, ``runs``, ``reasoning_gym:TASK``, ``python:MODULE:FUNCTION``, and those
that ``register`` or the entry points of the group ``isocompute.rollout.verifiers`` name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from ..errors import RolloutError
from .extraction import anchored, extraction, written
from .refused import EXTRACTION, check_task

ENTRY_POINTS = "isocompute.rollout.verifiers"
"""Group of entry points, each a function of response, answer and metadata."""
QUICK = re.compile(r"boxed|last_line|after:.*", re.DOTALL)
"""Words whose time is bounded by the response's length."""

_registered: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule as its name describes it.

    Attributes:
        base: The rule without words; a registered one as ``python:MODULE:FUNCTION``.
        words: How the answer is extracted.
        partial: A fraction counts as the reward.
    """

    name: str
    base: str
    words: tuple[str, ...]
    partial: bool

    @property
    def lane(self) -> str:
        """The library that scores it, for which there are processes."""
        return self.base.partition(":")[0] if self.base.startswith("reasoning_gym:") else self.base

    @property
    def inline(self) -> bool:
        """Whether it needs no process: a comparison of texts, and no pattern that could take for ever."""
        return self.base == "exact" and all(QUICK.fullmatch(word) for word in self.words)

    def written(self, answer: str) -> str:
        """Return a reference answer as a policy would write it."""
        # A policy is asked to box what math-verify reads.
        return written(self.words or (("boxed",) if self.base == "math" else ()), answer)


def own_response(name: str, answer: str) -> tuple[str, str]:
    """Return a problem's own answer as a response, and the rule to score it with.

    No response can be made from which a pattern extracts the answer: the rule itself is asked.
    """
    found = rule(name)
    if any(word.startswith("regex:") for word in found.words):
        found = rule(found.base)
    return found.name, found.written(answer)


@cache
def rule(name: str) -> Rule:
    """Return the rule that a name describes.

    Args:
        name: As in the ``verifier`` column, such as ``exact|last_line``.

    Raises:
        RolloutError: There is no such rule or extraction, the library it needs is not installed, or the task is
            refused (``refused.REFUSED``).
    """
    base, *words = _split(name)
    partial = "partial" in words
    words = [word for word in words if word != "partial"]
    extraction(words)
    if base.startswith("reasoning_gym:"):
        task = base.partition(":")[2]
        check_task(task)
        words = words or list(EXTRACTION.get(task, ()))
        _needs("reasoning_gym", "reasoning-gym", "reasoning-gym")
    elif base == "math":
        _needs("math_verify", "math-verify", "math")
        words = list(anchored(words))
    elif base.startswith("python:"):
        _check_reference(base)
    elif base not in {"exact", "runs"}:
        base = _found(base)
    return Rule(name=name, base=base, words=tuple(words), partial=partial)


def register(name: str, function: Callable[..., Any] | str) -> None:
    """Give a verifier of your own a name.

    Args:
        name: Name of the rule, for the ``verifier`` column.
        function: A function of a module, or its ``MODULE:FUNCTION``. It is called with the response, the answer and the
            decoded metadata (a mapping) in a process of the sandbox, which imports it by its name; it returns whether
            the response is right, or a number from 0 to 1.

    Raises:
        RolloutError: The name is taken or cannot be one, or the function cannot be imported by its name.
    """
    if not re.fullmatch(r"[\w.-]+", name) or name in {"exact", "math", "partial", "runs"}:
        raise RolloutError(f"a verifier cannot be called {name!r}: a new name of letters, digits, . and - is needed")
    reference = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
    _check_reference(f"python:{reference}")
    if not isinstance(function, str) and _resolved(reference) is not function:
        raise RolloutError(
            f"the verifier {name} cannot be imported as {reference}: it must be a function "
            "at the top level of a module, not one of __main__"
        )
    if _registered.get(name, reference) != reference:
        raise RolloutError(f"there is a verifier called {name} already: {_registered[name]}")
    _registered[name] = reference
    rule.cache_clear()


def registered() -> dict[str, str]:
    """Return what ``register`` has named, for another process to register, each with its ``MODULE:FUNCTION``."""
    return dict(_registered)


def _split(name: str) -> list[str]:
    parts: list[str] = []
    rest: str | None = name
    while rest is not None:
        if rest.startswith("regex:") and parts:
            # A pattern takes the rest.
            return [*parts, rest]
        part, bar, after = rest.partition("|")
        parts.append(part)
        rest = after if bar else None
    return parts


def _found(base: str) -> str:
    """The function that is registered under a name, here or by an entry point."""
    if base in _registered:
        return f"python:{_registered[base]}"
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    if base in installed:
        return f"python:{installed[base].replace(' ', '')}"
    more = "".join(f", {known}" for known in sorted({*_registered, *installed}))
    raise RolloutError(
        f"there is no verifier called {base!r}; there are exact, math, runs, reasoning_gym:TASK and "
        f"python:MODULE:FUNCTION{more}"
    )


def _needs(module: str, library: str, extra: str) -> None:
    if module not in sys.modules and find_spec(module) is None:
        raise RolloutError(f'verifying needs {library}: pip install "isocompute-rollout[{extra}]"')


def _check_reference(base: str) -> None:
    if not re.fullmatch(r"python:[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", base):
        raise RolloutError(f"the verifier {base} must be python:MODULE:FUNCTION, such as python:my_rules:judge")


def _resolved(reference: str) -> Any:
    module, _, function = reference.partition(":")
    found: Any = sys.modules.get(module)
    for name in function.split("."):
        found = getattr(found, name, None)
    return found if module != "__main__" else None
