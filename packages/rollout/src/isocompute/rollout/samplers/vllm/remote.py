"""A vLLM engine in a Ray actor of its own (placement ``separate``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from ...contract.deaths import death
from ...errors import EngineError, RolloutError
from ...scoring.scorer import Scorer
from ..actor import SamplerActor, Verifiers, connected_ray, resources
from ..base import Sampler
from ..engine import EngineConfig
from ..sampling import Draw, Sampling
from . import transfer

_log = logging.getLogger(__name__)


class Engine(SamplerActor):
    """The engine's side of ``RemoteSampler``: a plain class, wrapped by Ray.

    Args:
        model: Directory or name of a model in the Hugging Face format.
        sampling: How responses are sampled.
        transport: Backend of the weight transfer (``transfer.BACKENDS``).
        options: Further options of ``VllmSampler``.
    """

    def __init__(self, model: str, sampling: Sampling, transport: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._opened = (model, sampling, transport, dict(options))

    def open(self) -> str:
        """Load the model. Not done by the constructor, whose errors Ray would report as the death of the actor.

        Returns:
            ``Sampler.plan``.
        """
        from .sampler import VllmSampler

        model, sampling, transport, options = self._opened
        scoring = options.pop("scoring", None)
        scorer = None if scoring is None else Scorer(scoring)
        self._sampler = VllmSampler(model, sampling, weight_transport=transport, scorer=scorer, **options)
        plan: str = self._sampler.plan
        return plan

    def worker(self, method: str, arguments: dict[str, Any]) -> None:
        """Call a method of vLLM's worker; see ``VllmSampler.worker``."""
        self._sampler.worker(method, arguments)

    def synced(self, version: int) -> None:
        """Stamp what is sampled from now on with ``version``, the policy version."""
        self._sampler.synced(version)


class RemoteSampler(Sampler):
    """Samples with a vLLM engine in a Ray actor of its own; weights go there by vLLM's transfer API.

    Tokens and log-probabilities are those of ``VllmSampler`` for the same seeds. Groups arrive, scored, as they become
    complete. A cluster is joined (by ``RAY_ADDRESS``) or started when this process has none.

    Args:
        model: Directory or name of a model in the Hugging Face format, as the actor's machine sees it.
        sampling: How responses are sampled.
        transport: How weights travel: ``object_store`` (through Ray, on any device) or ``nccl`` (between two
            GPUs, this process's and the actor's); by default ``nccl`` where this process has a CUDA device.
        num_gpus: GPUs the actor holds; by default the engine's ``tensor_parallel`` where the cluster has any.
        start_seconds: Timeout for loading the model.
        answer_seconds: Timeout for the next group or a sync; an engine that takes longer is ended.
        scorer: Its configuration is that of the actor's own.
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
        scorer: Scorer | None = None,
        **options: Any,
    ) -> None:
        if scorer is not None:
            options["scoring"] = scorer.config
        self._ray = connected_ray()
        super().__init__(model, sampling)
        self.transport = transport or transfer.default_backend()
        self._answer_seconds = answer_seconds
        self._send: Callable[[Any], None] | None = None
        self._workers = (options.get("engine") or EngineConfig()).tensor_parallel or 1
        if self._workers > 1 and self.transport == "object_store":
            raise RolloutError(
                "the weight transport object_store reaches one process, and engine tensor_parallel is "
                f"{self._workers}; the transport must be nccl"
            )
        if num_gpus is None:
            num_gpus = min(float(self._workers), self._ray.cluster_resources().get("GPU", 0.0))
        actor = self._ray.remote(num_cpus=1, num_gpus=num_gpus)(Engine)
        self._actor: Any = actor.remote(self.model, sampling, self.transport, options)
        try:
            self.plan = self._call("open", timeout=start_seconds)
        except BaseException:
            self.close()
            raise
        _log.info("memory of the engine of %s:\n%s", self.model, self.plan or "not estimated")

    def use(self, sampling: Sampling) -> None:
        """Sample differently from now on; see ``Sampler.use``."""
        super().use(sampling)
        self._call("use", sampling)

    def check(self, given: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, str]:
        """Compare the names and shapes that a sync brings with the model's, where the model is; see ``Sampler.check``.

        Raises:
            RolloutError: They differ, or the engine timed out.
        """
        tied: dict[str, str] = self._call("check", list(given))
        return tied

    def close(self) -> None:
        """End the actor; a cluster stays as it is."""
        if self._actor is not None and self._ray.is_initialized():
            self._ray.kill(self._actor)
        self._actor = None

    def _batches(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        self._call("begin", problems, asdict(draw), Verifiers.here())
        ended = False
        try:
            coming = self._ask("more")
            while not ended:
                groups, ended = self._wait(coming, "the next group")
                if not ended:
                    # Asked for before the groups are handed out: the engine goes on meanwhile.
                    coming = self._ask("more")
                yield from groups
        finally:
            if not ended and self._actor is not None:
                # An engine that has died or was ended has nothing left to stop.
                with suppress(RolloutError):
                    self._call("end")

    def _load(self, tensors: list[tuple[str, Any]]) -> None:
        if self._send is None:
            address = self._ray.util.get_node_ip_address()
            self._send = transfer.sender(self.transport, self._call_worker, address=address, workers=self._workers)
        # A sync that was cut off must not mix its tensors into this one; a tied head is packed again at the end.
        self._call_worker("forget_torn_weights", {})
        self._send(tensors)
        self._call_worker("repack_tied_head", {})

    def _stamp(self, version: int) -> None:
        self._call("synced", version)
        super()._stamp(version)

    def _call_worker(self, method: str, arguments: dict[str, Any]) -> None:
        """Call a method of vLLM's worker, and wait for it."""
        try:
            self._call("worker", method, arguments)
        except RolloutError:
            raise
        except Exception as error:
            reason = str(getattr(error, "cause", error)).strip() or type(error).__name__
            raise RolloutError(f"the engine did not take over the weights: {method} failed ({reason})") from error

    def _call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call a method of the actor, and wait for it: for ``timeout`` or else ``answer_seconds``."""
        return self._wait(self._ask(method, *arguments), method, timeout=timeout)

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor; return a reference to its result."""
        if self._actor is None:
            raise RolloutError("the sampler is closed")
        return getattr(self._actor, method).remote(*arguments)

    def _wait(self, reference: Any, what: str, *, timeout: float | None = None) -> Any:
        """Wait for a result of the actor; ``timeout`` is that of its start."""
        errors = self._ray.exceptions
        seconds = self._answer_seconds if timeout is None else timeout
        try:
            return self._ray.get(reference, timeout=seconds)
        except errors.GetTimeoutError:
            if timeout is None:
                # Its state is unknown.
                self.close()
                raise EngineError(
                    f"the vLLM engine of {self.model} timed out: {what} took more than {seconds:g} s, and the engine "
                    "was ended"
                ) from None
            raise RolloutError(
                f"the engine did not come up within {seconds:g} s; the cluster may have no room for it "
                f"(it has {resources(self._ray)})"
            ) from None
        except errors.RayError as error:
            if why := death(error):
                raise EngineError(f"the process of the vLLM engine of {self.model} has died ({why})") from None
            if isinstance(getattr(error, "cause", None), ValueError):
                raise error.cause from None
            raise
