"""Which modules a module depends on, read from the source: nothing is imported to find out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOTS = ("experiments", "isocompute")


@cache
def _folders(root: str) -> tuple[Path, ...]:
    """Where the parts of a top-level package lie; a namespace has several."""
    from importlib.util import find_spec

    spec = find_spec(root)
    return tuple(Path(place) for place in (spec.submodule_search_locations or ())) if spec else ()


@cache
def source_of(module: str) -> Path | None:
    """The file of a module of this project, or None."""
    root, *parts = module.split(".")
    if root not in ROOTS or not parts:
        return None
    for folder in _folders(root):
        place = folder.joinpath(*parts)
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def text_of(module: str) -> bytes:
    """The source of a module of this project, as it was when it was first asked for."""
    path = source_of(module)
    if path is None:
        raise ValueError(f"{module} is no module of this project")
    return path.read_bytes()


@cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of that source."""
    return ast.parse(text_of(module))


def closure(*modules: str, without: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Modules of this project that some modules depend on, themselves included, however deep.

    Imports inside functions count; those for type checkers only do not. ``from package import name`` leads to the
    module that defines the name, not to everything that the package shows.

    Args:
        without: Last parts of module names that are not followed.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        path = source_of(module)
        if module in found or path is None or module.rpartition(".")[2] in without:
            continue
        found[module] = path
        waiting += _imported(module, path)
    return dict(sorted(found.items()))


def _imported(module: str, path: Path) -> Iterator[str]:
    for node in _nodes(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module, path)
            for alias in node.names:
                yield _defining(origin, alias.name)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _nodes(child)


def _origin(node: ast.ImportFrom, module: str, path: Path) -> str:
    """The absolute name of the module that an import is from."""
    if not node.level:
        return node.module or ""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def _defining(origin: str, name: str) -> str:
    """The module that defines what ``from origin import name`` names."""
    if source_of(f"{origin}.{name}"):
        return f"{origin}.{name}"
    path = source_of(origin)
    if path is None or path.name != "__init__.py":
        return origin
    # Imports for type checkers included: they say where a name that is loaded lazily comes from.
    for node in ast.walk(tree_of(origin)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defining(_origin(node, origin, path), alias.name)
    return origin
