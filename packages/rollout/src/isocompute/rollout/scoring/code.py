"""Hashes of a code's behaviour: its syntax tree without comments, docstrings and message texts."""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Iterable
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.util import find_spec
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any, TypeVar

from ..errors import RolloutError
from .rules import rule

SPEAKERS = frozenset({"warnings", "logging", "logger", "log"})
"""Names whose methods only print or log."""
INSTALLED = tuple(str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("purelib", "platlib"))
Node = TypeVar("Node", bound=ast.AST)


def digest(value: Any) -> str:
    """Short hash of plain values."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def source_hash(path: Path) -> str:
    """Hash of a code file's behaviour."""
    return digest(ast.dump(silenced(ast.parse(path.read_bytes()))))


def silenced(tree: Node) -> Node:
    """Remove docstrings and the texts of errors, ``print`` and logging from a syntax tree, in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _is_message(node.func)):
            _silence(node)
    return tree


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is only a text: a docstring, or the one below an attribute."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_message(called: ast.expr) -> bool:
    """Return whether a call only prints or logs: ``print``, or a method of ``warnings``, ``logging`` or a logger."""
    if isinstance(called, ast.Name):
        return called.id == "print"
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in SPEAKERS


def _silence(message: ast.AST) -> None:
    """Empty the texts in a message; computations in it stay."""
    for node in ast.walk(message):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        elif isinstance(node, ast.JoinedStr):
            node.values = [part for part in node.values if isinstance(part, ast.FormattedValue)]


def code_of_rules(verifiers: Iterable[str]) -> dict[str, str]:
    """Hash the code behind each user function among the rules, with the neighbouring modules that it imports.

    Other files that it reads, and imports by computed names, are not covered.
    """
    bases = sorted({rule(name).base for name in set(verifiers)})
    return {base: _hash_of_rule(base) for base in bases if base.startswith("python:")}


def _hash_of_rule(base: str) -> str:
    module = base.split(":")[1]
    top = module.partition(".")[0]
    # The sandbox searches this folder, too.
    spec = PathFinder.find_spec(top, [*(place for place in sys.path if place), str(Path.cwd())])
    if spec is None and top not in sys.modules:
        # An editable installation may have its own finder.
        spec = find_spec(top)
    if spec is None:
        raise RolloutError(f"the verifier {base} is of a module that cannot be found: {top}")
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))).resolve()
        root, files = folder.parent, sorted(folder.rglob("*.py"))
    else:
        file = Path(str(spec.origin)).resolve()
        root, files = file.parent, [file] if file.suffix == ".py" else []
    try:
        if str(root) not in INSTALLED:
            # The module and what it imports from the same folder.
            finder = ModuleFinder([str(root)])
            finder.import_hook(module)
            found = [getattr(one, "__file__", None) for one in finder.modules.values()]
            files = sorted(Path(file).resolve() for file in found if file)
        return digest({str(path.relative_to(root)): source_hash(path) for path in files})
    except (ImportError, OSError, SyntaxError, UnicodeError) as error:
        raise RolloutError(f"the verifier {base} cannot be read ({error})") from None
