r"""``runs``: the response is a program, and is right when it prints what each of the problem's tests wants.

The answer of a problem is the JSON list of its tests, ``[{"input": "3 4\n", "output": "7"}, ...]``, or a mapping of
``tests`` and ``seconds``, the processor time of each. The program is the last fenced code block of the response, or all
of it. It runs once for each test in a process of its own, which gets the input and has no way to the verdict.
"""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ...errors import ProblemError, RolloutError
from .programs import Apart, run, spent
from .text import NoGenerator

CLOCK_FACTOR = 10.0
"""Time by the clock that a test may take, in multiples of its processor time: the machine may be busy."""
COMPARING_SECONDS = 0.1
"""Processor time of a response that is left to the process which starts programs and compares."""
START_SECONDS = 20.0
"""Timeout of the program that shows whether programs can be run."""
MORE_OUTPUT = 1 << 16
"""Bytes that a program may print besides as many as it should."""
_NUMBER = re.compile(r"[+-]?(\d{1,64}(\.\d{0,64})?|\.\d{1,64})([eE][+-]?\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """Input of a program, and the output that it must print."""

    input: str
    output: str


class RunsJudge(NoGenerator):
    """Runs programs and compares what they print.

    Args:
        apart: Keeps a program apart from this process.

    Raises:
        RolloutError: No program can be run so.
    """

    def __init__(self, apart: Apart | None = None) -> None:
        self._apart = apart or Apart()
        if self._apart.command:
            tried = run("print(input())", b"1\n", self._apart, seconds=START_SECONDS, most=2)
            if tried.output != b"1\n":
                raise RolloutError(f"{self._apart.command[0]} starts no program (exit code {tried.code})")

    def executing(self, base: str) -> bool:
        """Return True: the process that starts programs is ended with them."""
        return True

    def prepare(self, base: str, answer: str, metadata: str) -> Callable[[str], float]:
        """See ``Judge.prepare``: the share of tests that a response's program passes."""
        tests, seconds = tests_of(answer) if answer else ((), None)
        return lambda response: self._share(program_of(response), tests, seconds)

    def _share(self, program: str, tests: Sequence[Test], seconds: float | None) -> float:
        if not tests:
            raise ProblemError("the answer of a problem for runs is empty; it must hold the tests of a program")
        # A child of the sandbox has so much time for itself and all programs; what takes more is ended with it.
        left = (signal.getitimer(signal.ITIMER_PROF)[0] or math.inf) - COMPARING_SECONDS
        passed, start = 0, spent()
        for test in tests:
            before, most = spent(), len(test.output.encode()) + MORE_OUTPUT
            allowed = min(seconds or math.inf, left - (before - start))
            clock = min(allowed * CLOCK_FACTOR, 1e6)
            ran = run(program, test.input.encode(), self._apart, seconds=clock, processor_seconds=allowed, most=most)
            slow = ran.late or spent() - before > allowed
            if not slow and ran.code == 0 and len(ran.output) <= most:
                passed += same_output(ran.output.decode(errors="replace"), test.output)
            if slow or spent() - start > left:
                # What does not end in time once would take all its time again.
                break
        return passed / len(tests)


def tests_of(answer: str) -> tuple[tuple[Test, ...], float | None]:
    """Read the tests of a problem, and the processor time of each in s, if there is a limit.

    Raises:
        ProblemError: They are no JSON of this form.
    """
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        value = None
    value = {"tests": value} if isinstance(value, list) else value
    if not isinstance(value, dict) or not isinstance(value.get("tests"), list) or value.keys() - {"tests", "seconds"}:
        raise ProblemError(
            f'the answer of a problem for runs is {answer[:60]!r}; it must be [{{"input": ..., "output": ...}}, ...] '
            'or {"tests": [...], "seconds": ...}'
        )
    seconds = value.get("seconds")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds <= 3600):
        raise ProblemError(f"seconds of a test is {seconds!r}; it must be a number above 0 and at most 3600")
    if not value["tests"]:
        raise ProblemError("the answer of a problem for runs holds no tests")
    return tuple(_test(i, test) for i, test in enumerate(value["tests"], 1)), seconds


def tests_fault(answer: str) -> str:
    """Return why no program can be tested by an answer; an empty text where one can."""
    try:
        tests_of(answer)
    except ProblemError as error:
        return str(error)
    return ""


def program_of(response: str) -> str:
    """Return the last fenced code block of a response that is closed; all of the response where there is none."""
    found = response
    block: list[str] | None = None
    for line in response.split("\n"):
        if block is None and line.lstrip().startswith("```"):
            block = []
        elif block is not None and line.strip() == "```":
            found, block = "\n".join(block), None
        elif block is not None:
            block.append(line)
    return found


def same_output(printed: str, wanted: str) -> bool:
    """Return whether outputs have the same words in each line; numbers by value, and without empty lines at the end."""
    ours, theirs = ([line.split() for line in text.rstrip().split("\n")] for text in (printed, wanted))
    return [len(words) for words in ours] == [len(words) for words in theirs] and all(
        _same_word(*pair) for lines in zip(ours, theirs, strict=True) for pair in zip(*lines, strict=True)
    )


def _same_word(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    return bool(_NUMBER.fullmatch(ours) and _NUMBER.fullmatch(theirs)) and Decimal(ours) == Decimal(theirs)


def _test(number: int, value: Any) -> Test:
    if not isinstance(value, dict) or value.keys() != {"input", "output"}:
        raise ProblemError(f'test {number} of a problem for runs is no mapping of "input" and "output"')
    if not all(isinstance(text, str) for text in value.values()):
        raise ProblemError(f"test {number} of a problem for runs must have texts as input and output")
    return Test(**value)
