"""Replies of scoring processes, as lines: each is checked when it is read, and written anew when it is passed on."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from typing import Any

from ...errors import RolloutError

Reply = Any
"""A score, or a mapping of one of ``KINDS`` to a text; ``error`` blames the response, ``unusable`` the problem."""
Group = tuple[str, list[str], str, str, list[str]]
"""Rule, extraction words, answer, metadata and responses."""
NO_VERDICT = "the verifier's process wrote something that is not a verdict"
KINDS = ("error", "unusable", "fault", "problem", "probes")
"""Keys of such a mapping."""
READ, COMPLETE = -1, -2
"""Numbers of lines that are not replies: the request was read; all its replies are written."""


class FrameError(RolloutError):
    """A line is not the one expected reply."""


def said(reply: Reply) -> bytes:
    """Return a reply as a line."""
    return json.dumps(reply).encode() + b"\n"


def reply_in(line: bytes, kinds: Collection[str] = KINDS) -> Reply:
    """Return the reply in a line.

    Raises:
        FrameError: The line is anything but one score from 0 to 1, or one text of these kinds.
    """
    if line.find(b"\n") != len(line) - 1:
        raise FrameError(NO_VERDICT)
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise FrameError(NO_VERDICT) from None
    if type(reply) in (int, float) and 0 <= reply <= 1:
        return float(reply)
    if isinstance(reply, dict) and len(reply) == 1:
        ((kind, text),) = reply.items()
        if kind in kinds and isinstance(text, str):
            return {kind: text}
    raise FrameError(NO_VERDICT)


def numbered(request: int, number: int, line: bytes = b"\n") -> bytes:
    """Return a worker's line with the index of the reply, ``READ`` or ``COMPLETE``."""
    return b"%d %d %b" % (request, number, line)


def number_in(line: bytes, request: int) -> tuple[int, bytes]:
    """Return the number in a worker's line, without its line end, and the reply's own line."""
    first, _, rest = line.partition(b" ")
    number, _, reply = rest.partition(b" ")
    if first != b"%d" % request or not number.removeprefix(b"-").isdigit():
        raise FrameError(NO_VERDICT)
    return int(number), reply + b"\n"


def death_in(line: bytes) -> dict[str, Any]:
    """Return how a worker ended: ``died``, and whether to ask ``again``."""
    try:
        end = json.loads(line)
    except (ValueError, RecursionError):
        end = None
    if not isinstance(end, dict) or not isinstance(end.get("died"), str):
        raise FrameError(NO_VERDICT)
    return end


ANSWERS = 64
"""Number of different answers, few enough for the libraries' caches."""


def known_responses(pool: str) -> tuple[Group, Group]:
    """Return a right and a wrong response to score with every batch, so that a forged or dead scorer is noticed.

    A pool of a user function compares texts instead, in the processes that call the function, since no right response
    for the function itself is known.
    """
    number = random.SystemRandom().randrange(ANSWERS)
    if pool == "runs":
        tests = json.dumps([{"input": f"{number}\n", "output": str(number + 1)}])
        right, wrong = (f"print(int(input()) + {more})" for more in (1, 2))
        return ("runs", [], tests, "", [right]), ("runs", [], tests, "", [wrong])
    base = {"math": "math", "reasoning_gym": "reasoning_gym:gcd"}.get(pool, "exact")
    answer = str(number)
    return (base, [], answer, "", [answer]), (base, [], answer, "", [str(number + 1)])
