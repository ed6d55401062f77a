r"""The rules that score responses, by name: how an answer is extracted, and what each rule needs.

A name is a rule followed by words separated by ``|``: how the answer is extracted from the response (``extraction``),
and ``partial``. Rules are ``exact``, ``math``, ``runs``, ``reasoning_gym:TASK``, ``python:MODULE:FUNCTION``, and those
named by ``register`` or by the entry points of the group ``isocompute.rollout.verifiers``. Words are ``boxed``,
``last_line``, ``after:MARK``, ``after?:MARK`` and ``regex:PATTERN``, applied from left to right: ``exact|boxed``,
``math|after:</think>|boxed``, ``exact|regex:#### (-?\d+)``. A pattern takes the rest of the name, so that it may
contain ``|``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import RolloutError
from .notation import MEASURED, MONTHS

if TYPE_CHECKING:
    import polars as pl


ENTRY_POINTS = "isocompute.rollout.verifiers"
"""Group of entry points; each is a function of response, answer and metadata."""
QUICK = re.compile(r"boxed|last_line|after\??:.*", re.DOTALL)
"""Words that take a time bounded by the response's length."""
# Responses come from a policy, answers and metadata from a file: all three are data. A scorer that evaluates one of
# them as Python code gets an evaluator that only calculates (``judges.guarded``), and it runs where nothing it did
# could reach the network, a file or a verdict.
_EVAL = "its scorer runs eval on the response"
_PARSE = "its scorer runs sympy's parse_expr, which is an eval, on the response"
_ANSWERLESS = "it gives no answer of its own, so that nothing shows whether its scorer is right"
EXECUTING: Mapping[str, str] = {
    "binary_matrix": _EVAL,
    "bitwise_arithmetic": "its scorer runs eval on the metadata",
    "codeio": "its generator runs exec on programs from a data file",
    "countdown": _PARSE,
    "intermediate_integration": f"{_PARSE} and on the metadata",
    "n_queens": _EVAL,
    "number_sorting": "its scorer runs eval on the reference answer",
    "polynomial_multiplication": f"{_PARSE} and on the reference answer",
    "puzzle24": _PARSE,
    "simple_integration": f"{_PARSE} and on the metadata",
    "spiral_matrix": _EVAL,
    "string_insertion": _EVAL,
}
"""Tasks that execute the response, the reference answer, the metadata or a program; they need an isolated sandbox."""
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "boxnet": _ANSWERLESS,
        "composite": "it only mixes other tasks, which are better given as sources of their own",
        "game_of_life_halting": "its scorer accepts every response that is not empty",
        "propositional_logic": "its scorer accepts a premise repeated as the conclusion",
        "rush_hour": _ANSWERLESS,
    }
)
"""Tasks from which no problem may come, with the reason."""
EXTRACTION: Mapping[str, tuple[str, ...]] = {
    # Its prompt ends in "=", and worked solutions continue: 2+3=5.
    "chain_sum": ("after?:=",)
}
"""Extraction words of tasks, for rule names without any."""
TUPLE = "__tuple__"
"""Marks a tuple, ``{"__tuple__": [...]}``: JSON has no tuples, and some scorers compare with them."""
Extraction = Callable[[str], str | None]
"""Returns the part of a response with the answer; None if there is none."""
_BOX = re.compile(r"\\(?P<kind>boxed|fbox)(?![A-Za-z])\s*(?P<brace>\{?)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A grouping brace, or a character after a backslash, which may be a literal brace."""
_ANCHOR = re.compile(r"\$.+\$|\\\(|\\\[|\\boxed")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_THOUSANDS = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_FUNCTIONS = f"sqrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|exp|frac|and|cup|cap|inf|infty|mod|{MONTHS}"
_DENIED = re.compile(r"(?:\b(?:no|not|never|infinitely|all)\s+(?:\w+\s+)?)?\w+$", re.IGNORECASE)
"""The last word of a line, with a preceding word that negates it."""
_PROSE = re.compile(
    rf"(?<![A-Za-z0-9{{])(?!(?:{_FUNCTIONS})(?![A-Za-z]))(?:[A-Za-z]{{3,}}|(?i:is|so|we|of|to|it|be|an|in|at|if|as|by|or))"
    r"(?![A-Za-z0-9(^_])"
)
"""An English word of at least three letters, since two are as often a product; not an index in braces."""
_registered: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, parsed from its name.

    Attributes:
        base: The rule without words; a registered one as ``python:MODULE:FUNCTION``.
        words: How the answer is extracted.
        partial: Whether a fraction counts as the reward.
    """

    name: str
    base: str
    words: tuple[str, ...]
    partial: bool

    @property
    def pool(self) -> str:
        """The library that scores it; each library has a pool of processes."""
        return self.base.partition(":")[0] if self.base.startswith("reasoning_gym:") else self.base

    @property
    def inline(self) -> bool:
        """Whether it needs no process: a comparison of texts, without a pattern that could take for ever."""
        return self.base == "exact" and all(QUICK.fullmatch(word) for word in self.words)

    def written(self, answer: str) -> str:
        """Return a reference answer as a policy would write it."""
        # A policy is asked to box what math-verify reads; a pattern cannot be reversed.
        for word in reversed(self.words or (("boxed",) if self.base == "math" else ())):
            if word == "boxed":
                answer = box(answer)
            elif word.startswith(("after:", "after?:")):
                answer = word.partition(":")[2] + answer
        return answer


@cache
def rule(name: str) -> Rule:
    """Return the rule of a name.

    Raises:
        RolloutError: There is no such rule or extraction, the library it needs is not installed, or the task is refused
            (``REFUSED``).
    """
    # A pattern takes the rest of the name.
    plain, bar, pattern = name.partition("|regex:")
    base, *words = [*plain.split("|"), *([f"regex:{pattern}"] if bar else [])]
    partial = "partial" in words
    words = [word for word in words if word != "partial"]
    extraction(tuple(words))
    if base.startswith("reasoning_gym:"):
        task = base.partition(":")[2]
        check_task(task)
        words = words or list(EXTRACTION.get(task, ()))
        _needs("reasoning_gym", "reasoning-gym", "reasoning-gym")
    elif base == "math":
        _needs("math_verify", "math-verify", "math")
        # math-verify needs an anchor around the extracted text.
        words += ["box" if words[-1] == "boxed" else "formula"] if words else []
    elif base.startswith("python:"):
        _check_reference(base)
    elif base not in {"exact", "runs"}:
        installed = {point.name: point.value.replace(" ", "") for point in entry_points(group=ENTRY_POINTS)}
        named = {**installed, **_registered}
        if base not in named:
            more = "".join(f", {known}" for known in sorted(named))
            raise RolloutError(
                f"there is no verifier called {base!r}; there are exact, math, runs, reasoning_gym:TASK and "
                f"python:MODULE:FUNCTION{more}"
            )
        base = f"python:{named[base]}"
    return Rule(name=name, base=base, words=tuple(words), partial=partial)


def own_response(name: str, answer: str) -> tuple[str, str]:
    """Return a problem's own answer as a response, and the rule to score it with.

    For a pattern no such response can be made, so the rule without the pattern is used.
    """
    found = rule(name)
    if any(word.startswith("regex:") for word in found.words):
        found = rule(found.base)
    return found.name, found.written(answer)


def register(name: str, function: str) -> None:
    """Register a verifier of your own under a name.

    Args:
        name: Name of the rule, for the ``verifier`` column.
        function: ``MODULE:FUNCTION``, called with the response, the answer and the decoded metadata (a mapping) in a
            process of the sandbox. It returns whether the response is right, or a number from 0 to 1.

    Raises:
        RolloutError: The name is taken or invalid, or the function has none.
    """
    if not re.fullmatch(r"[\w.-]+", name) or name in {"exact", "math", "partial", "runs"}:
        raise RolloutError(f"a verifier cannot be called {name!r}: a new name of letters, digits, . and - is needed")
    _check_reference(f"python:{function}")
    if _registered.get(name, function) != function:
        raise RolloutError(f"there is a verifier called {name} already: {_registered[name]}")
    _registered[name] = function
    rule.cache_clear()


def registered() -> dict[str, str]:
    """Return registered names with their ``MODULE:FUNCTION``, for another process to register."""
    return dict(_registered)


def _needs(module: str, library: str, extra: str) -> None:
    if module not in sys.modules and find_spec(module) is None:
        raise RolloutError(f'verifying needs {library}: pip install "isocompute-rollout[{extra}]"')


def _check_reference(base: str) -> None:
    if not re.fullmatch(r"python:[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", base):
        raise RolloutError(f"the verifier {base} must be python:MODULE:FUNCTION, such as python:my_rules:judge")


def may_execute(base: str) -> bool:
    """Return whether a rule may execute what a response says, so that each response needs its own process."""
    # The behaviour of a user function is unknown, and rules that start programs are ended together with them.
    return base == "runs" or base.startswith("python:") or base.removeprefix("reasoning_gym:") in EXECUTING


def check_task(task: str) -> None:
    """Refuse a task that is in ``REFUSED``."""
    if task in REFUSED:
        raise RolloutError(f"reasoning-gym's task {task} is refused: {REFUSED[task]}")


@lru_cache(maxsize=1024)
def extraction(words: tuple[str, ...]) -> Extraction:
    """Return the function that applies the words in order."""
    steps = [_step(word) for word in words]

    def extract(response: str) -> str | None:
        found: str | None = response
        for step in steps:
            if found is None:
                return None
            found = step(found)
        return found

    return extract


def _step(word: str) -> Extraction:
    kind, _, value = word.partition(":")
    plain: dict[str, Extraction] = {"boxed": boxed, "last_line": last_line, "box": box, "formula": formula}
    if word in plain:
        return plain[word]
    if kind in {"after", "after?", "regex"}:
        if not value:
            raise RolloutError(f"{kind}: of a verifier needs {'a pattern' if kind == 'regex' else 'a mark'} after it")
        return regex(value) if kind == "regex" else after(value, required=kind == "after")
    raise RolloutError(
        f"there is no answer extraction called {word!r}; there are boxed, last_line, after:MARK, after?:MARK and "
        "regex:PATTERN"
    )


def boxed(response: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}``, with balanced braces, or else of the last ``\fbox{...}``.

    As in the evaluation of MATH (Hendrycks et al., arXiv 2103.03874), ``\boxed 3`` without braces contains the text
    before the next dollar or the end of the line. A last box that is not closed contains no answer: the response was
    truncated there, whatever it boxed before.
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


def after(mark: str, *, required: bool = True) -> Extraction:
    """Return a function that returns the text after the last mark.

    If the mark is required, a response without it has no answer, for example if it was truncated during thinking;
    otherwise the whole response is used.
    """

    def follows(response: str) -> str | None:
        _, found, rest = response.rpartition(mark)
        return rest.strip() if found or not required else None

    return follows


def regex(pattern: str) -> Extraction:
    """Return a function that finds the last match of a pattern: its first group, or all of it without groups."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RolloutError(f"the pattern {pattern!r} of a verifier cannot be read ({error})") from None

    def matched(response: str) -> str | None:
        matches = list(compiled.finditer(response))
        return matches[-1][1 if compiled.groups else 0] if matches else None

    return matched


def box(piece: str) -> str:
    """Put the content of a box back into a box."""
    return f"\\boxed{{{piece}}}"


def formula(piece: str) -> str:
    r"""Return a line with its formula in dollars: the text after the last word of prose, without Markdown marks.

    A piece stays unchanged, for math-verify to read like a response, if it already has an anchor, has several lines, or
    ends in prose after a number, such as ``42 apples``. Without a number, its last word is the answer.
    """
    if _ANCHOR.search(piece) or "\n" in piece or _THOUSANDS.fullmatch(piece):
        return piece
    # A LaTeX text and a unit after a number belong to the formula.
    masked = _TEXT.sub(lambda text: "0" * len(text[0]), piece)
    masked = MEASURED.sub(lambda found: "0" * len(found[0]) if any(found.groups()) else found[0], masked)
    words = list(_PROSE.finditer(masked))
    rest = piece
    if words:
        # After prose a colon is punctuation and not a ratio; "a 5" is not a product.
        rest = re.sub(r"^a\s+(?=\d)", "", re.split(r":(?=\W*\s)", piece[words[-1].end() :])[-1].lstrip("*_`: "))
    rest = rest.strip("*_`#=:$ \t")
    rest = rest if rest.endswith("..") else rest.removesuffix(".")
    if words and not rest and not re.search(r"\d", piece) and (end := _DENIED.search(piece[: words[-1].end()])):
        rest = end[0]
    return f"${rest.replace('**', '^')}$" if rest else piece


def encode_metadata(value: Any) -> str:
    """Return metadata as JSON text; equal values give equal texts.

    Arrays and sets become lists; dates and everything else that JSON cannot hold become texts.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def decode_metadata(text: str, *, where: str) -> dict[str, Any]:
    """Return the mapping written by ``encode_metadata``, with its tuples."""
    try:
        value = json.loads(text, object_hook=_restored)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RolloutError(f"the metadata of a problem of {where} are not a JSON mapping: {text[:60]!r}")
    return value


def from_column(value: Any, *, where: str) -> str:
    """Return the text for a value of a user's column: a mapping, its JSON text, or nothing."""
    if value is None or value == "":
        return ""
    if not isinstance(value, str | Mapping):
        raise RolloutError(f"the metadata of a problem of {where} are not a JSON mapping: {str(value)[:60]!r}")
    return encode_metadata(decode_metadata(value, where=where) if isinstance(value, str) else value)


def metadata_of(problems: pl.DataFrame) -> list[str]:
    """Return each problem's metadata; empty text if there is none."""
    if "metadata" not in problems.columns:
        return [""] * len(problems)
    return [text or "" for text in problems["metadata"].to_list()]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [_plain(inner) for inner in value]}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in value), key=repr)
    # Before numbers, since numpy's float64 is a float.
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _restored(value: dict[str, Any]) -> Any:
    return tuple(value[TUPLE]) if value.keys() == {TUPLE} and isinstance(value[TUPLE], list) else value
