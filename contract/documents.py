"""YAML, JSON and TOML from others, within bounds: aliases let a short file expand without end."""

from __future__ import annotations

import json
import tomllib
from typing import Any, Literal

from .errors import IsoComputeError, printable
from .files import reason_of

DEEPEST = 100
"""Most levels in a document."""
LARGEST = 4_000_000
"""Most values and characters in a YAML document, with each alias expanded."""


class DocumentError(IsoComputeError):
    """A text is not a document of its kind; the message says why, and the caller adds where the text is."""


class EndlessError(DocumentError):
    """A document is nested too deeply, contains itself, or is too large once its aliases are expanded."""


def parsed(text: str, kind: Literal["yaml", "json", "toml"] = "yaml") -> Any:
    """Return the content of a text; YAML without Python's tags.

    Raises:
        DocumentError: It is not of that kind, or ``EndlessError``.
        ImportError: It is YAML, and PyYAML is not installed.
    """
    try:
        if kind == "yaml":
            return _yaml(text)
        document = json.loads(text) if kind == "json" else tomllib.loads(text)
        _measure(document, {})
    except (DocumentError, ImportError):
        raise
    except RecursionError:
        raise _too_deep() from None
    except Exception as error:
        # YAML's value constructors raise the errors of Python's types. Advice on long numbers is for programmers.
        why = printable(reason_of(error)).partition("; use sys.")[0]
        raise DocumentError(f"not {kind.upper()} ({why})") from None
    return document


def _too_deep() -> EndlessError:
    return EndlessError(f"is nested more than {DEEPEST} deep, or contains itself")


def _yaml(text: str) -> Any:
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        # An alias is the same node as its target, so nothing is expanded before it is measured.
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {})
        _refuse_twice(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_twice(root: Any) -> None:
    """Refuse a mapping with a duplicate key; PyYAML would use the last one."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node.value, list):
            continue
        seen.add(id(node))
        keys = [each[0] for each in node.value if isinstance(each, tuple)]
        waiting += [part for each in node.value for part in (each if isinstance(each, tuple) else [each])]
        first: dict[str, Any] = {}
        for key in keys:
            # Several merge keys count as one.
            if isinstance(key.value, str) and key.value != "<<" and first.setdefault(key.value, key) is not key:
                one, other = first[key.value].start_mark.line + 1, key.start_mark.line + 1
                raise DocumentError(f"has {key.value!r} twice in one mapping, in line {one} and in line {other}")


def _measure(part: Any, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """The levels and, for YAML, the size of a part of a document; each alias is as large as its target.

    Args:
        known: Results for the parts seen before; None while a part is being measured.
    """
    node = getattr(part, "value", None)
    if isinstance(node, str):
        return 0, 1 + len(node)
    if isinstance(node, list):
        below = [each for one in node for each in (one if isinstance(one, tuple) else [one])]
    elif isinstance(part, dict | list):
        below = list(part.values() if isinstance(part, dict) else part)
    else:
        return 0, 0
    if id(part) not in known:
        known[id(part)] = None
        inner = [_measure(each, known) for each in below]
        levels, size = 1 + max((levels for levels, _ in inner), default=0), 1 + sum(size for _, size in inner)
        if levels > DEEPEST:
            raise _too_deep()
        if size > LARGEST:
            raise EndlessError(f"holds more than {LARGEST:,} values and characters, with its aliases written out")
        known[id(part)] = levels, size
    found = known[id(part)]
    if found is None:
        raise _too_deep()
    return found
