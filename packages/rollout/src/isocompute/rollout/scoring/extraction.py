r"""The answer within a response: ``boxed``, ``last_line``, ``after:MARK`` and ``regex:PATTERN``.

A rule's name may be followed by such words, which are applied from left to right: ``exact|boxed``,
``exact|last_line|after::``, ``exact|regex:#### (-?\d+)``. A pattern takes the rest of the name, so that it may contain
``|``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..errors import RolloutError

_BOX = re.compile(r"\\(?P<kind>boxed|fbox)(?![A-Za-z])\s*(?P<brace>\{?)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace that groups, or a character after a backslash, which may be a brace that is shown."""
_ANCHOR = re.compile(r"\$.+\$|\\\(|\\\[|\\boxed")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_THOUSANDS = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_FUNCTIONS = "sqrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|exp|frac|and|cup|cap|inf|infty|mod"
_PROSE = re.compile(
    rf"(?<![A-Za-z0-9{{])(?!(?:{_FUNCTIONS})(?![A-Za-z]))(?:[A-Za-z]{{3,}}|(?i:is|so|we|of|to|it|be|an|in|at|if|as|by|or))"
    r"(?![A-Za-z0-9(^_])"
)
"""A word of English: of three letters or more, since two are as often a product, and no index in braces."""

Extraction = Callable[[str], str | None]
"""The part of a response that holds the answer; None where there is none."""


def extraction(words: Sequence[str]) -> Extraction:
    """Return the function that applies words one after another.

    Args:
        words: ``boxed``, ``last_line``, ``after:MARK`` or ``regex:PATTERN``.

    Raises:
        RolloutError: A word is unknown, a mark or pattern is empty, or a pattern cannot be compiled.
    """
    steps = [_step(word) for word in words]

    def extract(response: str) -> str | None:
        found: str | None = response
        for step in steps:
            if found is None:
                return None
            found = step(found)
        return found

    return extract


def anchored(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words for math-verify: with one more, which puts what they find into the anchor that it needs."""
    if not words:
        return ()
    return (*words, "box" if words[-1] == "boxed" else "formula")


def written(words: Sequence[str], answer: str) -> str:
    """Return a response from which the words extract an answer; a pattern cannot be reversed and is left out."""
    for word in reversed(words):
        if word == "boxed":
            answer = f"\\boxed{{{answer}}}"
        elif word.startswith("after:"):
            answer = word.removeprefix("after:") + answer
    return answer


def boxed(response: str) -> str | None:
    r"""Return what stands in the last ``\boxed{...}``, with balanced braces; in the last ``\fbox{...}`` without any.

    As in the evaluation of MATH (Hendrycks et al., arXiv 2103.03874), ``\boxed 3`` without braces holds what comes
    before the next dollar or the end of the line, and a last box that is not closed holds no answer: a response was
    cut off there, whatever it boxed before.
    """
    boxes = list(_BOX.finditer(response))
    last = next((box for box in reversed(boxes) if box["kind"] == "boxed"), boxes[-1] if boxes else None)
    if last is None:
        return None
    if not last["brace"]:
        return re.split(r"[$\n]", response[last.end() :])[0].strip() or None
    depth = 1
    for brace in _BRACE.finditer(response, last.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return response[last.end() : brace.start()]
    return None


def last_line(response: str) -> str | None:
    """Return the last line that is not blank."""
    return response.strip().rpartition("\n")[2].strip() or None


def after(mark: str) -> Extraction:
    """Return a function that gives what follows the last mark; all of a response that has none."""
    return lambda response: response.rpartition(mark)[2].strip()


def regex(pattern: str) -> Extraction:
    """Return a function that gives the last match of a pattern: its first group, or all of it where there is none.

    Raises:
        RolloutError: It cannot be read.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RolloutError(f"the pattern {pattern!r} of a verifier cannot be read ({error})") from None

    def matched(response: str) -> str | None:
        matches = list(compiled.finditer(response))
        return matches[-1][1 if compiled.groups else 0] if matches else None

    return matched


def box(piece: str) -> str:
    """Return what was found in a box in a box again."""
    return f"\\boxed{{{piece}}}"


def formula(piece: str) -> str:
    r"""Return a line with its formula in dollars: what follows the last word of prose, without marks of Markdown.

    Left as it is, to be read as math-verify reads a response, is a piece that has an anchor already, that has several
    lines, or that ends in prose after a number, such as ``42 apples``; without one its last word is the answer.
    """
    if _ANCHOR.search(piece) or "\n" in piece or _THOUSANDS.fullmatch(piece):
        return piece
    words = list(_PROSE.finditer(_TEXT.sub(lambda match: "0" * len(match[0]), piece)))
    rest = piece
    if words:
        # After prose a colon is punctuation, and no ratio; "a 5" is no product.
        rest = re.sub(r"^a\s+(?=\d)", "", re.split(r":(?=\W*\s)", piece[words[-1].end() :])[-1].lstrip("*_`: "))
    rest = rest.strip("*_`#=:$ \t").removesuffix(".")
    if words and not rest and not re.search(r"\d", piece):
        rest = words[-1][0]
    return f"${rest.replace('**', '^')}$" if rest else piece


def _step(word: str) -> Extraction:
    kind, _, value = word.partition(":")
    if word == "boxed":
        return boxed
    if word == "last_line":
        return last_line
    if word in {"box", "formula"}:
        return box if word == "box" else formula
    if kind in {"after", "regex"}:
        if not value:
            raise RolloutError(f"{kind}: of a verifier needs {'a mark' if kind == 'after' else 'a pattern'} after it")
        return after(value) if kind == "after" else regex(value)
    raise RolloutError(
        f"there is no answer extraction called {word!r}; there are boxed, last_line, after:MARK and regex:PATTERN"
    )
