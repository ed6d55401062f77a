"""Evaluators that only calculate, for scorers that would evaluate a text as Python code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

LONGEST = 4096
"""Characters of the longest text to evaluate."""
LARGEST_BITS = 4096
"""Bits of the largest integer in a calculation."""
FUNCTIONS = frozenset({
    "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "acot", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "Abs", "pi", "erf",
})  # fmt: skip
"""Names allowed in a mathematical expression, besides single letters."""

_TOKEN = re.compile(r"\s+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?P<name>[A-Za-z]\w*)|\*\*|[-+*/^(),]", re.ASCII)
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}


def evaluate(text: str) -> Any:
    """Return the value of literals, lists of them and integer arithmetic; replaces ``eval``.

    Raises:
        ValueError: The text is anything else or too long, or its value is too large.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ValueError(f"no text of at most {LONGEST} characters")
    return _value(ast.parse(text.strip(), mode="eval").body)


def checked(text: str, names: frozenset[str] = FUNCTIONS, *, letters: bool = True) -> str:
    """Return a mathematical expression unchanged if it contains only numbers, operators, parentheses and names."""
    if len(text) > LONGEST:
        raise ValueError(f"the expression has more than {LONGEST} characters")
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        name = token["name"] if token else None
        if token is None or (name and name not in names and not (letters and len(name) == 1)):
            raise ValueError(f"the expression may not hold {name or text[place]!r}")
        place = token.end()
    return text


def guarded_parser(
    parse: Callable[..., Any], names: frozenset[str] = FUNCTIONS, *, letters: bool = True
) -> Callable[..., Any]:
    """Return sympy's ``parse_expr`` for expressions that pass ``checked``."""

    def parse_expr(text: str, *values: Any, **options: Any) -> Any:
        return parse(checked(text, names, letters=letters), *values, **options)

    return parse_expr


def guarded_module(real: ModuleType, **names: Any) -> ModuleType:
    """Return a copy of a module with a few names replaced."""
    module = ModuleType(real.__name__)
    module.__dict__.update({**vars(real), **names})
    return module


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and not isinstance(node.value, bytes):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = [_value(item) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else set(items) if isinstance(node, ast.Set) else items
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_number(_value(node.operand)))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _number(_value(node.left)), _number(_value(node.right))
        if isinstance(node.op, ast.LShift) and right > LARGEST_BITS:
            raise ValueError("the value is too large")
        return _number(_BINARY[type(node.op)](left, right))
    raise ValueError(f"no literal and no arithmetic: {type(node).__name__}")


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise ValueError(f"no number: {type(value).__name__}")
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        raise ValueError("the value is too large")
    return value
