"""What a setting may be: one sentence for each that may not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import LearnerError


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    # YAML reads 1e-3, without a point, as text.
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def positive(settings: object, *names: str) -> None:
    """Refuse fields that are no positive number.

    Raises:
        LearnerError: A value is out of its range.
    """
    _each(settings, names, lambda value: is_number(value) and value > 0, "a positive number")


def not_negative(settings: object, *names: str) -> None:
    """Refuse fields that are no number, 0 or more.

    Raises:
        LearnerError: A value is out of its range.
    """
    _each(settings, names, lambda value: is_number(value) and value >= 0, "a number, 0 or more")


def share(settings: object, *names: str) -> None:
    """Refuse fields that are no number from 0 to 1.

    Raises:
        LearnerError: A value is out of its range.
    """
    _each(settings, names, lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1")


def whole(settings: object, *names: str, least: int) -> None:
    """Refuse fields that are no whole number of some size.

    Raises:
        LearnerError: A value is out of its range.
    """
    _each(settings, names, lambda value: is_whole(value) and value >= least, f"a whole number, {least} or more")


def one_of(settings: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a field that is none of some names.

    Raises:
        LearnerError: It is another.
    """
    if getattr(settings, name) not in choices:
        raise LearnerError(f"{name} is {getattr(settings, name)!r}; it must be one of {', '.join(choices)}")


def truth(settings: object, *names: str) -> None:
    """Refuse fields that are neither true nor false.

    Raises:
        LearnerError: A value is something else.
    """
    _each(settings, names, lambda value: isinstance(value, bool), "true or false")


def _each(settings: object, names: Sequence[str], right: Callable[[Any], bool], wanted: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not right(value):
            raise LearnerError(f"{name} is {value!r}; it must be {wanted}")
