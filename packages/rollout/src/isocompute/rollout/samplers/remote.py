"""Placement ``separate``: a vLLM engine that is a Ray actor of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import RolloutError
from . import transfer
from .base import NOT_WHOLE, Sampling, named_tensors
from .manifest import shapes_of


class Engine:
    """The engine's side of ``RemoteSampler``: a plain class, which Ray only wraps.

    Args:
        model: Directory or name of a model in the Hugging Face format.
        sampling: How responses are sampled.
        transport: Backend of the weight transfer (``transfer.BACKENDS``).
        options: Further options of ``VllmSampler``.
    """

    def __init__(self, model: str, sampling: Sampling, transport: str, options: Mapping[str, Any]) -> None:
        self._opened = (model, sampling, transport, dict(options))
        self._sampler: Any = None

    def open(self) -> None:
        """Load the model; apart from the constructor, whose errors Ray reports as the death of the actor."""
        from .vllm import VllmSampler

        model, sampling, transport, options = self._opened
        self._sampler = VllmSampler(model, sampling, weight_transport=transport, **options)

    def sample(self, problems: pl.DataFrame, asked: Mapping[str, Any]) -> pl.DataFrame:
        """Return a ``rollouts`` table, as every sampler does."""
        answered: pl.DataFrame = self._sampler.sample(problems, **asked)
        return answered

    def check(self, given: list[tuple[str, tuple[int, ...]]]) -> None:
        """Compare the names and shapes that a sync brings with the model's, where the model is."""
        self._sampler.check(given)

    def worker(self, method: str, arguments: dict[str, Any]) -> None:
        """Call a method of vLLM's worker; what weight transfer is made of."""
        self._sampler.worker(method, arguments)

    def synced(self, version: int) -> None:
        """Stamp what is sampled from now on with ``version``."""
        self._sampler.synced(version)


class RemoteSampler:
    """Samples with a vLLM engine in a Ray actor of its own; weights go there by vLLM's transfer API.

    Tokens and log-probabilities are those of ``VllmSampler`` for the same seeds. A cluster is joined (by
    ``RAY_ADDRESS``) or started when this process has none.

    Args:
        model: Directory or name of a model in the Hugging Face format, with untied embeddings, as the actor's
            machine sees it.
        sampling: How responses are sampled.
        transport: How weights travel: ``object_store`` (through Ray, on any device) or ``nccl`` (between two
            GPUs, this process's and the actor's); by default ``nccl`` where this process has a CUDA device.
        num_gpus: GPUs the actor holds; by default 1 where the cluster has any.
        start_seconds: How long to wait for the engine to load the model.
        answer_seconds: How long to wait for a batch or a sync; an engine that takes longer is ended.
        **options: Further options of ``VllmSampler``.

    Raises:
        RolloutError: Ray or vLLM is not installed, the cluster has no room, or the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        transport: str | None = None,
        num_gpus: float | None = None,
        start_seconds: float = 600.0,
        answer_seconds: float = 1800.0,
        **options: Any,
    ) -> None:
        self._ray = _joined()
        self.model, self.sampling = str(model), sampling
        self.transport = transport or transfer.backend_here()
        self._version = 0
        self._whole = True
        self._answer_seconds = answer_seconds
        self._send: Callable[[Any], None] | None = None
        if num_gpus is None:
            num_gpus = min(1.0, self._ray.cluster_resources().get("GPU", 0.0))
        actor = self._ray.remote(num_cpus=1, num_gpus=num_gpus)(Engine)
        self._actor: Any = actor.remote(self.model, sampling, self.transport, options)
        try:
            self._call("open", timeout=start_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def weights_version(self) -> int:
        """Version of the weights that sample; 0 are the model's own."""
        return self._version

    def sample(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str = "train",
        run_id: str = "",
        first_sample: int = 0,
    ) -> pl.DataFrame:
        """Answer each problem ``samples`` times; see ``LocalSampler.sample``.

        Raises:
            RolloutError: A prompt is too long, the latest sync failed, or the engine's process has died.
        """
        if not self._whole:
            raise RolloutError(NOT_WHOLE)
        asked = {
            "samples": samples, "seed": seed, "step": step, "phase": phase, "run_id": run_id,
            "first_sample": first_sample,
        }  # fmt: skip
        answered: pl.DataFrame = self._call("sample", problems, asked)
        return answered

    def sync(self, weights: Any, version: int) -> None:
        """Send weights by their Hugging Face names, and stamp what is sampled with ``version``.

        Raises:
            RolloutError: A tensor is missing, unknown or of another shape, or the engine did not take them over. After
                any failure nothing is sampled until a sync succeeds.
        """
        self._whole = False
        tensors = named_tensors(weights)
        self._call("check", shapes_of(tensors))
        if self._send is None:
            address = self._ray.util.get_node_ip_address()
            self._send = transfer.sender(self.transport, self._worker, address=address)
        self._send(tensors)
        self._call("synced", version)
        self._version, self._whole = version, True

    def close(self) -> None:
        """End the actor; a cluster stays as it is."""
        if self._actor is not None and self._ray.is_initialized():
            self._ray.kill(self._actor)
        self._actor = None

    def _worker(self, method: str, arguments: dict[str, Any]) -> None:
        try:
            self._call("worker", method, arguments)
        except RolloutError:
            raise
        except Exception as error:
            reason = str(getattr(error, "cause", error)).strip() or type(error).__name__
            raise RolloutError(f"the engine did not take over the weights: {method} failed ({reason})") from error

    def _call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        if self._actor is None:
            raise RolloutError("the sampler is closed")
        errors = self._ray.exceptions
        patience = self._answer_seconds if timeout is None else timeout
        try:
            return self._ray.get(getattr(self._actor, method).remote(*arguments), timeout=patience)
        except errors.RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise error.cause from None
            raise
        except errors.GetTimeoutError:
            if timeout is None:
                # What it is in the middle of, nobody knows.
                self.close()
                raise RolloutError(f"the engine did not answer {method} within {patience:g} s, and was ended") from None
            raise RolloutError(
                f"the engine did not come up within {patience:g} s; the cluster may have no room for it "
                f"(it has {_resources(self._ray.cluster_resources())})"
            ) from None
        except errors.RayActorError as error:
            raise RolloutError(f"the engine's process has died ({str(error).strip().splitlines()[0]})") from None


def _joined() -> Any:
    try:
        import ray
    except ImportError:
        raise RolloutError('Ray is not installed: pip install "isocompute-rollout[ray]"') from None
    if not ray.is_initialized():
        own = {"include_dashboard": False, "object_store_memory": 4 * transfer.CHUNK_BYTES}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **({} if os.environ.get("RAY_ADDRESS") else own))
        except Exception as error:
            raise RolloutError(f"Ray cannot be started or joined ({error})") from None
    return ray


def _resources(found: Mapping[str, float]) -> str:
    return f"{found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs"
