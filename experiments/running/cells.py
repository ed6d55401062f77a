"""Cells: the single runs in sweeps, pilots and tests of a prescription; their names and learning rates.

A cell's run id is a hash of everything that its result depends on: settings, problems, base model, code, versions and
hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import file_digest, sha256
from math import exp, log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isocompute.learner import LearnerConfig, RunConfig
from isocompute.rollout import Prompting, Sampling, ScoringConfig
from isocompute.rollout.scoring.code import code_of_rules, digest, source_hash

from ..errors import ExperimentError
from .identity import COMMAND_LOOP, LOOP, code_of, versions

if TYPE_CHECKING:
    import polars as pl

    from ..settings import CommandTrainer, Preset, ResourcesConfig, SweepConfig


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One ``(B_p, n, seed)`` run and everything that its result depends on.

    Attributes:
        purpose: ``sweep``, ``pilot`` or ``prescribe``; for display, not part of the identity.
        rollouts: Budget, C; not part of the identity, since a longer run begins like the shorter one.
    """

    purpose: str
    origin: Origin
    run: RunConfig
    rollouts: int
    evaluation_samples: int
    learner: LearnerConfig

    @cached_property
    def run_id(self) -> str:
        """Hash of everything that the result depends on."""
        plain = asdict(self)
        del plain["purpose"], plain["rollouts"]
        return digest(plain)

    @property
    def named_run(self) -> RunConfig:
        """Its settings for the learner's loop."""
        return replace(self.run, run_id=self.run_id)

    @cached_property
    def baseline_id(self) -> str:
        """Hash of everything that its first evaluation depends on; cells of one seed share it."""
        return digest(
            {"start": asdict(self.origin), "seed": self.run.seed, "evaluation_samples": self.evaluation_samples}
        )

    @property
    def update_steps(self) -> int:
        """M, the steps in its budget."""
        return self.rollouts // self.run.batch_rollouts

    def evals_row(
        self, *, step: int, rollouts: int, tokens: int, questions: int, scores: Mapping[str, float]
    ) -> dict[str, Any]:
        """A row of its ``evals`` table, with rollouts and tokens up to the step."""
        return {
            "run_id": self.run_id,
            "step": step,
            "rollouts": rollouts,
            "tokens": tokens,
            "rollouts_per_problem": self.run.rollouts_per_problem,
            "problems_per_batch": self.run.problems_per_batch,
            "seed": self.run.seed,
            "problem_set": self.origin.problem_set,
            "split": "validation",
            "questions": questions,
            "samples": self.evaluation_samples,
            "learning_rate": self.learner.learning_rate,
            "base_model": self.origin.base_model,
            **scores,
        }

    @property
    def name(self) -> str:
        """Human-readable name."""
        return (
            f"n={self.run.rollouts_per_problem} Bp={self.run.problems_per_batch} lr={self.learner.learning_rate:.3g} "
            f"{self.origin.base_model} seed={self.run.seed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Inputs shared by all cells of a problem set and a base model.

    Attributes:
        base: Hash of the base model's content.
        problems: Hash of the problems and of their verifiers' code (``problems_hash``).
    """

    problem_set: str
    base_model: str
    base: str
    problems: str
    generation: Generation
    surroundings: Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How responses are generated and scored."""

    sampling: Sampling
    prompting: Prompting = field(default_factory=Prompting)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)

    @classmethod
    def of(cls, preset: Preset) -> Generation:
        """The generation settings of a preset."""
        return cls(sampling=preset.sampling, prompting=preset.prompting, scoring=preset.scoring)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The code, libraries and hardware that compute a result.

    Attributes:
        code: Hash of the code in the import closure of the loop.
        engine: Settings of vLLM, including the type of its weights; the learner's are float32.
        placement: Where the engine is, or the number of engines.
    """

    code: str
    versions: Mapping[str, str]
    sampler: str
    device: str
    engine: Mapping[str, Any]
    placement: str
    learner_ranks: int

    @classmethod
    def of(cls, resources: ResourcesConfig) -> Surroundings:
        """The surroundings in this checkout, for resources with sampler and engine (``Preset.resolved_resources``)."""
        return cls(code=code_of(LOOP), versions=versions(), **computing(resources))


MEMORY = frozenset({"memory_share", "kv_cache_gib", "sleep"})
"""Engine settings that change its memory, but no response."""


def computing(resources: ResourcesConfig) -> dict[str, Any]:
    """Return the part of the resources that a result depends on; the sampler and the engine must be resolved."""
    engine, replicas = asdict(resources.engine), resources.replicas
    return {
        "sampler": resources.sampler,
        "device": resources.device,
        "engine": {name: value for name, value in engine.items() if name not in MEMORY},
        # With several engines, batches differ in the last digits of log-probabilities.
        "placement": resources.placement if replicas == 1 else f"{replicas} replicas",
        "learner_ranks": resources.learner_ranks,
    }


NAMESPACE = "isocompute"
"""Namespace of workers and their placement groups in a Ray cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of a worker.

    Attributes:
        models: Folder or name of each base model, by the hash of its content; they differ only in their weights.
        resources: With a sampler and an engine (``Preset.resolved_resources``).
        beside_vllm: Whether to compare the sampler's log-probabilities with vLLM's, if that is installed. This applies
            to a sampler that a rule has chosen instead of vLLM.
        responses: Most responses that an engine has room for (``Preset.responses``).
    """

    models: Mapping[str, str]
    generation: Generation
    resources: ResourcesConfig
    responses: int | None = None
    beside_vllm: bool = False

    @classmethod
    def of(cls, preset: Preset, models: Mapping[str, str]) -> WorkerConfig:
        """The settings of a preset's workers."""
        return cls(
            models=dict(models),
            generation=Generation.of(preset),
            resources=preset.resolved_resources(),
            responses=preset.responses(),
            beside_vllm=preset.resources.sampler == "auto" and preset.sampler.kind != "vllm",
        )


@dataclass(frozen=True, kw_only=True)
class CommandCell(Cell):
    """A cell that a command trains. Its budget is part of its identity: trainers' schedules depend on their last step.

    It has its own first evaluation, since a trainer samples with its own seeds.
    """

    @cached_property
    def run_id(self) -> str:
        """Hash of everything that the result depends on."""
        plain = asdict(self)
        del plain["purpose"]
        # The learning rate is the only one of our learner's settings that a command uses.
        plain["learner"] = self.learner.learning_rate
        return digest(plain)

    @cached_property
    def baseline_id(self) -> str:
        """Empty: no other cell has the same first evaluation."""
        return ""

    @property
    def command(self) -> CommandSurroundings:
        """The command that trains it."""
        assert isinstance(self.origin.surroundings, CommandSurroundings)
        return self.origin.surroundings

    @property
    def evaluate_steps(self) -> int:
        """Update steps between evaluations."""
        return (self.run.evaluate_every or self.rollouts) // self.run.batch_rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSurroundings(Surroundings):
    """The code and libraries that compute a command's result, with the hash of each file that it depends on."""

    trainer: Mapping[str, Any]
    files: Mapping[str, str]

    @classmethod
    def of_trainer(cls, trainer: CommandTrainer, device: str, project: Path) -> CommandSurroundings:
        """The surroundings in this checkout, with the installed libraries."""
        return cls(
            code=code_of(COMMAND_LOOP),
            versions=versions_of(trainer),
            sampler="command",
            device=device,
            engine={},
            placement="",
            learner_ranks=trainer.world_size,
            trainer=trainer.model_dump(mode="json"),
            files=files_of(trainer, project),
        )


def surroundings_of(preset: Preset) -> Surroundings:
    """Return the surroundings of a preset's cells."""
    if preset.trainer is not None:
        return CommandSurroundings.of_trainer(preset.trainer, preset.resources.device, Path.cwd())
    return Surroundings.of(preset.resolved_resources())


def files_of(trainer: CommandTrainer, project: Path) -> dict[str, str]:
    """Hash of each file and folder that a command depends on: those listed, and its words that are files.

    In Python files, comments, docstrings and message texts change neither results nor hashes.
    """
    named = {word for word in trainer.command[1:] if (project / word).is_file()}
    for name in trainer.files:
        if not (project / name).exists():
            raise ExperimentError(f"trainer.files holds {name}: there is no such file or folder in {project}")
    return {name: _hash(project / name) for name in sorted({*trainer.files, *named})}


def _hash(place: Path) -> str:
    if place.is_dir():
        parts = sorted(path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return digest({str(path.relative_to(place)): _hash(path) for path in parts})
    if place.suffix != ".py":
        with place.open("rb") as stream:
            return file_digest(stream, "sha256").hexdigest()[:16]
    try:
        return source_hash(place)
    except (SyntaxError, UnicodeError) as error:
        raise ExperimentError(f"trainer: {place} is not Python ({error})") from None


def versions_of(trainer: CommandTrainer) -> dict[str, str]:
    """Installed version of each library that a command depends on."""
    found = versions(sorted(trainer.libraries))
    for name in sorted({*trainer.libraries} - {*found}):
        raise ExperimentError(
            f"trainer.libraries holds {name}, which is not installed here: install it; of a command in an environment "
            "of its own, list that one's lock file in trainer.files"
        )
    return found


READ_BY_A_CELL = ("problem_id", "prompt", "answer", "verifier", "metadata", "split")


def problems_hash(problems: pl.DataFrame) -> str:
    """Hash of what a cell reads of its problems, and of their verifiers' code; excludes how hard they are."""
    read = problems.select(name for name in READ_BY_A_CELL if name in problems.columns).sort("problem_id")
    table = sha256(read.write_csv().encode()).hexdigest()[:16]
    rules = code_of_rules(problems["verifier"].to_list())
    return digest([table, rules]) if rules else table


def check_problems(cell: Cell, problems: pl.DataFrame) -> None:
    """Refuse to run a cell whose problems or verifiers do not match its run id."""
    if problems_hash(problems) != cell.origin.problems:
        raise ExperimentError(
            f"the problems of {cell.name}, or the code of their verifiers, changed since the sweep began: start the "
            "same command again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Creates the cells of one problem set."""

    preset: Preset
    sweep: SweepConfig
    origin: Origin

    @classmethod
    def of(
        cls,
        preset: Preset,
        problem_set: str,
        base_model: str,
        surroundings: Surroundings,
        *,
        base: str = "",
        problems: str = "",
    ) -> Design:
        """The design for a preset's problem set and base model; without the hashes, its cells can only be counted."""
        origin = Origin(
            problem_set=problem_set,
            base_model=base_model,
            base=base,
            problems=problems,
            generation=Generation.of(preset),
            surroundings=surroundings,
        )
        return cls(preset=preset, sweep=preset.sweep_of(problem_set), origin=origin)

    def declared_rates(self) -> Rates | None:
        """The learning rates if they are declared; None if pilots find them."""
        rate = self.sweep.declared
        if rate is None:
            return None
        return Rates(rule=rate.rule, found={(rate.batch_rollouts, 1): rate.learning_rate})

    def trials(
        self, rates: Iterable[float] | None = None, *, at: Iterable[tuple[int, int]] | None = None
    ) -> list[Cell]:
        """One pilot cell per seed, (n, B_p) and rate, none for a declared rate; all get one seed before any gets two.

        Args:
            rates: Learning rates; by default the initial ones of a search.
            at: All (n, B_p); by default those that are searched.
        """
        pilot = self.sweep.search
        if pilot is None:
            return []
        tried = list(pilot.learning_rates if rates is None else rates)
        pairs = list(self.sweep.searched() if at is None else at)
        return [
            self.cell("pilot", pilot.run(n, size, seed), rollouts=pilot.rollouts, learning_rate=rate)
            for seed in pilot.seeds
            for rate in tried
            for n, size in pairs
        ]

    def cells(self, rates: Rates) -> list[Cell]:
        """Every (n, B_p), rate factor and seed of the sweep."""
        return [
            self.cell(
                "sweep",
                self.sweep.run(n, size, seed),
                rollouts=self.sweep.rollouts,
                learning_rate=rounded(rates.at(n, size) * factor),
            )
            for n, size in self.sweep.grid()
            for factor in self.sweep.rate_factors
            for seed in self.sweep.seeds
        ]

    def cell(self, purpose: str, run: RunConfig, *, rollouts: int, learning_rate: float) -> Cell:
        """One cell."""
        learner = self.preset.learner(self.sweep, learning_rate=learning_rate)
        if self.sweep.warmup_rollouts is not None:
            steps = max(1, round(self.sweep.warmup_rollouts / run.batch_rollouts))
            learner = replace(learner, optimizer=replace(learner.optimizer, warmup_steps=steps))
        kind = CommandCell if isinstance(self.origin.surroundings, CommandSurroundings) else Cell
        return kind(
            purpose=purpose,
            origin=self.origin,
            run=run,
            rollouts=rollouts,
            evaluation_samples=self.preset.evaluation.samples,
            learner=learner,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The learning rates of a sweep.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        found: The rate at every searched (n, B_p): one, the anchor, or several with ``tuned``. A rate that is declared
            for a batch of B rollouts is at (B, 1).
    """

    rule: str
    found: Mapping[tuple[int, int], float]

    def at(self, rollouts_per_problem: int, problems_per_batch: int) -> float:
        """The learning rate of a cell.

        From an anchor or a declared rate η at B_0 rollouts it is η, η·B/B_0 or η·√(B/B_0). A tuned rate is the one
        found at this (n, B_p). Between two tuned n of one B_p, log η is linear in log n. Beyond them it is the rate of
        the nearest n, since no rule says how the largest stable rate continues. At a B_p that was not searched, the
        nearest B_p (in log B_p) is used.
        """
        if self.rule != "tuned":
            (((n, size), rate),) = self.found.items()
            ratio = rollouts_per_problem * problems_per_batch / (n * size)
            return rate * {"constant": 1.0, "linear": ratio, "sqrt": sqrt(ratio)}[self.rule]
        n, sizes = rollouts_per_problem, sorted({size for _, size in self.found})
        nearest = min(sizes, key=lambda each: abs(log(each / problems_per_batch)))
        points = sorted((n, rate) for (n, size), rate in self.found.items() if size == nearest)
        lower = [point for point in points if point[0] <= n]
        upper = [point for point in points if point[0] >= n]
        (few, low), (many, high) = (lower or upper[:1])[-1], (upper or lower[-1:])[0]
        if few == many:
            return low
        share = log(n / few) / log(many / few)
        rate = exp((1 - share) * log(low) + share * log(high))
        # Rounding must not leave the range that was found.
        return min(max(rate, min(low, high)), max(low, high))


def rounded(rate: float) -> float:
    """Round to twelve digits: a rate is part of a run's identity, and 0.001 must not be 0.0010000000000000002."""
    return float(f"{rate:.12g}")
