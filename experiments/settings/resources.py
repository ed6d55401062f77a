"""Workers, engines, devices and time limits, and when a cell's state is saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

from isocompute.rollout import EngineConfig
from isocompute.rollout.contract.settings import Count, Positive
from pydantic import Field, model_validator

from .strict import Settings

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
    """Newest checkpoints kept per cell."""

    @model_validator(mode="after")
    def _one_interval(self) -> Self:
        if self.every_evaluations is None and self.every_steps is None:
            raise ValueError("every_evaluations is null, and so is every_steps: one of them must be a number")
        return self


class ResourcesConfig(Settings):
    """Workers, engines, devices and time limits.

    ``workers``, ``reverse``, ``transport``, ``replica_tolerance``, ``start_seconds``, ``stall_seconds``,
    ``checkpoints``, ``checkpoint_gigabytes``, ``keep_policies`` and ``engine.sleep`` do not affect results; the others
    are part of a run's identity, because engines, dtypes and sums over ranks round differently. ``micro_batch_tokens``
    rounds differently, too, and is no part of it: the records of a run say where it was used.
    """

    workers: Count = 2
    """Cells trained at a time; on a cluster that has no room for all of them, as many as it has, until it grows."""
    sampler: Literal["auto", "vllm", "transformers"] = "auto"
    """Kind of sampler; ``auto`` is the one that costs less: transformers for a base model of fewer than 5 million
    parameters and prompts with responses of up to 80 tokens on ``cpu``, where its log-probabilities are first compared
    with vLLM's, if that is installed; else vLLM, also for a model on the hub."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that the learner and the sampler run on."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the sampler's weights; ``auto`` is bfloat16 for vLLM on CUDA, else float32. What the sync check tolerates
    follows it, unless ``learner.sync`` says otherwise."""
    engine: EngineConfig = EngineConfig()
    """Settings of vLLM: its profile, and what differs from it."""
    placement: Literal["colocated", "separate"] = "colocated"
    """``colocated``: the engine is in the worker's process, or one is on each learner rank's device; ``separate``:
    engines are Ray actors on processors of their own."""
    replicas: Count = 1
    """Engines that answer the batches of a cell together, with the same weights; several are Ray actors, in one
    placement group with the learner ranks."""
    transport: Literal["auto", "object_store", "gloo", "nccl", "ipc"] = "auto"
    """Transport of weights to engines that are Ray actors; ``auto``: ``object_store`` on CPU, ``nccl`` between GPUs,
    ``ipc`` on one GPU."""
    replica_tolerance: Positive | None = None
    """Largest difference of the log-probabilities of several engines after the same prompts once they have taken over
    the same weights (nats); null follows their type: 0.001 in float32, 0.2 in bfloat16."""
    learner_ranks: Count = 1
    """Learner ranks of a cell. One is in the worker's process; several are Ray actors, each on a processor of its
    own."""
    micro_batch_tokens: Count | None = None
    """Most tokens of a pass of the learner, in place of ``learner.compute.micro_batch_tokens``, where an update ran out
    of memory: cells go on from their checkpoints, equal to rounding and no longer bit for bit, which the metric
    ``health/rounding_changes`` says; null: the learner's own."""
    reverse: bool = False
    """Start the last cells first."""
    start_seconds: Seconds = 900.0
    """Timeout for a worker to load the model, and for any worker to be there (seconds)."""
    stall_seconds: Seconds = 1800.0
    """Timeout for a worker without progress, which is then replaced (seconds); longer than one step, and than 256
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
    def _the_engine_has_its_place(self) -> Self:
        if self.placement == "colocated" and self.replicas not in (1, self.learner_ranks):
            raise ValueError(
                f"replicas is {self.replicas}, and colocated engines are one in all or one on each of "
                f"{self.learner_ranks} learner ranks' devices: set placement to separate"
            )
        if self.engine.sleep and self.placement == "separate":
            raise ValueError("engine.sleep is set, and no learner is on a separate engine's device: set it to 0")
        if self.engine.sleep == 2:
            raise ValueError(
                "engine.sleep is 2, and a batch of which nothing is learnt is followed by no sync: set it to 1"
            )
        for name in ("profile", "dtype"):
            if getattr(self.engine, name) != getattr(EngineConfig(), name):
                whose = "device" if name == "profile" else name
                raise ValueError(f"engine.{name} is set; it follows resources.{whose}")
        if (self.engine.tensor_parallel or 1) > 1 and self.placement == "colocated":
            raise ValueError(
                f"engine.tensor_parallel is {self.engine.tensor_parallel}, and an engine in the worker's process has "
                "one GPU: set placement to separate"
            )
        return self

    def resolved_dtype(self) -> Literal["float32", "bfloat16", "float16"]:
        """The type of the sampler's weights."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self.device == "cuda" and self.sampler != "transformers" else "float32"

    def resolved_engine(self) -> EngineConfig:
        """Return the settings of vLLM, with the profile of the device and the type of the weights."""
        share = self.engine.memory_share
        if share is None and self.device == "cuda" and self.placement == "colocated":
            # The learner is on the same GPU.
            share = COLOCATED_MEMORY_SHARE
        return replace(self.engine, profile=self.device, dtype=self.resolved_dtype(), memory_share=share)

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
