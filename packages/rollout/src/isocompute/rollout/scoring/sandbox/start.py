"""How a process that scores is started: its command, its variables, and the folders that it may read."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ..config import ScoringConfig
from . import boot, bubblewrap

PACKAGES = ("site-packages", "dist-packages")
"""Names of the folders of installed libraries."""
ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TZ")
"""Variables that the process gets; nothing that a token or a key would stand in."""


def bubblewrap_for(lane: str, config: ScoringConfig) -> str:
    """Return where bubblewrap is, if it is to keep the programs of a lane apart; an empty text otherwise."""
    return bubblewrap.path() if lane == "runs" and "bubblewrap" not in config.without else ""


def command(lane: str, config: ScoringConfig, program: str) -> list[str]:
    """Return the command of a lane's first process."""
    user_code = lane.startswith("python:")
    executes = user_code or lane == "runs"
    path = _path(user_code=user_code)
    settings = {
        "lane": lane, "path": path, "readable": readable(path, user_code=user_code), "executes": executes,
        "executing": executes or lane == "reasoning_gym", "bubblewrap": program,
        "root": os.geteuid() == 0,
        "seconds": config.seconds, "wall_seconds": config.wall_seconds, "memory_bytes": config.memory_bytes,
        "allow_unisolated": config.allow_unisolated,
        "without": [*config.without, *(bubblewrap.INSTEAD_OF if program else ())],
    }  # fmt: skip
    return [sys.executable, "-P", "-B", "-W", "ignore", str(Path(boot.__file__).resolve()), json.dumps(settings)]


def variables() -> dict[str, str]:
    """Return the variables of a lane's processes."""
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    return {**kept, **one_thread, "PYTHONHASHSEED": "0", "HOME": "/"}


def _path(*, user_code: bool) -> list[str]:
    """The ``sys.path`` of a process; a user's verifier may lie in this process's folder, which console scripts lack."""
    here = ""
    with contextlib.suppress(OSError):
        here = str(Path.cwd())
    path = [p or here for p in sys.path]
    return list(dict.fromkeys([*path, here] if user_code and here else path))


def readable(path: Sequence[str], *, user_code: bool) -> list[str]:
    """Return the folders that scoring needs: the interpreter's, those of installed libraries and this package's own.

    Args:
        path: The ``sys.path`` of this process.
        user_code: A user's own verifier is scored, which may read whatever it can be imported from.
    """
    package = Path(__file__).resolve().parents[4]
    installed = path if user_code else [p for p in path if Path(p).name in PACKAGES]
    found = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *installed, str(package)]
    return list(dict.fromkeys(p for p in found if Path(p).is_dir()))
