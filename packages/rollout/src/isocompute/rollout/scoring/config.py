"""Configuration of scoring."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import RolloutError

LAYERS = ("user", "network", "processes", "files", "landlock", "seccomp", "bubblewrap")
"""Layers of the sandbox that depend on the kernel; without Landlock, ``files`` means mounts of what is readable."""

MOST_WORKERS_BY_DEFAULT = 8
"""Processes for each library where their number is not given."""

_KINDS: dict[str, tuple[type, ...]] = {
    "seconds": (int, float),
    "wall_factor": (int, float),
    "workers": (int, type(None)),
    "memory_bytes": (int,),
    "partial": (bool,),
    "allow_unisolated": (bool,),
    "readable": (tuple,),
    "without": (tuple,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringConfig:
    """Limits of the processes that score, and the fractions that count.

    Raises:
        RolloutError: A value is out of range.
    """

    seconds: float = 5.0
    """Processor time that one response may take; a response that takes more earns 0."""
    wall_factor: float = 10.0
    """The same limit by the clock, in multiples of ``seconds``: a response must not become wrong because the machine is
    busy."""
    workers: int | None = None
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
    without: tuple[str, ...] = ()
    """Layers of the sandbox that are not used even where the kernel has them (``LAYERS``), for machines where one of
    them misbehaves."""

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                raise RolloutError(f"{name} of scoring is {value!r}; it must be of type {words}")
        if not 0 < self.seconds <= 3600:
            raise RolloutError(f"seconds of scoring is {self.seconds}; it must be above 0 and at most 3600")
        if not 1 <= self.wall_factor <= 1000:
            raise RolloutError(f"wall_factor of scoring is {self.wall_factor}; it must lie between 1 and 1000")
        if self.workers is not None and not 1 <= self.workers <= 256:
            raise RolloutError(f"workers of scoring is {self.workers}; it must lie between 1 and 256")
        if self.memory_bytes < 2**29:
            raise RolloutError(
                f"memory_bytes of scoring is {self.memory_bytes}; the libraries alone need {2**29} (512 MiB)"
            )
        missing = [path for path in self.readable if not (isinstance(path, str) and path and Path(path).exists())]
        if missing:
            raise RolloutError(f"readable of scoring names {missing[0]!r}; it must be a file or a folder that exists")
        unknown = sorted(set(map(str, self.without)) - set(LAYERS))
        if unknown:
            raise RolloutError(f"the sandbox has no layer {unknown[0]!r}; it has {', '.join(LAYERS)}")

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


def scoring_from(settings: Mapping[str, Any]) -> ScoringConfig:
    """Make the configuration from plain settings such as ``{"seconds": 2, "workers": 4}``.

    Args:
        settings: Fields of ``ScoringConfig``; ``readable`` and ``without`` may be lists, or texts separated by commas.

    Raises:
        RolloutError: A key is unknown or a value is out of range.
    """
    known = {field.name for field in fields(ScoringConfig)}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise RolloutError(f"scoring has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    values = dict(settings)
    for name in ("readable", "without"):
        value = values.get(name)
        if isinstance(value, str):
            values[name] = tuple(part for part in value.split(",") if part)
        elif isinstance(value, list):
            values[name] = tuple(value)
    return ScoringConfig(**values)
