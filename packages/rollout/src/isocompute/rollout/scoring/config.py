"""Configuration of scoring."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from ..contract.settings import made_of, settings
from ..errors import RolloutError

Layer = Literal["user", "network", "processes", "files", "landlock", "seccomp", "bubblewrap"]
LAYERS: tuple[Layer, ...] = get_args(Layer)
"""Layers of the sandbox that depend on the kernel; without Landlock, ``files`` means mounts of what is readable."""

MOST_WORKERS_BY_DEFAULT = 8
"""Processes for each library where their number is not given."""


@settings(RolloutError)
class ScoringConfig:
    """Limits of the processes that score, and the fractions that count."""

    seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Processor time that one response may take; a response that takes more earns 0."""
    wall_factor: Annotated[float, Field(ge=1, le=1000)] = 10.0
    """The same limit by the clock, in multiples of ``seconds``: a response must not become wrong because the machine is
    busy."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Processes that score at the same time, for each library that rules use; by default half as many as this process
    has processors, at least 1 and at most 8."""
    memory_bytes: int = 2 * 2**30
    """Memory of all processes of a response together, and address space of each besides that of the library."""
    partial: bool = False
    """Use the fraction that a rule gives as the reward; otherwise the reward is 1 for a full score and 0 for anything
    less."""
    allow_unisolated: bool = False
    """Allow rules that may execute what a response says even where the kernel does not let them be cut off from the
    network and from writing files."""
    readable: tuple[str, ...] = ()
    """Files and folders that rules of one's own need to read while they score, besides installed packages and the
    package of their module."""
    without: tuple[Layer, ...] = ()
    """Layers of the sandbox that are not used even where the kernel has them (``LAYERS``), for machines where one of
    them misbehaves."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 2**29:
            raise RolloutError(f"memory_bytes is {self.memory_bytes}; the libraries alone need {2**29} (512 MiB)")
        missing = [path for path in self.readable if not (path and Path(path).exists())]
        if missing:
            raise RolloutError(f"readable names {missing[0]!r}; it must be a file or a folder that exists")

    @property
    def processes(self) -> int:
        """Processes for each library on this machine."""
        if self.workers is not None:
            return self.workers
        return max(1, min(MOST_WORKERS_BY_DEFAULT, len(os.sched_getaffinity(0)) // 2))

    @property
    def wall_seconds(self) -> float:
        """Time by the clock that one response may take."""
        return self.seconds * self.wall_factor


def scoring_from(plain: Mapping[str, Any]) -> ScoringConfig:
    """Make the configuration from plain settings; ``readable`` and ``without`` may be texts separated by commas."""
    values = dict(plain)
    for name in ("readable", "without"):
        value = values.get(name)
        if isinstance(value, str):
            values[name] = [part for part in value.split(",") if part]
    return made_of(ScoringConfig, values, RolloutError, "scoring")
