"""``math``: math-verify finds the answer's value in the response."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ...errors import RolloutError
from .text import NoGenerator

ANSWERS = 4096
"""Parsed reference answers kept."""


class MathJudge(NoGenerator):
    """Scores with math-verify, which parses texts itself and executes nothing.

    Raises:
        RolloutError: math-verify cannot be imported.
    """

    def __init__(self) -> None:
        try:
            import math_verify

            # Its units are parsed when a comparison first simplifies.
            importlib.import_module("sympy.physics.units")
        except ImportError as error:
            raise RolloutError(f"math-verify cannot be imported ({error})") from None
        logging.disable(logging.CRITICAL)
        self._parse, self._verify = math_verify.parse, math_verify.verify
        self._gold = lru_cache(maxsize=ANSWERS)(self._parsed)
        self.equivalent("1", "1")

    def executing(self, base: str) -> bool:
        """Return False."""
        return False

    def prepare(self, base: str, answer: str, metadata: str) -> Callable[[str], bool]:
        """See ``Judge.prepare``: the comparison with the answer, which is parsed once."""
        return lambda response: self.equivalent(response, answer)

    def equivalent(self, response: str, answer: str) -> bool:
        """Return whether math-verify finds the answer's value in the response, without a limit of its own.

        Raises:
            RolloutError: It finds no value in the answer itself, so that no response could be right.
        """
        gold = self._gold(answer)
        if not gold:
            raise RolloutError(f"math-verify reads no value in the reference answer {answer[:60]!r}")
        # Its own timeouts are signals, which would take the place of the worker's.
        found = self._parse(response, parsing_timeout=None)
        return bool(self._verify(list(gold), found, timeout_seconds=None))

    def _parsed(self, answer: str) -> tuple[Any, ...]:
        return tuple(self._parse(f"${answer}$", parsing_timeout=None))
