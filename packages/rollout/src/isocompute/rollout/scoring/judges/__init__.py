"""Judges, which score inside the sandbox: one per library, chosen by worker pool."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from ...errors import RolloutError
from ..rules import decode_metadata
from .equivalence import MathJudge
from .programs import Apart
from .runs import RunsJudge
from .tasks import TaskJudge
from .text import Judge, Scored


def load(pool: str, apart: Apart | None = None) -> Judge:
    """Load the library of a pool (``Rule.pool``); programs of ``runs`` may be isolated from this process."""
    if pool == "runs":
        return RunsJudge(apart)
    # ``exact`` runs here only with patterns, on which some responses take for ever.
    kinds: dict[str, Callable[[], Judge]] = {"exact": Judge, "math": MathJudge, "reasoning_gym": TaskJudge}
    return kinds[pool]() if pool in kinds else CallableJudge(pool)


class CallableJudge(Judge):
    """Scores with a user function of response, answer and metadata, imported by name."""

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
        # A folder without an __init__ is not a package here, since it may be the working folder.
        parts, self.sources = module.split("."), list[str]()
        """Paths that stay readable: the folders of the module's package, or its file if it has no package."""
        for length in range(1, len(parts) + 1):
            package = sys.modules[".".join(parts[:length])]
            if package.__file__ is not None:
                self.sources = list(getattr(package, "__path__", [package.__file__]))
                break

    def prepare(self, base: str, answer: str, metadata: str) -> Scored:
        """See ``Judge.prepare``: the function with the problem filled in."""
        decoded = decode_metadata(metadata, where=base) if metadata else {}
        return lambda response: self._function(response, answer, decoded)
