"""The code of verifiers of one's own (``python:MODULE:FUNCTION``), which is read from the disk and not imported."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from pathlib import Path

from isocompute.rollout.scoring.rules import rule

from ..errors import ExperimentError
from .identity import digest, source_hash

INSTALLED = tuple(str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("purelib", "platlib"))


def code_of_rules(verifiers: Iterable[str]) -> dict[str, str]:
    """Hash of the code behind each rule that is a function of one's own, with the modules beside it that it imports.

    What it reads from other files, or imports by a name that it computes, is not seen.

    Raises:
        ExperimentError: The module of a rule is not there or cannot be read.
    """
    bases = sorted({rule(name).base for name in set(verifiers)})
    return {base: _hash(base) for base in bases if base.startswith("python:")}


def _hash(base: str) -> str:
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
    if str(root) not in INSTALLED:
        files = _imported(module, root, base)
    try:
        return digest({str(path.relative_to(root)): source_hash(path) for path in files})
    except (OSError, SyntaxError, UnicodeError) as error:
        raise ExperimentError(f"the verifier {base} cannot be read ({error})") from None


def _imported(module: str, root: Path, base: str) -> list[Path]:
    """Files of a module and of what it imports from the same folder."""
    finder = ModuleFinder([str(root)])
    try:
        finder.import_hook(module)
    except (ImportError, SyntaxError) as error:
        raise ExperimentError(f"the verifier {base} cannot be read ({error})") from None
    files = [getattr(found, "__file__", None) for found in finder.modules.values()]
    return sorted(Path(file).resolve() for file in files if file)
