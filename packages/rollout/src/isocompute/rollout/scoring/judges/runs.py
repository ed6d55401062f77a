r"""``runs``: the response is a program, and is right if it prints what each of the problem's tests expects.

The answer of a problem is the JSON list of its tests, ``[{"input": "3 4\n", "output": "7"}, ...]``, or a mapping of
``tests`` and ``seconds``, the processor time of each. The program is the response's last block of Python, or all of it
(``program_of``). It runs once per test in its own process, which gets the input and has no way to the verdict.
"""

from __future__ import annotations

import builtins
import json
import math
import re
import signal
import symtable
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import cache
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...errors import ProblemError, RolloutError
from .programs import Apart, Ran, run
from .text import Judge, Scored

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

CLOCK_FACTOR = 10.0
"""Wall time of a test as a multiple of its processor time, since the machine may be busy."""
COMPARING_SECONDS = 0.1
"""Processor time of a response that is reserved for the process which starts programs and compares their output."""
START_SECONDS = 20.0
"""Timeout of the program that checks whether programs can be run."""
MORE_OUTPUT = 1 << 16
"""Bytes that a program may print beyond the expected output."""
TOLERANCE = Decimal("1e-6")
"""Absolute or relative difference of equal numbers, if the expected one has a point or an exponent."""
_WIDE = Context(prec=128, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Precision that holds every difference of two numbers."""
FAULTS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
"""Errors from compiling a text that is not a program."""
_NUMBER = re.compile(r"[+-]?(\d{1,64}(\.\d{0,64})?|\.\d{1,64})([eE][+-]?\d{1,6})?", re.ASCII)
_PYTHON = re.compile(
    r"(?:\{(?:[^}]*[\s.])?|\S*\.)?(?:python|pypy|py)(?:[\s-]?[23](?:\.\d+)*)?(?![\w.+-])", re.ASCII | re.IGNORECASE
)
"""Start of an info string that means Python: ``py``, ``Python 3``, ``{.python #id}``, ``main.py``."""


class DigitsLimitError(ValueError):
    """A program converted an integer of more than 4,300 digits from or to text, which CPython refuses by default."""


LIMITS = (
    (re.compile(rb"RecursionError\b"), RecursionError("a program went deeper than CPython's 1,000 calls")),
    (re.compile(rb"MemoryError\b"), MemoryError("a program needed more memory than it may have")),
    (
        re.compile(rb"(?:Value|Syntax)Error: Exceeds the limit \(\d+(?: digits)?\) for integer string conversion"),
        DigitsLimitError("a program converted a whole number beyond CPython's 4,300 digits"),
    ),
    (
        re.compile(rb"BlockingIOError: \[Errno 11\]|RuntimeError: can't start new thread"),
        BlockingIOError("a program started more processes and threads than it may"),
    ),
)
"""Last lines of programs that hit a limit, and the error for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """Input of a program, its expected output, and how far its numbers may be off (None: ``TOLERANCE``)."""

    input: str
    output: str
    tolerance: Decimal | None = None


class RunsJudge(Judge):
    """Runs programs and compares their output."""

    def __init__(self, apart: Apart | None = None) -> None:
        self._apart = apart or Apart()
        _markdown()
        if self._apart.command:
            tried = run("print(input())", b"1\n", self._apart, seconds=START_SECONDS, most=2)
            if tried.output != b"1\n":
                raise RolloutError(f"{self._apart.command[0]} starts no program (exit code {tried.code})")

    def prepare(self, base: str, answer: str, metadata: str) -> Scored:
        """See ``Judge.prepare``: the fraction of tests that a response's program passes."""
        tests, seconds = tests_of(answer) if answer else ((), None)
        return lambda response: self._share(program_of(response), tests, seconds)

    def _share(self, program: str, tests: Sequence[Test], seconds: float | None) -> float:
        if not tests:
            raise ProblemError("the answer of a problem for runs is empty; it must hold the tests of a program")
        # A child of the sandbox has this much time for itself and all programs; beyond it, both are killed.
        left = (signal.getitimer(signal.ITIMER_PROF)[0] or math.inf) - COMPARING_SECONDS
        passed = 0
        met: Exception | None = None
        for test in tests:
            most = len(test.output.encode()) + MORE_OUTPUT
            allowed = min(seconds or math.inf, left)
            clock = min(allowed * CLOCK_FACTOR, 1e6)
            ran = run(program, test.input.encode(), self._apart, seconds=clock, processor_seconds=allowed, most=most)
            slow, left = ran.late or ran.seconds > allowed, left - ran.seconds
            met = met or _limit(ran, slow=slow)
            if not slow and ran.code == 0 and len(ran.output) <= most:
                passed += same_output(ran.output.decode(errors="replace"), test.output, test.tolerance)
            if slow or left < 0:
                # A program that times out once would use all its time again.
                break
        if met is not None and not passed:
            raise met
        return passed / len(tests)


def _limit(ran: Ran, *, slow: bool) -> Exception | None:
    """Return the limit that ended a program; the program's own message can only excuse a score of 0."""
    if slow:
        return TimeoutError("a program took more than its time")
    return next((limit for line, limit in LIMITS if ran.code and line.match(ran.error)), None)


def tests_of(answer: str) -> tuple[tuple[Test, ...], float | None]:
    """Read the tests of a problem, and the processor time of each (s) if it is limited."""
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


def program_of(response: str) -> str:
    """Return the program in a response: its last closed block that is tagged as Python.

    If there is none, it is the last untagged block that is a program and prints, or else the last one that compiles; a
    program's output (``7``) and formulas may also compile. Blocks of another language, interactive sessions, and usage
    examples that need names from earlier blocks are never the program. Without any Python block, it is the whole
    response.
    """
    blocks = [(info, text) for info, text in _blocks(response) if text.strip() and not text.lstrip().startswith(">>>")]
    if not blocks or _code(response) is not None:
        # The fences are inside a program's own texts.
        return response
    tagged = [text for info, text in blocks if _PYTHON.match(info)]
    compiled = [(text, code) for info, text in blocks if not info and (code := _code(text)) is not None]
    printing = [text for text, code in compiled if _prints(code)]
    return _last(tagged or printing or [text for text, _ in compiled] or [response])


def _last(texts: Sequence[str]) -> str:
    """Return the last text that uses no name bound only by earlier texts."""
    found, bound = texts[0], set[str]()
    for text in texts:
        own, needed = _names(text)
        if bound.isdisjoint(needed):
            found = text
        bound |= own
    return found


def _names(text: str) -> tuple[set[str], set[str]]:
    """Return the global names that a program binds, and those that it needs from elsewhere, as far as known."""
    try:
        tables = [symtable.symtable(text, "<program>", "exec")]
    except FAULTS:
        return set(), set()
    own, used = set(), set()
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is tables[0] or symbol.is_global():
                own |= {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()
                used |= {symbol.get_name()} if symbol.is_referenced() else set()
    # The names from a star import are unknown.
    return own, set() if "import *" in text else used - own - set(dir(builtins))


def _blocks(response: str) -> Iterator[tuple[str, str]]:
    """Yield the info string and text of each fenced block, as CommonMark reads them, except for one that is cut off.

    An HTML tag such as ``<answer>`` is text here: what follows it on the next line is Markdown.
    """
    source = re.sub(r"\r\n?", "\n", response) + "\n"
    for token in _markdown().parse(source):
        if token.type == "fence" and token.map is not None:
            first, end = token.map
            # Without a closing fence a block ends with its list or quotation, or is cut off.
            if end - first == token.content.count("\n") + 2 or end < source.count("\n"):
                yield token.info.strip(), token.content.removesuffix("\n")


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").disable("html_block")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _code(text: str) -> CodeType | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, "<program>", "exec", dont_inherit=True)
    except FAULTS:
        return None


def _prints(code: CodeType) -> bool:
    """Return whether code, or a function in it, uses a name that programs print with."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return not {"print", "write", "writelines"}.isdisjoint(code.co_names) or any(map(_prints, inner))


def same_output(printed: str, wanted: str, tolerance: Decimal | None = None) -> bool:
    """Return whether two outputs have the same words per line; numbers by value, trailing empty lines ignored.

    Args:
        tolerance: Absolute or relative difference of equal numbers. None: ``TOLERANCE`` for expected numbers with a
            point or an exponent, and 0 for others.
    """
    ours, theirs = ([line.split() for line in text.rstrip().split("\n")] for text in (printed, wanted))
    return [len(words) for words in ours] == [len(words) for words in theirs] and all(
        _same_word(*pair, tolerance) for lines in zip(ours, theirs, strict=True) for pair in zip(*lines, strict=True)
    )


def _same_word(ours: str, theirs: str, tolerance: Decimal | None) -> bool:
    if ours == theirs:
        return True
    if not (_NUMBER.fullmatch(ours) and _NUMBER.fullmatch(theirs)):
        return False
    number, right = Decimal(ours), Decimal(theirs)
    if number == right:
        return True
    if tolerance is None:
        tolerance = Decimal(0) if theirs.lstrip("+-").isdigit() else TOLERANCE
    difference = _WIDE.abs(_WIDE.subtract(number, right))
    return difference <= _WIDE.multiply(tolerance, max(Decimal(1), abs(right)))


def _test(number: int, value: Any) -> Test:
    if not isinstance(value, dict) or not {"input", "output"} <= value.keys() <= {"input", "output", "tolerance"}:
        raise ProblemError(
            f'test {number} of a problem for runs is no mapping of "input" and "output", with a "tolerance" or without'
        )
    if not all(isinstance(value[key], str) for key in ("input", "output")):
        raise ProblemError(f"test {number} of a problem for runs must have texts as input and output")
    tolerance = value.get("tolerance")
    if tolerance is not None and (type(tolerance) not in (int, float) or not 0 <= tolerance < math.inf):
        raise ProblemError(
            f"the tolerance of test {number} of a problem for runs is {tolerance!r}; it must be a number of at least 0"
        )
    exact = None if tolerance is None else Decimal(repr(tolerance))
    return Test(input=value["input"], output=value["output"], tolerance=exact)
