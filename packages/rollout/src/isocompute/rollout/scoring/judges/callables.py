"""``python:MODULE:FUNCTION``: the user's own verifier, a function of response, answer and metadata."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from ...errors import RolloutError
from ..rules import decode_metadata
from .text import NoGenerator


class CallableJudge(NoGenerator):
    """Scores with a function that is imported by its name.

    Args:
        base: ``python:MODULE:FUNCTION``; a function may stand within a class.

    Attributes:
        sources: Files and folders of the module's package, which stay readable.

    Raises:
        RolloutError: It cannot be imported or called.
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
