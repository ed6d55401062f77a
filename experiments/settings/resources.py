"""Settings of the machine: what the cells are trained and sampled with."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Literal, Self

from isocompute.rollout import EngineConfig
from pydantic import Field, model_validator

from .strict import Count, SettingError, Settings

COLOCATED_MEMORY_SHARE = 0.4
"""Share of a GPU's memory that an engine takes beside a learner."""
Seconds = Annotated[float, Field(ge=1)]


class CheckpointsConfig(Settings):
    """When the state of a cell is saved while it is trained, which changes no result; it is saved at the end, too."""

    every_evaluations: Count | None = 1
    """Evaluations between checkpoints; null: evaluations are no reason to save."""
    every_steps: Count | None = None
    """Steps between checkpoints; null: steps are no reason to save."""
    keep: Count = 2
    """How many of a cell's newest checkpoints are kept."""

    @model_validator(mode="after")
    def _one_interval(self) -> Self:
        if self.every_evaluations is None and self.every_steps is None:
            raise SettingError("", "has no interval: every_evaluations or every_steps must be a number")
        return self


class ResourcesConfig(Settings):
    """Workers, engines, devices and time limits.

    ``workers``, ``reverse``, ``transport``, ``start_seconds``, ``stall_seconds``, ``checkpoints``,
    ``checkpoint_gigabytes``, ``keep_policies`` and ``engine.sleep`` do not affect results; the others are part of a
    run's identity, because engines, dtypes and sums over ranks round differently.
    """

    workers: Count = 2
    """Cells trained at a time; on a cluster that has no room for all of them, as many as it has, until it grows."""
    sampler: Literal["auto", "vllm", "transformers"] = "auto"
    """Kind of sampler; ``auto`` is vLLM where it is installed, else transformers."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that the learner and the sampler run on."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the sampler's weights; ``auto`` is bfloat16 for vLLM on CUDA, else float32."""
    engine: EngineConfig = EngineConfig()
    """How vLLM runs: its profile, and what differs from it."""
    placement: Literal["colocated", "separate"] = "colocated"
    """``colocated``: the engine is in the worker's process, or one is on each learner rank's device; ``separate``:
    engines are Ray actors on processors of their own."""
    replicas: Count = 1
    """Engines that answer the batches of a cell together, with the same weights; several are Ray actors, in one
    placement group with the learner ranks."""
    transport: Literal["auto", "object_store", "gloo", "nccl", "ipc"] = "auto"
    """How weights reach engines that are Ray actors; ``auto``: ``object_store`` on CPU, ``nccl`` between GPUs, ``ipc``
    on one GPU."""
    learner_ranks: Count = 1
    """Learner ranks of a cell. One is in the worker's process; several are Ray actors, each on a processor of its
    own."""
    reverse: bool = False
    """Whether the last cells are started first."""
    start_seconds: Seconds = 900.0
    """Timeout for a worker to load the model, and for any worker to be there (seconds)."""
    stall_seconds: Seconds = 1800.0
    """How long a worker may show no progress before it is replaced (seconds); longer than one step, and than 256
    problems take while difficulty is measured."""
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    """When a cell's checkpoints are saved, and how many are kept."""
    checkpoint_gigabytes: Annotated[float, Field(ge=0)] = 5.0
    """Disk space for the checkpoints and policies of all cells (GB). Those of finished cells are deleted: the oldest
    checkpoints first, other cells' before those of the sweep that runs, then other cells' oldest policies."""
    keep_policies: Literal["none", "last", "all"] = "last"
    """Whose trained policy is kept as a Hugging Face folder: nobody's; that of the ``last`` cells trained, which test
    the prescription; or that of ``all`` cells, pilots and sweep included."""

    @model_validator(mode="after")
    def _colocated_engines_are_one_on_each_device(self) -> Self:
        if self.placement == "colocated" and self.replicas not in (1, self.learner_ranks):
            raise SettingError(
                "replicas",
                f"is {self.replicas}, and colocated engines are one in all or one on each of {self.learner_ranks} "
                "learner ranks' devices: set placement to separate",
            )
        if self.engine.sleep and self.placement == "separate":
            raise SettingError("engine.sleep", "is set, and no learner is on a separate engine's device: set it to 0")
        if self.engine.sleep == 2:
            raise SettingError(
                "engine.sleep", "is 2, and a batch of which nothing is learnt is followed by no sync: set it to 1"
            )
        return self

    @model_validator(mode="after")
    def _the_engine_follows_the_resources(self) -> Self:
        if self.engine != EngineConfig() and self.resolved_sampler() != "vllm":
            raise SettingError("engine", f"is set, and the sampler is {self.resolved_sampler()}, not vllm")
        for name in ("profile", "dtype"):
            if getattr(self.engine, name) != getattr(EngineConfig(), name):
                whose = "device" if name == "profile" else name
                raise SettingError(f"engine.{name}", f"is set; it follows resources.{whose}")
        if (self.engine.tensor_parallel or 1) > 1 and self.placement == "colocated":
            raise SettingError(
                "engine.tensor_parallel",
                f"is {self.engine.tensor_parallel}, and an engine in the worker's process has one GPU: set placement "
                "to separate",
            )
        return self

    @model_validator(mode="after")
    def _bfloat16_is_vllm_on_cuda(self) -> Self:
        if self.dtype == "bfloat16" and (self.device == "cpu" or self.sampler == "transformers"):
            raise SettingError("dtype", "is 'bfloat16', which only vLLM on cuda samples with")
        return self

    def resolved_sampler(self) -> str:
        """The sampler; ``auto`` is vLLM where it is installed, else transformers."""
        if self.sampler != "auto":
            return self.sampler
        return "vllm" if find_spec("vllm") else "transformers"

    def resolved_engine(self) -> EngineConfig:
        """How vLLM runs, with the profile of the device and the type of the weights."""
        share, dtype = self.engine.memory_share, self.dtype
        if share is None and self.device == "cuda" and self.placement == "colocated":
            # The learner is on the same GPU.
            share = COLOCATED_MEMORY_SHARE
        if dtype == "auto":
            dtype = "bfloat16" if self.device == "cuda" and self.resolved_sampler() == "vllm" else "float32"
        return replace(self.engine, profile=self.device, dtype=dtype, memory_share=share)

    @property
    def rank_actors(self) -> int:
        """Learner ranks that are Ray actors; a single one is in the worker's process."""
        return self.learner_ranks if self.learner_ranks > 1 else 0

    @property
    def engine_actors(self) -> int:
        """Engines that are Ray actors; a single colocated one is in the worker's process."""
        return self.replicas if self.placement == "separate" or self.replicas > 1 else 0

    @property
    def own_gpus(self) -> int:
        """GPUs that a worker's process itself takes: none where its ranks and engines are all actors."""
        return int(self.device == "cuda" and not (self.rank_actors and self.engine_actors))

    def processors_of_a_worker(self) -> int:
        """Processors that one worker holds, with its engine and learner ranks: GPUs on ``cuda``, else CPU cores."""
        if self.placement == "separate":
            engines = self.replicas * (self.engine.tensor_parallel or 1)
        else:
            # On GPUs they are on those of the ranks.
            engines = self.engine_actors if self.device == "cpu" else 0
        return (self.own_gpus if self.device == "cuda" else 1) + self.rank_actors + engines
