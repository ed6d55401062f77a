"""Judges, which score inside the sandbox: one for each library, chosen by worker pool."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ...errors import RolloutError
from ..rules import decode_metadata
from .equivalence import MathJudge
from .programs import Apart
from .runs import RunsJudge
from .tasks import TaskJudge
from .text import NoGenerator, TextJudge

Scored = Callable[[str], float | bool]
"""Scores a response: 1 where it is right."""


class Judge(Protocol):
    """Scores the rules of one worker pool."""

    def executing(self, base: str) -> bool:
        """Return whether a rule may execute what a response says, so that each response needs a process of its own."""
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


class CallableJudge(NoGenerator):
    """Scores with a function of the user's own, of response, answer and metadata, that is imported by its name.

    Args:
        base: ``python:MODULE:FUNCTION``; a function may stand within a class.

    Attributes:
        sources: Files and folders of the module's package, which stay readable.
    """

    def __init__(self, base: str) -> None:
        module, _, function = base.removeprefix("python:").partition(":")
        try:
            found: Any = importlib.import_module(module)
            for name in function.split("."):
                found = getattr(found, name)
        except Exception as error:
            words = " ".join(str(error).split())
            raise RolloutError(
                f"the verifier {base} cannot be loaded ({type(error).__name__}: {words}); it must name a function in "
                "a module that can be imported"
            ) from None
        if not callable(found):
            raise RolloutError(f"the verifier {base} is no function but of type {type(found).__name__}")
        self._function: Callable[[str, str, dict[str, Any]], bool | float] = found
        self.sources = _sources(module)

    def executing(self, base: str) -> bool:
        """Return True: nobody knows what it does."""
        return True

    def prepare(self, base: str, answer: str, metadata: str) -> Callable[[str], bool | float]:
        """See ``Judge.prepare``: the function with the problem filled in."""
        decoded = decode_metadata(metadata, where=base) if metadata else {}
        return lambda response: self._function(response, answer, decoded)


def _sources(module: str) -> list[str]:
    """Return the folders of the package that an imported module belongs to, or its file where it belongs to none.

    A folder without an ``__init__`` is no package here: a working folder may be one.
    """
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        found = sys.modules[".".join(parts[:length])]
        if found.__file__ is not None:
            return list(getattr(found, "__path__", [found.__file__]))
    return []
