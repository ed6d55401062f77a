"""``math``: math-verify looks for the answer's value in the response."""

from __future__ import annotations

import gc
import importlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Any

from ...errors import RolloutError
from .. import notation
from .text import Judge, Scored

ANSWERS = 4096
"""Number of parsed reference answers kept."""
SLOW_SECONDS = 0.5
"""Processor time of a response above which the libraries' caches are cleared."""
CLOSE = 1e-3
"""Largest relative difference of equal numbers if one is a decimal and they agree to six decimals."""
EXACT = 1e-14
"""Largest relative difference of equal numbers that are exact or too large for six decimals."""
LARGEST_BITS = 2**18
"""Bits of the largest number to compute; sympy caches up to a thousand results of each function."""
DEEPEST = 100
"""Deepest nesting of brackets that is parsed."""
_APPROX = re.compile(r"\\(?:approx|simeq|thickapprox|doteq)(?![A-Za-z])")
_DECIMAL = re.compile(r"(?:.*=)?\s*-?(\d+(?:\.(\d+))?)\s*(?:\\(?:times|cdot)\s*10\s*\^.*|\\text.*)?")


class MathJudge(Judge):
    """Scores with math-verify, which parses texts itself and executes nothing."""

    def __init__(self) -> None:
        try:
            import math_verify

            # Parses its units now, and not at the first comparison that simplifies.
            importlib.import_module("sympy.physics.units")
        except ImportError as error:
            raise RolloutError(f"math-verify cannot be imported ({error})") from None
        logging.disable(logging.CRITICAL)
        amend()
        self._parse, self._verify = math_verify.parse, math_verify.verify
        self._of_pieces = (math_verify.LatexExtractionConfig(),)
        self._of_prose = (*self._of_pieces, math_verify.ExprExtractionConfig())
        self._gold = lru_cache(maxsize=ANSWERS)(lambda answer: self._values(f"${answer}$"))
        self.equivalent("1", "1")

    def prepare(self, base: str, answer: str, metadata: str) -> Scored:
        """See ``Judge.prepare``: compares with the answer, which is parsed once."""
        return lambda response: self.scored(response, answer)

    def scored(self, response: str, answer: str) -> bool:
        """Return whether a response is right, and free the memory used for it."""
        began = time.process_time()
        try:
            return self.equivalent(response, answer)
        finally:
            # Slow computations are large. sympy would keep them until memory runs out and right answers count as wrong.
            if time.process_time() - began > SLOW_SECONDS:
                forget()

    def equivalent(self, response: str, answer: str) -> bool:
        """Return whether math-verify finds the answer's value in the response, without its own time limit."""
        gold = self._gold(answer)
        if not gold:
            raise RolloutError(f"math-verify reads no value in the reference answer {answer[:60]!r}")
        found = self._values(response)
        return any(self._same(of_gold, of_found) for of_gold in gold for of_found in found)

    def _values(self, text: str) -> list[Any]:
        """Return the values that math-verify finds in a text, with both sides of an approximation; and the LaTeX."""
        # math-verify's timeouts are signals that would replace the worker's.
        piece = (text.startswith("$") and text.endswith("$")) or (text.startswith("\\boxed{") and text.endswith("}"))
        # A number within an unreadable formula is not the formula's value.
        found = self._parse(text, self._of_pieces if piece else self._of_prose, parsing_timeout=None)
        return [value for one in found for value in (one if isinstance(one, Sides) else [one])]

    def _same(self, gold: Any, found: Any) -> bool:
        if huge(gold) or huge(found):
            return bool(gold == found)
        return any(
            self._verify(one, other, timeout_seconds=None, allow_set_relation_comp=True)
            for one, other in readings(gold, found)
        )


class Sides(tuple[Any, ...]):
    """Sides of an approximation, each an answer; empty if they do not agree."""


@cache
def amend() -> None:
    """Let math-verify read ``notation``, and fix comparisons that wrongly find values equal.

    It strips any trailing letters as units, cannot parse percent, compares numbers to six decimals however small they
    are, and treats any two equations without solutions as equal.
    """
    from latex2sympy2_extended.math_normalization import extract_boxed_content
    from math_verify import grader, parser
    from sympy import Float, Mul, Symbol, solve

    normalize, parse = parser.normalize_latex, parser.parse_latex_cached
    numeric_eq, solve_and_compare = grader.sympy_numeric_eq, grader.sympy_solve_and_compare

    def normalized(latex: str, config: Any) -> Any:
        if config.boxed != "none":
            latex = extract_boxed_content(latex, mode=config.boxed)
        return normalize(notation.readable(latex), replace(config, units=False, boxed="none"))

    def parsed(latex: str) -> Any:
        if len(latex) > notation.LONGEST or depth(latex) > DEEPEST:
            raise ValueError("this is no answer, and would take the time of many")
        return sides(latex, parse) if _APPROX.search(latex) else parse(latex)

    def percent(number: Any) -> Any:
        return Mul(number, Symbol("unit-hundredth", real=True), evaluate=False)

    def same_numbers(gold: Any, found: Any, *precision: int) -> bool:
        equal, difference = bool(numeric_eq(gold, found, *precision)), distance(gold, found)
        if difference is None:
            return equal
        if not gold.has(Float) and not found.has(Float):
            return equal and difference <= EXACT
        is_number = not gold.free_symbols and not found.free_symbols
        return (equal and difference <= CLOSE) or (is_number and difference <= EXACT)

    def same_equations(gold: Any, found: Any, *precision: int) -> bool:
        return bool(solve(gold, gold.free_symbols)) and bool(solve_and_compare(gold, found, *precision))

    parser.__dict__.update(normalize_latex=normalized, parse_latex_cached=parsed, convert_to_pct=percent)
    grader.__dict__.update(sympy_numeric_eq=same_numbers, sympy_solve_and_compare=same_equations)


def depth(latex: str) -> int:
    """Return the nesting depth of brackets."""
    return max(accumulate((bracket in "([{") - (bracket in ")]}") for bracket in latex), default=0)


def sides(latex: str, parse: Callable[[str], Any]) -> Any:
    r"""Return the sides of ``a \approx b`` if they are numbers and each is the other rounded, else none.

    A response may not name two numbers so that either counts.
    """
    from latex2sympy2_extended import is_expr_of_only_symbols

    texts = [text.strip() for text in _APPROX.split(latex) if text.strip()]
    found = [parse(text) for text in texts]
    numbers = [_number(value) for value in found]
    # The first side may be the unknown.
    first = int(numbers[0] is None and is_expr_of_only_symbols(found[0]))
    known = list(zip(texts, numbers, strict=True))[first:]
    if not known or any(number is None for _, number in known):
        return parse(latex)
    agree = all(_rounded(*one, *other) for one, other in pairwise(known))
    return Sides(found[first:] if agree else ())


def _number(value: Any) -> Any:
    """Return a value as a number without unit, for an equation its last side; None if it is not a number."""
    from math_verify.grader import is_equation, take_last_relation

    value = read(take_last_relation(value).rhs if is_equation(value) else value, unit=lambda _: 1)
    return value.evalf() if getattr(value, "is_number", False) and value.is_finite and not huge(value) else None


def _rounded(text: str, number: Any, other_text: str, other: Any) -> bool:
    """Return whether a side that is a plain decimal equals the other side, rounded."""
    steps = [0.0]
    for plain, value in ((_DECIMAL.fullmatch(text), number), (_DECIMAL.fullmatch(other_text), other)):
        if plain and float(plain[1]):
            decimals = len(plain[2] or "")
            # Two thirds is often truncated to 0.66.
            steps.append((1 if decimals > 1 else 0.5) * abs(value) / float(plain[1]) / 10**decimals)
    return bool(abs(number - other) <= max(steps))


def read(value: Any, **kinds: Callable[[str], Any]) -> Any:
    """Return a value with its symbols of some kinds (``notation.MARK``) replaced, based on their names."""
    new = {symbol: kinds[kind](name) for symbol, kind, name in marks(value) if kind in kinds}
    return value.xreplace(new) if new else value


def marks(value: Any) -> Iterator[tuple[Any, str, str]]:
    """Yield a value's symbols that are marks, with kind and name."""
    for symbol in getattr(value, "free_symbols", ()):
        mark = notation.MARK.fullmatch(symbol.name)
        if mark:
            yield symbol, mark["kind"], mark["name"]


def readings(gold: Any, found: Any) -> Iterator[tuple[Any, Any]]:
    """Yield interpretations of an answer and a response, as pairs, by the marks that both or only one of them use.

    If both have units, their sizes are compared. A unit or a number's base may be missing on one side, since the
    problem gives it; but a number below 1 without a percent sign is not a percentage.
    """
    from sympy import Rational, Symbol, sympify

    def digits(name: str) -> Any:
        # Digits that do not form a number stay unchanged.
        written = name.partition("-")[2]
        return Rational(written) if re.fullmatch(r"\d+(?:\.\d+)?", written) else Symbol(f"base-{name}", real=True)

    def ratio(name: str) -> Any:
        hour, minute = name.split("-")
        return Rational(int(hour), int(minute))

    if isinstance(gold, str) or isinstance(found, str):
        yield gold, found
        return
    gold, found = alike(gold, found)
    kinds = [{kind for _, kind, _ in marks(value)} for value in (gold, found)]
    one_sided = kinds[0] ^ kinds[1]
    written = {kind: of for kind, of in {"base": digits, "time": ratio}.items() if kind in one_sided}
    gold, found = read(gold, **written), read(found, **written)
    sizes: dict[str, Callable[[str], Any]] = {"unit": lambda name: sympify(notation.size(name))}
    yield read(gold, **sizes), read(found, **sizes)
    if "unit" in one_sided:
        # A letter after a number may also be a variable.
        letters: dict[str, Callable[[str], Any]] = {"unit": lambda name: Symbol(name, real=True)}
        yield read(gold, **letters), read(found, **letters)
        plain = found if "unit" in kinds[0] else gold
        names = {name for value in (gold, found) for _, kind, name in marks(value)}
        below = getattr(plain, "is_number", False) and abs(plain.evalf()) < 1
        if "hundredth" not in names or not below:
            yield read(gold, unit=lambda _: 1), read(found, unit=lambda _: 1)


def alike(*values: Any) -> list[Any]:
    """Return values whose symbols differ only by name: math-verify treats them as real in ``3i``, not in ``3 i``."""
    from sympy import I, Symbol

    symbols = {symbol for value in values for symbol in value.free_symbols}
    if all(symbol.is_real and symbol.name != "i" for symbol in symbols):
        return list(values)
    new = {symbol: I if symbol.name == "i" else Symbol(symbol.name) for symbol in symbols}
    return [value.xreplace(new) if value.free_symbols else value for value in values]


def distance(one: Any, other: Any) -> float | None:
    """Return the relative difference of two values at a fixed point of their symbols; None if there is none."""
    from sympy import Float, Integer, Rational

    try:
        symbols = sorted(one.free_symbols | other.free_symbols, key=str)
        point = {symbol: Rational(17 + 6 * index, 13) for index, symbol in enumerate(symbols)}
        numbers = [value.xreplace(point).doit().evalf(20) for value in (one, other)]
        # A number of precision 1 results from cancellation; it is only known to be small.
        first, second = (Integer(0) if isinstance(n, Float) and n._prec == 1 else n for n in numbers)
        scale = max(abs(first), abs(second))
        return float(abs(first - second) / scale) if scale else 0.0
    except (AttributeError, TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None


def huge(value: Any) -> bool:
    """Return whether a value has too many bits to compute, so that it can only be compared as written."""
    return not isinstance(value, str) and bits(value) > LARGEST_BITS


def bits(value: Any) -> float:
    """Return an upper bound on the bits of any number in the computation of a value."""
    if getattr(value, "is_Rational", False):
        return float(max(int(value.p).bit_length(), int(value.q).bit_length(), 1))
    parts = [bits(part) for part in getattr(value, "args", ())]
    name = type(value).__name__
    if name in {"Pow", "factorial"}:
        exponent = parts[-1] if not value.args[-1].free_symbols else 1.0
        return float(parts[0] * 2.0 ** min(exponent, 512.0))
    return float(sum(parts, 1.0))


def forget() -> None:
    """Clear the caches of sympy, mpmath and math-verify."""
    from math_verify import parser
    from sympy.core.cache import clear_cache

    clear_cache()
    for cached in (parser.extract_latex, parser.parse_expr_cached):
        cached.cache_clear()
    gc.collect()
