"""The sections of a preset: workers and engines, the cells of each problem set, and a command that trains them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from isocompute.learner import RunConfig
from isocompute.learner.config import with_recipe
from isocompute.rollout import EngineConfig
from isocompute.rollout.contract.settings import STRICT, Count, Positive, Whole
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from ..errors import ExperimentError

T = TypeVar("T")


class Settings(BaseModel):
    """Base of all settings: no value is converted, no key is unknown, nothing changes after it was read.

    A rule over several settings is one of the lowest model that has them all (``impossible``).
    """

    model_config = ConfigDict(frozen=True, **STRICT)

    def impossible(self) -> Iterable[str]:
        """Why the settings cannot be together: the first sentence refuses them, so that a rule can rely on those above.

        It begins with the dotted path of the setting that is to change, so that a reader finds it in the file.
        """
        return ()

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        for sentence in self.impossible():
            raise ValueError(sentence)
        return self


NAME = "[a-z0-9][a-z0-9_-]*"
"""A name that reaches command lines, paths and keys, and means nothing else in any of them."""


def checked_name(name: str) -> str:
    """A name of a preset or a problem set, which no shell, path or DVC could read otherwise."""
    if not re.fullmatch(NAME, name):
        raise ExperimentError(
            f"the name {name!r} is none: names have lower-case letters, digits, - and _, and begin with neither sign"
        )
    return name


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is there twice; values must differ")
    return values


Name = Annotated[str, AfterValidator(checked_name)]
"""Name of a preset or a problem set."""
Named = Annotated[Mapping[Name, T], Field(json_schema_extra={"propertyNames": {"pattern": f"^{NAME}$"}})]
"""Settings of problem sets, by name."""
Grid = Annotated[tuple[T, ...], Field(min_length=1, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct)]
"""The values that a sweep tries: one or more, each once."""


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

    def impossible(self) -> Iterator[str]:
        """Without an interval nothing is saved."""
        if self.every_evaluations is None and self.every_steps is None:
            yield "every_evaluations is null, and so is every_steps: one of them must be a number"


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

    def impossible(self) -> Iterator[str]:
        """An engine follows the device and the type, and has its place."""
        engine, separate = self.engine, self.placement == "separate"
        if not separate and self.replicas not in (1, self.learner_ranks):
            yield (
                f"replicas is {self.replicas}, and colocated engines are one in all or one on each of "
                f"{self.learner_ranks} learner ranks' devices: set placement to separate"
            )
        if engine.sleep and separate:
            yield "engine.sleep is set, and no learner is on a separate engine's device: set it to 0"
        if engine.sleep == 2:
            yield "engine.sleep is 2, and a batch of which nothing is learnt is followed by no sync: set it to 1"
        for name, whose in (("profile", "device"), ("dtype", "dtype")):
            if getattr(engine, name) != getattr(EngineConfig(), name):
                yield f"engine.{name} is set; it follows resources.{whose}"
        if (engine.tensor_parallel or 1) > 1 and not separate:
            yield (
                f"engine.tensor_parallel is {engine.tensor_parallel}, and an engine in the worker's process has one "
                "GPU: set placement to separate"
            )

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
        engines = self.engine_actors * (self.engine.tensor_parallel or 1)
        if self.device == "cuda" and self.placement == "colocated":
            # They are on the GPUs of the ranks.
            engines = 0
        return (self.own_gpus if self.device == "cuda" else 1) + self.rank_actors + engines


Scaling = Literal["constant", "linear", "sqrt"]


class Trained(Settings):
    """Cells that are trained for one purpose: a search, the sweep, a test."""

    rollouts: Count
    """Budget of a cell (rollouts)."""
    evaluate_every: Count
    """Rollouts between evaluations: a multiple of every batch, and a divisor of ``rollouts``, so that the end is
    evaluated; the same for every budget, since runs are extended."""
    seeds: Grid[int]
    """Seeds of each (n, B_p); a search, the sweep and a test have different ones, since what selects never measures."""

    def run(self, n: int, problems_per_batch: int, seed: int) -> RunConfig:
        """The learner's settings of a cell, but for the name of its run."""
        return RunConfig(
            rollouts_per_problem=n,
            problems_per_batch=problems_per_batch,
            seed=seed,
            evaluate_every=self.evaluate_every,
        )

    def no_budget_of(self, pairs: Iterable[tuple[int, int]], where: str = "") -> Iterator[str]:
        """In a budget a step can be taken, and its evaluations fall on steps.

        Args:
            where: Dotted path of these settings with its last dot.
        """
        for batch in (n * size for n, size in pairs):
            if batch > self.rollouts:
                yield f"{where}rollouts is {self.rollouts}; one step takes {batch}: no step could be taken"
            if self.evaluate_every % batch or self.rollouts % self.evaluate_every:
                yield (
                    f"{where}evaluate_every is {self.evaluate_every}; it must be a multiple of every batch ({batch}) "
                    f"and divide rollouts ({self.rollouts})"
                )


class Searched(Trained):
    """Settings of every search: the rates tried, scored by the evaluations in the last quarter of the budget."""

    learning_rates: Grid[Positive]
    """Learning rates tried, one cell for each and each seed."""
    extensions: Whole = 1
    """Most further steps of the grid where its best rate lies at the edge."""


class AnchoredRate(Searched):
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
    learning_rate: Positive
    """Learning rate at the batch ``batch_rollouts``."""
    batch_rollouts: Count = 1024
    """The batch B (rollouts) at which that is the rate; without effect for ``constant``. The default is that of the
    IsoCompute Playbook, η = 1e-6 · √(B / 1,024) (section 3, Factor 3)."""


class TunedRate(Searched):
    """A search at every (n, B_p)."""

    rule: Literal["tuned"]
    """Every (n, B_p) has the rate that its own search finds."""
    rollouts_per_problem: Grid[Count] | None = None
    """The n that are searched; null: every n of the sweep. Between them the rate is interpolated in log n."""


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
    Discriminator(
        kind_of,
        custom_error_type="learning_rate_kind",
        custom_error_message="it must have a rule (constant, linear, sqrt or tuned), and either learning_rate, which "
        "declares a rate, or learning_rates, which are searched",
    ),
]


class SweepConfig(Trained):
    """The cells of one problem set: every n × B_p × seed, each with a budget of ``rollouts``."""

    rollouts_per_problem: Grid[Count]
    """Group sizes (rollouts per problem), every n."""
    problems_per_batch: Grid[Count]
    """Problems per batch, every B_p."""
    evaluations_per_octave: Count | None = None
    """Points an octave of a grid of evaluations that is spaced by the logarithm: with 2 and ``evaluate_every: 512``
    there is one at 512, 1,024, 1,536, 2,048, 3,072, 4,096, 6,144, … rollouts; null: at every multiple."""
    warmup_rollouts: Count | None = None
    """Rollouts over which the learning rate rises, the same for every n: a cell's ``warmup_steps`` is this over its B,
    rounded, and at least 1; null: ``optimizer.warmup_steps``, the same in steps."""
    learner: Mapping[str, Any]
    """Settings of the learner as they are written, since what is given must be told from what is not."""
    learning_rate: LearningRate
    """Search for the learning rate of the cells, or its declaration."""
    rate_factors: Grid[Positive] = (1.0,)
    """Factors on that rate: every (n, B_p) is trained at each, and the best is found with n."""
    max_batch_rollouts: int | None = None
    """B_max (rollouts): pairs with B_p · n above it are left out; null keeps all."""

    def run(self, n: int, problems_per_batch: int, seed: int) -> RunConfig:
        """The learner's settings of a cell, on the grid of evaluations of the sweep."""
        return replace(super().run(n, problems_per_batch, seed), evaluations_per_octave=self.evaluations_per_octave)

    def grid(self, group_sizes: Iterable[int] | None = None) -> list[tuple[int, int]]:
        """Every (n, B_p) with B_p · n at most B_max, by n, then B_p: of all n of the sweep, or of some."""
        most, every = self.max_batch_rollouts, self.rollouts_per_problem if group_sizes is None else group_sizes
        return [(n, size) for n in every for size in self.problems_per_batch if most is None or n * size <= most]

    @property
    def declared(self) -> DeclaredRate | None:
        """The rate that is declared, so that there are no pilots; None where it is searched."""
        return self.learning_rate if isinstance(self.learning_rate, DeclaredRate) else None

    @property
    def search(self) -> AnchoredRate | TunedRate | None:
        """The search for learning rates; None where the rate is declared."""
        return None if isinstance(self.learning_rate, DeclaredRate) else self.learning_rate

    def searched(self) -> list[tuple[int, int]]:
        """Every (n, B_p) at which learning rates are tried."""
        search = self.search
        if search is None:
            return []
        if isinstance(search, AnchoredRate):
            return [(search.rollouts_per_problem, search.problems_per_batch)]
        return self.grid(search.rollouts_per_problem)

    def selecting_seeds(self) -> set[int]:
        """Seeds of the sweep and of its search, which choose what is prescribed."""
        return {*self.seeds, *(self.search.seeds if self.search else ())}

    def impossible(self) -> Iterator[str]:
        """Budgets hold whole steps, what selects never measures, and a warm-up is given once."""
        pairs, search = self.grid(), self.search
        if not pairs:
            yield f"max_batch_rollouts is {self.max_batch_rollouts}; no pair has B_p · n of that or less"
        yield from self.no_budget_of(pairs)
        if not self.run(*pairs[0], seed=0).evaluated_at(self.rollouts):
            yield (
                f"rollouts is {self.rollouts}, no point of the grid of evaluations with {self.evaluations_per_octave} "
                f"an octave of {self.evaluate_every}: the end would not be evaluated"
            )
        if search:
            if not self.searched():
                yield f"learning_rate.rollouts_per_problem holds no n with B_p · n of {self.max_batch_rollouts} or less"
            yield from search.no_budget_of(self.searched(), "learning_rate.")
            # Responses that chose the learning rate must not measure it.
            for used in sorted({*search.seeds} & {*self.seeds}):
                yield (
                    f"learning_rate.seeds holds {used}, which is also a seed of the sweep; a search needs seeds of its "
                    "own"
                )
        optimizer = with_recipe(self.learner).get("optimizer")
        if self.warmup_rollouts is not None and isinstance(optimizer, Mapping) and "warmup_steps" in optimizer:
            yield (
                f"warmup_rollouts is {self.warmup_rollouts}, and learner.optimizer.warmup_steps is given: leave one out"
            )


class PrescribeConfig(Trained):
    """The test of the prescription at the budget of the sweep or more: what is decided for it, beside fixed n."""

    baselines: Grid[Count]
    """Every n of the sweep that the prescribed one is compared with, at the best rate and B_p of each."""

    def impossible(self) -> Iterator[str]:
        """A test gives an interval."""
        if len(self.seeds) == 1:
            yield f"seeds is {list(self.seeds)}; one seed gives no interval: give two or more, or leave the test out"


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


class CommandTrainer(Settings):
    """A command trains each cell: a run of another trainer, whose budget is attached and whose log is read.

    The settings with which the trainer generates B_p · n rollouts in each of M steps are appended to the command, in
    the form of the trainer's flags.
    """

    kind: Literal["command"]
    """What it is."""
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

    def impossible(self) -> Iterator[str]:
        """Placeholders are known, and with those that are there cells differ and can be measured."""
        used, of_logs = PLACEHOLDER.findall(" ".join(self.command)), PLACEHOLDER.findall(self.logs)
        for name, held in (*(("command", held) for held in used), *(("logs", held) for held in of_logs)):
            if held not in PLACEHOLDERS:
                yield f"{name} holds {{{held}}}; it may hold {', '.join(PLACEHOLDERS)} in braces"
        for held in NEEDED:
            if held not in used:
                yield f"command lacks {{{held}}}, the {PLACEHOLDERS[held]}"
        if "checkpoints" not in of_logs:
            yield f"logs is {self.logs!r}; it must lie in {{checkpoints}}, since each cell has its own"
