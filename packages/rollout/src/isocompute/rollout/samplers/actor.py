"""Connects to Ray for the samplers, and prepares what their actors need from this process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RolloutError, library
from ..scoring.rules import register, registered
from .weights import BUCKET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifiers:
    """The user's verifiers (``registered``) for another process, and the folders to import them from."""

    rules: Mapping[str, str]
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> Verifiers:
        """The verifiers of this process."""
        return cls(rules=registered(), path=tuple(folder or str(Path.cwd()) for folder in (*sys.path, "")))

    def adopt(self) -> None:
        """Register the verifiers in this process."""
        sys.path.extend(folder for folder in self.path if folder not in sys.path)
        for name, reference in self.rules.items():
            register(name, reference)


def connected_ray() -> Any:
    """Return Ray, connected to the cluster of ``RAY_ADDRESS`` or to one started here."""
    ray = library("ray", extra="ray")
    if not ray.is_initialized():
        new_cluster = {"include_dashboard": False, "object_store_memory": 4 * BUCKET_BYTES}
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            try:
                ray.init(**quiet, **({} if os.environ.get("RAY_ADDRESS") else new_cluster))
            except ValueError:
                # On a node of a cluster Ray joins that cluster by itself, and accepts no sizes.
                ray.init(**quiet)
        except Exception as error:
            raise RolloutError(f"Ray cannot be started or joined ({error})") from None
    return ray


def resources(ray: Any) -> str:
    """Describe a cluster's resources, for an error message."""
    cluster = ray.cluster_resources()
    return f"{cluster.get('CPU', 0):g} CPUs and {cluster.get('GPU', 0):g} GPUs"
