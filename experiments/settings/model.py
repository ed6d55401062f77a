"""The settings of a preset as frozen dataclasses; a value that cannot be is refused when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isocompute.rollout import DifficultySplit, Sampling
from isocompute.rollout.sources import Source

from ..errors import ExperimentError
from ..tiny_config import TinyModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A base model that is there already.

    Attributes:
        model: A folder, or a name on the hub.
        revision: Commit of a model on the hub.
    """

    model: str
    revision: str = ""

    @property
    def name(self) -> str:
        """``model`` or ``model@revision``; a folder's whole path."""
        if Path(self.model).is_dir():
            return str(Path(self.model).resolve())
        return f"{self.model}@{self.revision}" if self.revision else self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """How a policy is scored on validation problems.

    Attributes:
        samples: Responses per question, k.
        metric: The metric that pilots, frontiers and comparisons are about: ``avg_at_k``, ``best_at_k`` or
            ``worst_at_k`` with that k.

    Raises:
        ExperimentError: There is no such metric of so many samples.
    """

    samples: int
    metric: str

    def __post_init__(self) -> None:
        known = tuple(f"{kind}_at_{self.samples}" for kind in ("avg", "best", "worst"))
        if self.samples < 1 or self.metric not in known:
            raise ExperimentError(
                f"metric is {self.metric!r}; with {self.samples} samples it must be {', '.join(known)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotConfig:
    """The search for the learning-rate anchor, at one batch (IsoCompute Playbook, section 3, Factor 3).

    Attributes:
        learning_rates: Rates tried.
        rollouts_per_problem: n of its cells.
        problems_per_batch: B_p of its cells.
        rollouts: Budget of each.
        evaluate_every: Rollouts between evaluations; divides ``rollouts``, so that the end is evaluated.
        seed: A seed that no measured cell uses.
    """

    learning_rates: tuple[float, ...]
    rollouts_per_problem: int
    problems_per_batch: int
    rollouts: int
    evaluate_every: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """The cells of one problem set: every n × B_p × seed, each with a budget of ``rollouts``.

    Attributes:
        rollouts_per_problem: Every n.
        problems_per_batch: Every B_p.
        seeds: Seeds of each (n, B_p).
        rollouts: Budget of a cell, C.
        evaluate_every: Rollouts between evaluations; the same for every budget, since runs are extended.
        learner: Settings of the learner, without the learning rate.
        pilot: The search for the learning rate.
        max_batch_rollouts: B_max: pairs with B_p · n above it are left out; None keeps all.
    """

    rollouts_per_problem: tuple[int, ...]
    problems_per_batch: tuple[int, ...]
    seeds: tuple[int, ...]
    rollouts: int
    evaluate_every: int
    learner: Mapping[str, Any]
    pilot: PilotConfig
    max_batch_rollouts: int | None = None

    def grid(self) -> list[tuple[int, int]]:
        """Every (n, B_p) with B_p · n at most B_max, by n, then B_p."""
        most = self.max_batch_rollouts
        return [
            (n, size)
            for n in self.rollouts_per_problem
            for size in self.problems_per_batch
            if most is None or n * size <= most
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierConfig:
    """How the frontier is fitted."""

    form: str = "auto"
    bootstrap: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrescribeConfig:
    """The larger budget at which the prescription is tested; no seeds: it is written and not tested."""

    rollouts: int
    baselines: tuple[int, ...]
    seeds: tuple[int, ...]
    evaluate_every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesConfig:
    """What the machine gives.

    ``workers``, ``reverse`` and the last three change nothing that a cell finds; the others are part of its
    identity, since engines, types and sums over ranks round differently.

    Attributes:
        workers: Cells trained at a time.
        sampler: ``vllm``, ``transformers``, or ``auto``: vLLM where it is installed.
        device: ``cpu`` or ``cuda``.
        dtype: Type of the sampler's weights, ``float32`` or ``bfloat16``; ``auto`` is bfloat16 for vLLM on CUDA.
        placement: ``colocated``: the engine is in the worker's process; ``separate``: vLLM is a Ray actor of
            its own, on a processor of its own.
        learner_ranks: Learner ranks of a cell. One is in the worker's process; several are Ray actors, each on
            a processor of its own.
        reverse: Whether the last cells are started first.
        start_seconds: How long to wait for workers to load the model.
        stall_seconds: How long a worker may show no progress before it is replaced; longer than one step, and than
            256 problems take while difficulty is measured.
        checkpoint_gigabytes: Disk space for the checkpoints of finished cells; the oldest go first.
    """

    workers: int = 2
    sampler: str = "auto"
    device: str = "cpu"
    dtype: str = "auto"
    placement: str = "colocated"
    learner_ranks: int = 1
    reverse: bool = False
    start_seconds: float = 900.0
    stall_seconds: float = 1800.0
    checkpoint_gigabytes: float = 5.0

    def __post_init__(self) -> None:
        for name in ("workers", "learner_ranks", "start_seconds", "stall_seconds"):
            if not getattr(self, name) >= 1:
                raise ExperimentError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.checkpoint_gigabytes >= 0:
            raise ExperimentError(f"checkpoint_gigabytes is {self.checkpoint_gigabytes}; it must be 0 or more")
        choices = {
            "sampler": ("auto", "vllm", "transformers"),
            "device": ("cpu", "cuda"),
            "dtype": ("auto", "float32", "bfloat16"),
            "placement": ("colocated", "separate"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ExperimentError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        if self.placement == "separate" and self.sampler == "transformers":
            raise ExperimentError("placement is 'separate', which needs vLLM, and sampler is 'transformers'")
        if self.dtype == "bfloat16" and (self.device == "cpu" or self.sampler == "transformers"):
            raise ExperimentError("dtype is 'bfloat16', which is sampled with by vLLM on cuda only")

    def resolved_sampler(self) -> str:
        """The sampler; ``auto`` is vLLM where it is installed, else transformers."""
        if self.sampler != "auto":
            return self.sampler
        return "vllm" if find_spec("vllm") else "transformers"

    def resolved_dtype(self) -> str:
        """Type of the sampler's weights."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self.device == "cuda" and self.resolved_sampler() == "vllm" else "float32"

    def processors_of_a_worker(self) -> int:
        """Processors that one worker holds, with its engine and learner ranks."""
        return 1 + (self.learner_ranks if self.learner_ranks > 1 else 0) + (self.placement == "separate")

    def processors(self) -> int:
        """Processors that all workers hold."""
        return self.workers * self.processors_of_a_worker()


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyConfig:
    """How difficulty is measured, and the problem sets cut by it.

    Attributes:
        samples: Responses per problem that the sets are cut by.
        fresh_samples: Further responses per problem of a set, which measure the base model on it.
        seed: Seed of both; the phases keep their responses apart.
        sets: The problem sets.
    """

    samples: int
    fresh_samples: int
    seed: int
    sets: Mapping[str, DifficultySplit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One preset of ``params.yaml``."""

    name: str
    problems: tuple[Source, ...]
    base: TinyModelConfig | ModelConfig
    sampling: Sampling
    evaluation: EvaluationConfig
    difficulty: DifficultyConfig
    sweep: Mapping[str, SweepConfig]
    frontier: FrontierConfig
    prescribe: Mapping[str, PrescribeConfig]
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)

    def sweep_of(self, problem_set: str) -> SweepConfig:
        """The sweep of a problem set.

        Raises:
            ExperimentError: There is none.
        """
        if problem_set not in self.sweep:
            known = ", ".join(self.sweep)
            raise ExperimentError(f"preset {self.name} has no sweep of {problem_set!r}; it has {known}")
        return self.sweep[problem_set]
