"""What a worker has loaded, as its own process sees it, and why a worker that loaded something else is refused."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from ..errors import ExperimentError, listed
from . import imports, models
from .identity import LOOP, Surroundings, digest, modules_of, source_hash, versions

if TYPE_CHECKING:
    from .actor import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a worker has loaded.

    Attributes:
        bases: Hashes of the contents of the base models.
        modules: Hash of the code of each module that a cell depends on.
        versions: Versions of the libraries that compute.
        device: Where it computes: ``cuda`` where that was asked for and is there, else ``cpu``.
    """

    host: str
    process: int
    bases: frozenset[str]
    modules: Mapping[str, str]
    versions: Mapping[str, str]
    device: str

    @classmethod
    def of(cls, config: WorkerConfig, guard: CodeGuard) -> Loaded:
        """Look at this process, after its worker was made."""
        import torch

        guard.verify()
        return cls(
            host=socket.gethostname(),
            process=os.getpid(),
            bases=frozenset(models.content(models.local_path(place)) for place in config.models.values()),
            modules=guard.hashes,
            versions=versions(),
            # One that holds no GPU may be where there is none.
            device="cpu" if config.resources.own_gpus and not torch.cuda.is_available() else config.resources.device,
        )


class CodeGuard(MetaPathFinder):
    """Notes the code of a cell before it is imported, and refuses to import a module that has changed since.

    Attributes:
        hashes: Hash of each module, when the guard began.
    """

    def __init__(self) -> None:
        # Of the same texts, since those that were read are remembered.
        self.hashes = modules_of(LOOP)
        self._texts = {module: imports.text_of(module) for module in self.hashes}

    @classmethod
    def install(cls) -> CodeGuard:
        """The guard of this process: the first one there is."""
        guard = cls.here()
        if guard is None:
            guard = cls()
            sys.meta_path.insert(0, guard)
        return guard

    @classmethod
    def here(cls) -> CodeGuard | None:
        """The guard of this process, where it has one."""
        return next((finder for finder in sys.meta_path if isinstance(finder, cls)), None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leave a module to the other finders, unless it has changed."""
        if fullname in self.hashes and self._changed(fullname):
            raise ImportError(_edited([fullname]))
        return None

    def verify(self) -> None:
        """Check that what another process would import now is what this one has loaded."""
        changed = [module for module in self.hashes if self._changed(module)]
        if changed:
            raise ExperimentError(_edited(changed))

    def _changed(self, module: str) -> bool:
        path = imports.source_of(module)
        if path is None or not path.is_file():
            return True
        # Only a file that was edited is parsed, to see whether more than a comment was.
        return path.read_bytes() != self._texts[module] and source_hash(path) != self.hashes[module]


def check(loaded: Loaded, *, bases: Collection[str], surroundings: Surroundings) -> None:
    """Refuse a worker that loaded something else than the driver asked for."""
    different = list(_differences(loaded, bases, surroundings))
    if different:
        raise ExperimentError(
            f"the worker on {loaded.host} (process {loaded.process}) loaded {'; '.join(different)}: the run ids of "
            "this stage would not be true of it; start the same command again, on machines that have the same files "
            "and libraries"
        )


def _differences(loaded: Loaded, bases: Collection[str], surroundings: Surroundings) -> list[str]:
    """What differs, each as a phrase."""
    found = []
    if digest(loaded.modules) != surroundings.code:
        found.append(f"other code than this stage ({listed(_unequal(modules_of(LOOP), loaded.modules))})")
    own, theirs = surroundings.versions, loaded.versions
    if libraries := _unequal(own, theirs):
        said = [f"{name} {theirs.get(name, 'none')} for {own.get(name, 'none')}" for name in libraries]
        found.append(f"other libraries ({listed(said)})")
    if loaded.bases != frozenset(bases):
        there, wanted = (", ".join(sorted(hashes)) for hashes in (loaded.bases, bases))
        found.append(f"another base model ({there} for {wanted})")
    if loaded.device != surroundings.device:
        found.append(f"device {loaded.device!r} for {surroundings.device!r}")
    return found


def _unequal(own: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*own, *theirs} if own.get(name) != theirs.get(name))


def _edited(modules: Sequence[str]) -> str:
    return f"{listed(modules)} changed on disk while this worker was loading or running: start the same command again"
