"""The Ray cluster that the stages run on: one head and its workers serve a whole ``repro``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from .config import Preset
from .errors import ExperimentError

NAMESPACE = "isocompute"
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@contextmanager
def cluster(processors: int) -> Iterator[None]:
    """Join the cluster of ``RAY_ADDRESS``, or start one for as long as this lasts.

    Raises:
        ExperimentError: Ray cannot be started or joined.
    """
    import logging

    import ray

    os.environ.update({k: v for k, v in QUIET.items() if k not in os.environ})
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        options = {"num_cpus": processors, "object_store_memory": 256 * 2**20, "include_dashboard": False}
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        raise ExperimentError(f"Ray cannot be started or joined ({error})") from None
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def shared_cluster(processors: int) -> Iterator[dict[str, str]]:
    """Start a head for several processes; yields the environment that lets them join it."""
    import ray

    with cluster(processors):
        address = ray.get_runtime_context().gcs_address
        yield {"RAY_ADDRESS": address, "ISOCOMPUTE_DETACHED_WORKERS": "1"}


def open_workers(preset: Preset, model: str, base: str) -> list[Any]:
    """Workers of the preset with their engines up; those an earlier stage left running are taken over.

    Raises:
        ExperimentError: A worker cannot load the model.
    """
    import ray

    from .worker import Worker

    resources = preset.resources
    detached = os.environ.get("ISOCOMPUTE_DETACHED_WORKERS") == "1"
    placed = (resources.resolved_sampler(), resources.device, resources.placement, resources.learner_ranks)
    identity = repr((base, asdict(preset.sampling), placed))
    key = sha256(identity.encode()).hexdigest()[:12]
    environment = {"env_vars": {**QUIET, "PYTHONPATH": str(Path.cwd())}}
    remote: Any = ray.remote(num_cpus=1, num_gpus=1 if resources.device == "cuda" else 0)(Worker)
    actors = [
        remote.options(
            name=f"worker-{key}-{index}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached" if detached else None,
            runtime_env=environment,
        ).remote(model, asdict(preset.sampling), *placed)
        for index in range(resources.workers)
    ]
    try:
        ray.get([actor.ready.remote() for actor in actors])
    except ray.exceptions.RayError as error:
        raise ExperimentError(cause(error)) from None
    return actors


def cause(error: BaseException) -> str:
    """The message of the error behind a Ray error: its last line that says something."""
    inner = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()]
    return lines[-1].partition("Error: ")[2] or lines[-1] if lines else type(inner).__name__
