"""A sampler in a Ray actor of its own: the actor's side, and the cluster that it is in."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import polars as pl
import pyarrow as pa

from ..errors import RolloutError
from ..scoring.rules import register, registered
from .sampling import Sampling
from .weights import BUCKET_BYTES

GATHER_SECONDS = 0.05
"""Time for which an actor gathers groups before it sends them; a call costs about a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifiers:
    """The user's own verifiers, for another process.

    Attributes:
        rules: ``MODULE:FUNCTION`` of each by its name (``registered``).
        path: The folders that they are imported from.
    """

    rules: Mapping[str, str]
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> Verifiers:
        """Those of this process."""
        return cls(rules=registered(), path=tuple(folder or str(Path.cwd()) for folder in (*sys.path, "")))

    def adopt(self) -> None:
        """Make them known in this process."""
        sys.path.extend(folder for folder in self.path if folder not in sys.path)
        for name, reference in self.rules.items():
            register(name, reference)


class SamplerActor:
    """Passes calls on to its sampler: a plain class, wrapped by Ray; a subclass opens the sampler."""

    def __init__(self) -> None:
        self._sampler: Any = None
        self._stream: Iterator[pa.RecordBatch] = iter(())

    def use(self, sampling: Sampling) -> None:
        """Sample differently from now on; see ``Sampler.use``."""
        self._sampler.use(sampling)

    def begin(self, problems: pl.DataFrame, draw: Mapping[str, Any], verifiers: Verifiers) -> None:
        """Begin to answer problems."""
        self.end()
        verifiers.adopt()
        self._stream = self._sampler.stream(problems, **draw)

    def more(self) -> tuple[list[pa.RecordBatch], bool]:
        """Go on until a group is complete, and with those that follow within ``GATHER_SECONDS``.

        Returns:
            The groups, and whether they are the last.
        """
        groups: list[pa.RecordBatch] = []
        began = monotonic()
        for group in self._stream:
            groups.append(group)
            if monotonic() - began > GATHER_SECONDS:
                return groups, False
        return groups, True

    def end(self) -> None:
        """Take what is unfinished out of the sampler."""
        stream, self._stream = self._stream, iter(())
        if isinstance(stream, Generator):
            stream.close()


def connected_ray() -> Any:
    """Return Ray, connected to the cluster of ``RAY_ADDRESS`` or to one started here.

    Raises:
        RolloutError: Ray is not installed, or cannot be started or joined.
    """
    try:
        import ray
    except ImportError:
        raise RolloutError('Ray is not installed: pip install "isocompute-rollout[ray]"') from None
    if not ray.is_initialized():
        new_cluster = {"include_dashboard": False, "object_store_memory": 4 * BUCKET_BYTES}
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            try:
                ray.init(**quiet, **({} if os.environ.get("RAY_ADDRESS") else new_cluster))
            except ValueError:
                # On a node of a cluster Ray joins that by itself, and takes no sizes.
                ray.init(**quiet)
        except Exception as error:
            raise RolloutError(f"Ray cannot be started or joined ({error})") from None
    return ray


def resources(ray: Any) -> str:
    """Return a cluster's resources in words, for an error."""
    cluster = ray.cluster_resources()
    return f"{cluster.get('CPU', 0):g} CPUs and {cluster.get('GPU', 0):g} GPUs"
