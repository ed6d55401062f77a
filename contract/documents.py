"""YAML, JSON and TOML that somebody else wrote, within bounds: aliases let a short file expand without end."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from .errors import IsoComputeError, printable
from .files import reason_of

if TYPE_CHECKING:
    import yaml

DEEPEST = 100
"""Levels of the deepest document."""
LARGEST = 4_000_000
"""Values and characters of the largest YAML document, with each alias written out."""


class DocumentError(IsoComputeError):
    """A text is no document of its kind; the message says why, and whoever catches it says where the text stands."""


class EndlessError(DocumentError):
    """A document is nested too deeply, contains itself, or is too large once its aliases are written out."""


def parsed(text: str, kind: Literal["yaml", "json", "toml"] = "yaml") -> Any:
    """Return what a text says; YAML without tags of Python's.

    Raises:
        DocumentError: It is not of that kind, or ``EndlessError``.
        ImportError: It is YAML, and PyYAML is not installed.
    """
    try:
        if kind == "yaml":
            # Its loader ends at the bounds by itself.
            return _yaml(text)
        document = json.loads(text) if kind == "json" else tomllib.loads(text)
    except (DocumentError, ImportError):
        raise
    except RecursionError:
        raise too_deep() from None
    except Exception as error:
        # Constructors of YAML's values raise what Python's types raise. Advice on long numbers is for programmers.
        why = printable(reason_of(error)).partition("; use sys.")[0]
        raise DocumentError(f"not {kind.upper()} ({why})") from None
    _check_depth(document)
    return document


def too_deep() -> EndlessError:
    """Return what to raise for a document of too many levels."""
    return EndlessError(f"is nested more than {DEEPEST} deep, or contains itself")


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _parts(each)]
        if not level:
            return
    raise too_deep()


def _parts(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, dict | list)]


def _yaml(text: str) -> Any:
    loader = _loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Bounded(yaml.SafeLoader):
        """Counts what it reads, an alias as often as it stands there."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            # The level that is read, the deepest so far of the node that is read, and the size so far.
            self._level, self._deepest, self._size = 0, 0, 0
            self._read: dict[int, tuple[int, int]] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            alias, inner = self.check_event(yaml.AliasEvent), self.check_event(yaml.CollectionStartEvent)
            level, size, deepest = self._level, self._size, self._deepest
            self._level = self._deepest = level + inner
            self._check()
            node = super().compose_node(parent, index)
            if not alias:
                self._size += 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            elif id(node) in self._read:
                levels, values = self._read[id(node)]
                self._deepest, self._size = level + levels, size + values
            else:
                # It is still being read: the alias stands within it.
                raise too_deep()
            self._check()
            self._read[id(node)] = self._deepest - level, self._size - size
            self._level, self._deepest = level, max(deepest, self._deepest)
            return node

        def _check(self) -> None:
            if self._deepest > DEEPEST:
                raise too_deep()
            if self._size > LARGEST:
                raise EndlessError(f"holds more than {LARGEST:,} values and characters, with its aliases written out")

    return Bounded
