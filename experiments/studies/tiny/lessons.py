"""Lessons of a teacher for a tiny model, in tokens of one character each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

PAD, END = "<pad>", "<eos>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A response to a prompt, as a teacher would have it.

    Attributes:
        response: What is answered; the end follows.
        targets: How likely the teacher would have been to write each token at each place of the response and after it,
            [characters + 1, tokens]; None where its text is all that is taught.
    """

    prompt: str
    response: str
    targets: np.ndarray | None = None


class Teacher(Protocol):
    """Makes lessons; all of one teacher have targets, or none has."""

    def lesson(self, rng: np.random.Generator) -> Lesson:
        """The next lesson."""
        ...


def vocabulary(characters: str) -> Mapping[str, int]:
    """The token of each character, after those of padding and of the end."""
    return {token: place for place, token in enumerate((PAD, END, *characters))}
