"""Counts of what was generated, the cohorts they fall into, and the limits set on them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any

from .errors import BudgetError

TRAINING_COHORTS = ("trained", "filtered", "stale", "failed")
"""What became of rollouts generated for training: a partition, whose sum the budget is charged with."""

COHORTS = (*TRAINING_COHORTS, "eval", "pilot")
"""All cohorts; evaluations and pilots are counted apart and never charged to the training budget."""

LARGEST = 2**63 - 1


def whole(value: Any, name: str, *, least: int) -> int:
    """Return ``value`` as an int, or say what is wrong with it.

    Raises:
        BudgetError: It is not a whole number, or lies outside ``least`` to 2**63 - 1.
    """
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= LARGEST:
        raise BudgetError(f"{name} is {value!r}; it has to be a whole number of at least {least}")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was generated. Counts add up with each other and with nothing else.

    A step of 8 problems with 4 rollouts each, prompts of 10 tokens and answers of 15::

        Counts(rollouts=32, prompt_tokens=320, response_tokens=480)

    Attributes:
        rollouts: Responses generated.
        prompt_tokens: Prompt tokens, counted once per response.
        response_tokens: Response tokens generated.

    Raises:
        BudgetError: A count is negative or not a whole number.
    """

    rollouts: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("rollouts", "prompt_tokens", "response_tokens"):
            object.__setattr__(self, name, whole(getattr(self, name), name, least=0))

    def __add__(self, other: object) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        return Counts(
            rollouts=self.rollouts + other.rollouts,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            response_tokens=self.response_tokens + other.response_tokens,
        )

    def __bool__(self) -> bool:
        return bool(self.rollouts or self.prompt_tokens or self.response_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be generated for training; None is no limit.

    Attributes:
        rollouts: A run stops before the step that would exceed it.
        response_tokens: A run stops after the step that reaches it, since a step's tokens are not known
            before they are generated.

    Raises:
        BudgetError: A limit is not a whole number of at least 1.
    """

    rollouts: int | None = None
    response_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("rollouts", "response_tokens"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(value, f"the limit on {name}", least=1))
