"""Deaths during a call: the Ray errors that mean that infrastructure died, not that the called code failed.

Errors are judged by the names of their classes, so that no package needs Ray for it.
"""

from __future__ import annotations

import re

from .errors import InfrastructureError

FEWER = "fewer workers on the node or more memory help, or another RAY_memory_usage_threshold (a share of its memory)"
OF_CODE = frozenset({"CrossLanguageError", "UserCodeException"})
"""Ray errors, besides ``RayTaskError``, that report an error in the called code."""
LONGEST = 300
"""Most characters of a Ray message to show."""


def death(error: BaseException) -> str | None:
    """Why a call ended if its infrastructure died, was lost or had no room; such a call may be repeated.

    This includes a task that failed because of an actor that it called itself, such as an engine or a rank.

    Returns:
        The reason in one line, with the node and a remedy if Ray names them; None for an error in the code.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if "RayTaskError" in names:
        cause = getattr(error, "cause", None)
        # Ray replaces an error that cannot be pickled by one of its own base class.
        return None if cause is None or type(cause).__name__ == "RayError" else death(cause)
    if isinstance(error, InfrastructureError):
        return line(str(error))
    if "RayError" not in names or names & OF_CODE or getattr(error, "actor_init_failed", False):
        return None
    return _out_of_memory(str(error)) if "OutOfMemoryError" in names else _described(error)


def _out_of_memory(text: str) -> str:
    """The report of Ray's memory monitor, without its thirty lines of advice."""
    node, used = _found(r"IP: ([^,\s)]+)", text), _found(r"\bwas ([\d.]+ ?GB[^()\n]*)", text)
    own = _found(r"actual memory used=([\d.]+ ?GB)", text)
    most = re.search(r"PID\s+MEM\(GB\)\s+COMMAND\s+(\d+)\s+([\d.]+)", text)
    details = [used.strip(), own and f"this worker used {own}", most and f"process {most[1]} used {most[2]}GB"]
    shown = "; ".join(filter(None, details))
    return f"the node {node or '(not named)'} ran out of memory{f' ({shown})' if shown else ''}: {FEWER}"


def _described(error: BaseException) -> str:
    """The class of an error, the node if its text names one, and the sentence with the reason."""
    text, kind = str(error), type(error).__name__
    node = _found(r"^\s*ip: (\S+)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s*\w+: \S+$", line)]
    why = next((line for line in lines if re.search(r"because|due to", line)), lines[0] if lines else "")
    # Possible causes, and the exit codes of Ray's own sockets, are uninformative.
    why = line(why.partition(" Worker exit type:")[0].partition(" Some common causes")[0]).rstrip(".")
    killed = "worker process has died" in why
    hint = ". Where the kernel killed it for its memory (dmesg says so), fewer workers on the node help"
    return f"{kind}{f' on node {node}' if node else ''}: {why}{hint if killed else ''}"


def line(text: str) -> str:
    """A text in one line, shortened to a readable length."""
    joined = " ".join(text.split()) or "no reason given"
    return joined if len(joined) <= LONGEST else joined[: LONGEST - 1] + "…"


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, flags=re.MULTILINE)
    return found[1] if found else ""
