"""One preset of ``params.yaml``, from its problems to its machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Self

from isocompute.rollout import (
    DifficultySplit,
    HubSource,
    LocalSource,
    Prompting,
    ReasoningGymSource,
    Sampling,
    ScoringConfig,
)
from isocompute.rollout.scoring.refused import REFUSED
from pydantic import AfterValidator, BeforeValidator, model_validator

from ..errors import ExperimentError
from .bases import ModelConfig, PreparedConfig, check_pinned, of_hub
from .consistency import check
from .resources import ResourcesConfig
from .strict import ByKind, Count, Name, Named, SettingError, Settings, with_names
from .sweep import PrescribeConfig, SweepConfig
from .trainer import CommandTrainer, LearnerTrainer


class EvaluationConfig(Settings):
    """How a policy is scored on validation problems."""

    samples: Count
    """Responses per question, k."""
    metric: str
    """The metric that pilots, frontiers and comparisons are about: ``avg_at_k``, ``best_at_k`` or ``worst_at_k`` with
    that k."""

    @model_validator(mode="after")
    def _metric_is_of_so_many_samples(self) -> Self:
        known = tuple(f"{kind}_at_{self.samples}" for kind in ("avg", "best", "worst"))
        if self.metric not in known:
            raise SettingError(
                "metric", f"is {self.metric!r}; with {self.samples} samples it must be {', '.join(known)}"
            )
        return self


class FrontierConfig(Settings):
    """How the frontier is fitted."""

    seed: int = 0
    """Seed of the posterior's draws."""


class DifficultyConfig(Settings):
    """How difficulty is measured, and the problem sets cut by it."""

    samples: Count
    """Responses per problem that the sets are cut by."""
    fresh_samples: Count
    """Further responses per problem of a set, which measure the base model on it."""
    seed: int
    """Seed of both; the phases keep their responses apart."""
    sets: Annotated[Named[DifficultySplit], BeforeValidator(with_names)]
    """The problem sets by name."""


AnySource = ReasoningGymSource | HubSource | LocalSource
AnyBase = ModelConfig | PreparedConfig


def _usable(source: AnySource) -> AnySource:
    """A source that is pinned, asks for problems, and has no refused task."""
    if isinstance(source, HubSource):
        check_pinned("dataset", source.dataset, source.revision)
    # A source may give problems to one side only.
    for side, count in (("train", source.train), ("validation", source.validation)):
        if count < 0:
            raise SettingError(side, f"is {count}; it must be at least 0")
    if source.train + source.validation == 0:
        raise SettingError("", "asks for no problems: train or validation must be at least 1")
    if isinstance(source, ReasoningGymSource) and source.task in REFUSED:
        raise SettingError("task", f"is {source.task!r}, a task that is refused: {REFUSED[source.task]}")
    return source


def _whole_distribution(sampling: Sampling) -> Sampling:
    for name, whole in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(sampling, name) != whole:
            raise SettingError(
                name,
                f"is {getattr(sampling, name):g}: a policy is trained on samples from the whole distribution, "
                f"with {name} {whole}",
            )
    if sampling.temperature == 0:
        raise SettingError("temperature", "is 0: a policy is trained on samples, with a temperature above 0")
    return sampling


Source = Annotated[
    AnySource,
    ByKind({"reasoning_gym": ReasoningGymSource, "hub": HubSource, "file": LocalSource}),
    AfterValidator(_usable),
]


class Preset(Settings):
    """One preset of ``params.yaml``."""

    name: Name
    """Its key in ``params.yaml``."""
    problems: tuple[Source, ...]
    """Where the problems come from; none where base models are prepared."""
    base: Annotated[AnyBase, ByKind({"model": ModelConfig, "prepared": PreparedConfig})]
    """The base model, or several that are prepared."""
    sampling: Annotated[Sampling, AfterValidator(_whole_distribution)]
    """How responses are sampled, for training and for evaluation."""
    prompting: Prompting = Prompting()
    """How prompts are made."""
    scoring: ScoringConfig = ScoringConfig()
    """How responses are scored."""
    evaluation: EvaluationConfig
    """How a policy is scored."""
    difficulty: DifficultyConfig | None
    """How difficulty is measured, and the problem sets cut by it; null where base models are prepared."""
    trainer: Annotated[
        LearnerTrainer | CommandTrainer, ByKind({"learner": LearnerTrainer, "command": CommandTrainer})
    ] = LearnerTrainer()
    """What trains the cells: our learner, or a command."""
    sweep: Named[SweepConfig]
    """The cells of each problem set."""
    frontier: FrontierConfig = FrontierConfig()
    """How the frontier is fitted."""
    prescribe: Named[PrescribeConfig]
    """The test of what is prescribed, of the problem sets that have one."""
    resources: ResourcesConfig = ResourcesConfig()
    """Workers, engines, devices and time limits."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check(self)
        return self

    def devices_of_a_worker(self) -> int:
        """Processors that one worker holds while cells are trained."""
        own = self.resources.processors_of_a_worker()
        return max(own, self.trainer.world_size) if isinstance(self.trainer, CommandTrainer) else own

    def processors(self) -> int:
        """Processors that all workers hold."""
        return self.resources.workers * self.devices_of_a_worker()

    def needs_the_hub(self) -> bool:
        """Whether a data set or the base model is a name on the hub."""
        hub = [s.dataset for s in self.problems if isinstance(s, HubSource)]
        hub += [self.base.model] if isinstance(self.base, ModelConfig) else []
        return any(map(of_hub, hub))

    @property
    def base_models(self) -> tuple[str, ...]:
        """Names of the base models."""
        return tuple(model.name for model in self.base.models) if isinstance(self.base, PreparedConfig) else ("base",)

    @property
    def generation(self) -> dict[str, Any]:
        """How responses are generated and scored, as plain values: part of the identity of every run."""
        return {name: asdict(getattr(self, name)) for name in ("sampling", "prompting", "scoring")}

    def sweep_of(self, problem_set: str) -> SweepConfig:
        """The sweep of a problem set."""
        if problem_set not in self.sweep:
            known = ", ".join(self.sweep)
            raise ExperimentError(f"preset {self.name} has no sweep of {problem_set!r}; it has {known}")
        return self.sweep[problem_set]
