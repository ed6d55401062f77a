"""Responses known to be right or wrong, scored with every batch: a scorer that is forged or dead does not go unseen."""

from __future__ import annotations

import json
import random

from ...errors import RolloutError
from .frames import Reply

Group = tuple[str, list[str], str, str, list[str]]
"""Rule, words of extraction, answer, metadata and responses."""
ANSWERS = 64
"""Different answers, few enough that libraries keep what they make of them."""


def canaries(lane: str) -> tuple[Group, Group]:
    """Return a right response and a wrong one.

    A lane of a user's own function has those of a comparison of texts, in the processes that call the function: what is
    right for the function itself, nobody here knows.
    """
    number = random.SystemRandom().randrange(ANSWERS)
    if lane == "runs":
        tests = json.dumps([{"input": f"{number}\n", "output": str(number + 1)}])
        right, wrong = (f"print(int(input()) + {more})" for more in (1, 2))
        return ("runs", [], tests, "", [right]), ("runs", [], tests, "", [wrong])
    base = {"math": "math", "reasoning_gym": "reasoning_gym:gcd"}.get(lane, "exact")
    answer = str(number)
    return (base, [], answer, "", [answer]), (base, [], answer, "", [str(number + 1)])


def check(lane: str, reply: Reply, *, right: bool) -> str:
    """Return how a known response could not be scored; an empty text where it got its score.

    Raises:
        RolloutError: It got another score.
    """
    if isinstance(reply, dict):
        return str(next(iter(reply.values())))
    if (reply == 1.0) != right:
        known = "right" if right else "wrong"
        raise RolloutError(
            f"the processes that score {lane} gave {reply:g} to a response known to be {known}: no verdict of theirs "
            "can be believed; a library or a rule there has replaced what scores"
        )
    return ""
