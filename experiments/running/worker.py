"""The worker that runs cells: an engine and a learner in one process, or as actors in one placement group.

It is a plain class, which ``cluster.WorkerActor`` imports only in the actor's process: the driver needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import polars as pl
from isocompute.budget import Ledger, Limits, Meter
from isocompute.learner import (
    CheckpointError,
    Checkpoints,
    Learner,
    LearnerConfig,
    LearnerGroup,
    Progress,
    Updater,
    restore,
    sync_and_check,
    through_deaths,
    timings_table,
    train,
)
from isocompute.learner.records.steps import Agreement
from isocompute.learner.saving.export import save_policy
from isocompute.rollout import EngineConfig, evaluate, open_pipe, open_sampler
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.actor import connected_ray
from isocompute.rollout.samplers.local import PromptMaker, load_tokenizer

from ..errors import ExperimentError, amounts
from . import cell_folder
from .cell_folder import Spool, local_path
from .cells import NAMESPACE, Cell, Generation, WorkerConfig

MICRO_BATCH = "compute.micro_batch_tokens"


class Worker:
    """Runs cells one after another. The engine outlives a cell; its weights are reset to the next cell's base model."""

    def __init__(self, config: WorkerConfig, verify: Callable[[], None] = lambda: None) -> None:
        """Open the engine.

        Args:
            verify: Raises if the code on disk differs from what this process has loaded.
        """
        import torch

        resources = config.resources
        if resources.device == "cpu":
            # Parallelism comes from processes: a second thread slows both.
            torch.set_num_threads(1)
        self.config, self._verify = config, verify
        self._models = {base: local_path(place) for base, place in config.models.items()}
        self._base = next(iter(self._models))
        """The learner's base model."""
        self._sampled = self._base
        """The base model whose weights the sampler has as version 0."""
        self._layout = Bundles.of(config)
        self._group: Any = None
        if self._layout.bundles:
            connected_ray()
            self._group = reserve(self._layout, seconds=resources.start_seconds)
        self._sampler = self._opened_sampler()
        self._compared: set[str] = set()
        """Base models whose log-probabilities have been compared with vLLM's."""
        self._learner: Learner | LearnerGroup | None = None

    def sample(self, problems: pl.DataFrame, samples: int, seed: int, phase: str) -> pl.DataFrame:
        """Answer problems with the base model (the first if there are several), as for measuring difficulty."""
        base = next(iter(self._models))
        if self._sampler.weights_version or self._sampled != base:
            self._sampler.sync(self._fresh_learner(LearnerConfig(learning_rate=1.0), base).weights(), 0)
            self._sampled = base
        answered: pl.DataFrame = self._sampler.sample(
            problems, samples=samples, seed=seed, step=0, phase=phase, run_id="base"
        )
        return answered

    def check(self, configs: Iterable[LearnerConfig], problems: pl.DataFrame) -> None:
        """Compare the engine with learners of the given settings on the base model, before much is sampled from it."""
        for config in dict.fromkeys(map(compared, configs)):
            self._check(config, next(iter(self._models)), problems)

    def evaluate_baseline(self, cell: Cell, problems: pl.DataFrame, folder: Path) -> None:
        """Make the first evaluation, shared by all cells of a seed, once engine and learner agree."""
        base = cell.origin.base
        validation = problems.filter(pl.col("split") == "validation")
        self._check(compared(self._settings_of(cell)), base, validation)
        if self.config.beside_vllm and base not in self._compared and find_spec("vllm"):
            agreement = compare_with_vllm(self._models[base], self.config.generation, validation)
            cell_folder.write_json(folder / cell_folder.BESIDE_VLLM, asdict(agreement))
            self._compared.add(base)
        found = evaluate(
            self._sampler, validation, samples=cell.evaluation_samples, seed=cell.run.seed, at=0, run_id=folder.name
        )
        cell_folder.write_baseline(folder, found)

    def train(self, cell: Cell, problems: pl.DataFrame, home: Path, start: Path) -> None:
        """Run a cell, or the rest of it, in its folder; save its policy if policies are kept."""
        if not cell_folder.finished(cell, home):
            # If a rank dies, the engine survives; any other death ends the worker, and the schedule continues.
            through_deaths(
                lambda: self._run(cell, problems, home, start), checkpoints=Checkpoints(home / cell_folder.CHECKPOINTS)
            )
        if cell_folder.lacks_policy(cell, home, self.config.resources.keep_policies):
            self._save_policy(cell, problems, home)

    def _run(self, cell: Cell, problems: pl.DataFrame, home: Path, start: Path) -> None:
        """Train until the budget is spent, and write the tables."""
        home.mkdir(parents=True, exist_ok=True)
        tokenizer = load_tokenizer(self._models[cell.origin.base])
        prompts = PromptMaker(
            tokenizer,
            self.config.generation.prompting,
            max_prompt_tokens=self.config.generation.sampling.max_prompt_tokens,
        )
        cell_folder.check_prompts(home, prompts.digest(problems))
        if not cell_folder.has_baseline(start):
            self.evaluate_baseline(cell, problems, start)
        learner = self._fresh_learner(self._settings_of(cell), cell.origin.base)
        checkpoints = self._checkpoints_of(home)
        trained = problems.filter(pl.col("split") == "train")
        progress = restore(learner=learner, checkpoints=checkpoints, run=cell.named_run, problems=trained)
        if learner.config != cell.learner and not progress.changes:
            # A run that began with other micro-batches does not match its settings either.
            sizes = [each.compute.micro_batch_tokens for each in (cell.learner, learner.config)]
            progress.changes.append({"step": progress.step, MICRO_BATCH: sizes})
        spool = Spool(home)
        spool.rewind(progress.rollouts)
        validation = problems.filter(pl.col("split") == "validation")
        self._try_sync(cell, home, learner, validation, resumed_from=progress.step)
        with opened_ledger(cell, home, progress) as ledger, self._opened_pipe(cell) as pipe:
            # Count what is used, not what is paid: a cell must end with the same steps however often it was killed.
            meter = UntilStopped(Meter(ledger, Limits(rollouts=cell.rollouts, counted="used")), home)
            ended = train(
                run=cell.named_run,
                problems=trained,
                sampler=self._sampler,
                learner=learner,
                evaluator=partial(self._evaluate, cell, validation, home, start),
                meter=meter,
                checkpoints=checkpoints,
                progress=progress,
                pipe=pipe,
                watch=spool.write,
            )
            if not meter.stopped:
                self._keep(cell, home, ended, ledger, spool)

    def _try_sync(
        self, cell: Cell, home: Path, learner: Updater, validation: pl.DataFrame, *, resumed_from: int
    ) -> None:
        """Run the sync check and charge what it generates.

        This is paid for, but lost by construction: it is charged to an attempt that the training attempt replaces, so
        the canonical ledger does not depend on restarts.
        """
        self._sampled = cell.origin.base
        answered = sync_and_check(learner=learner, sampler=self._sampler, problems=validation, run_id=cell.run_id)
        with Ledger.open(home / cell_folder.LEDGER, run_id=cell.run_id, resumed_from=resumed_from) as ledger:
            ledger.charge(resumed_from + 1, answered.with_columns(cohort=pl.lit("eval")))

    def _evaluate(
        self,
        cell: Cell,
        validation: pl.DataFrame,
        home: Path,
        start: Path,
        *,
        step: int,
        at: int,
        rollouts: int,
        tokens: int,
    ) -> Evaluated:
        """Evaluate at a point of the grid; the first evaluation is read from its file, not generated."""
        if step == 0:
            found, paid_for = cell_folder.read_baseline(start), None
        else:
            found = evaluate(
                self._sampler,
                validation,
                samples=cell.evaluation_samples,
                seed=cell.run.seed,
                at=at,
                run_id=cell.run_id,
            )
            paid_for = found.rollouts
        rates = found.pass_rates.with_columns(run_id=pl.lit(cell.run_id), step=pl.lit(step, dtype=pl.Int64))
        # One file per evaluation: after a crash, a repetition writes the same content again.
        tables.write(rates, "pass_rates", home / "pass_rates" / f"{step}.parquet")
        row = cell.evals_row(
            step=step, rollouts=rollouts, tokens=tokens, questions=found.questions, scores=found.metrics
        )
        return Evaluated(row=row, scores=found.metrics, rollouts_table=paid_for)

    def _keep(self, cell: Cell, home: Path, ended: Progress, ledger: Ledger, spool: Spool) -> None:
        """Write the tables of a finished cell, then mark it as finished."""
        tables.write(pl.DataFrame(ended.evals), "evals", home / "evals.parquet")
        tables.write(ledger.table(), "ledger", home / "ledger.parquet")
        # Use only complete files of this run's evaluations: a kill may have left others.
        steps = sorted({row["step"] for row in ended.evals})
        rates = [tables.read(home / "pass_rates" / f"{step}.parquet", "pass_rates") for step in steps]
        tables.write(tables.concat(rates, "pass_rates"), "pass_rates", home / "pass_rates.parquet")
        timings = timings_table(spool.records(), cell.run_id, devices=self.config.resources.processors_of_a_worker())
        tables.write(timings, "timings", home / "timings.parquet")
        cell_folder.set_done(
            home, cell_folder.Done(rollouts=cell.rollouts, step=ended.step, diverged_at=ended.diverged_at)
        )

    def _save_policy(self, cell: Cell, problems: pl.DataFrame, home: Path) -> None:
        """Save a finished cell's policy from its last checkpoint."""
        learner = self._fresh_learner(self._settings_of(cell), cell.origin.base)
        checkpoints = self._checkpoints_of(home)
        trained = problems.filter(pl.col("split") == "train")
        progress = restore(learner=learner, checkpoints=checkpoints, run=cell.named_run, problems=trained, ended=True)
        ended = cell_folder.done(home)
        if ended is not None and progress.step != ended.step:
            raise CheckpointError(
                f"{home}: the checkpoint of step {ended.step}, at the end of the run, is damaged, and the one before "
                "is not the policy that was measured: delete the folder to train the cell again, or set keep_policies "
                "to none"
            )
        save_policy(learner.weights(), self._models[cell.origin.base], cell_folder.policy_of(home))
        cell_folder.set_policy(home, progress.step)

    def _settings_of(self, cell: Cell) -> LearnerConfig:
        """A cell's learner settings, with micro-batches that fit here."""
        tokens = self.config.resources.micro_batch_tokens
        if tokens is None:
            return cell.learner
        return replace(cell.learner, compute=replace(cell.learner.compute, micro_batch_tokens=tokens))

    def _checkpoints_of(self, home: Path) -> Checkpoints:
        """A cell's checkpoints; it resumes with the micro-batches of its settings or of these resources."""
        saved = self.config.resources.checkpoints.model_dump()
        return Checkpoints(home / cell_folder.CHECKPOINTS, **saved, may_change=[MICRO_BATCH])

    def _opened_sampler(self) -> Any:
        resources, layout = self.config.resources, self._layout
        generation = self.config.generation
        options: dict[str, Any] = {"prompting": generation.prompting, "scoring": generation.scoring}
        if resources.sampler == "vllm":
            options |= {"engine": resources.engine, "responses": self.config.responses}
        else:
            options |= {"device": resources.device, "dtype": resources.resolved_dtype()}
        if layout.engines:
            options["replicas"] = {
                "replicas": len(layout.engines),
                "placement": self._group,
                "bundles": layout.engines,
                "num_gpus": layout.share * layout.bundles[layout.engines[0]].get("GPU", 0.0),
                "transport": resources.transport,
                "tolerance": resources.replica_tolerance,
                "start_seconds": resources.start_seconds,
                "answer_seconds": resources.stall_seconds,
            }
        return open_sampler(resources.sampler, self._models[self._base], self.config.generation.sampling, **options)

    @contextmanager
    def _opened_pipe(self, cell: Cell) -> Iterator[Any]:
        """Open what generates during a cell's updates; None if whole batches are sampled with the sampler alone."""
        pipeline = cell.learner.pipeline
        if not pipeline.lag or pipeline.mode == "constant":
            yield None
            return
        options: dict[str, Any] = {}
        if pipeline.mode == "virtual":
            options = {
                # As many as if sampling and updates alternated.
                "slots": cell.run.batch_rollouts,
                "update_time": pipeline.update_time or self.config.generation.sampling.max_new_tokens / 2,
                "jitter": pipeline.jitter,
                "seed": cell.run.seed,
            }
        with closing(open_pipe(self._sampler, pipeline.mode, **options)) as pipe:
            yield pipe

    def _check(self, config: LearnerConfig, base: str, problems: pl.DataFrame) -> None:
        """Load a base model's weights into the engine and check them; no ledger contains these few responses."""
        self._sampled = base
        sync_and_check(
            learner=self._fresh_learner(config, base), sampler=self._sampler, problems=problems, run_id="base"
        )

    def _fresh_learner(self, config: LearnerConfig, base: str) -> Learner | LearnerGroup:
        """A learner with a base model's weights and a fresh optimizer."""
        if base != self._base and self._learner is not None:
            if isinstance(self._learner, LearnerGroup):
                self._learner.close()
            self._learner = None
        self._base, model = base, self._models[base]
        if self._learner is not None:
            self._learner.reset(config)
        elif not self.config.resources.rank_actors:
            self._learner = Learner(model, config, device=self.config.resources.device)
        else:
            self._learner = LearnerGroup(
                model,
                config,
                world_size=len(self._layout.ranks),
                device=self.config.resources.device,
                placement=self._group,
                bundles=self._layout.ranks,
                gpu_share=self._layout.share,
                update_patience=self.config.resources.stall_seconds,
            )
            # The ranks have imported the code that is on disk now.
            self._verify()
        return self._learner


def compared(config: LearnerConfig) -> LearnerConfig:
    """The settings that determine whether engine and learner agree, without a reference or critic to load."""
    names = ("temperature", "sampler_dtype", "adapter", "compute", "sync")
    return LearnerConfig(learning_rate=1.0, **{name: getattr(config, name) for name in names})


@contextmanager
def opened_ledger(cell: Cell, home: Path, progress: Progress) -> Iterator[Ledger]:
    """Open a cell's ledger where it resumes, charging once what a killed process had in flight."""
    with Ledger.open(home / cell_folder.LEDGER, run_id=cell.run_id, resumed_from=progress.step) as ledger:
        if cell.learner.pipeline.lag:
            restored = progress.restored(cell.run)
            ledger.charge_lost(progress.step, restored=restored)
            ledger.take_back(progress.step, restored=restored)
        yield ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation as the loop needs it: a row of ``evals``, its scores, and the responses that this run pays for."""

    row: Mapping[str, Any]
    scores: Mapping[str, float]
    rollouts_table: pl.DataFrame | None


class UntilStopped:
    """A meter that admits no further step once the cell is asked to stop; the loop then saves a checkpoint and ends."""

    def __init__(self, meter: Meter, home: Path) -> None:
        self._meter, self._home, self.stopped = meter, home, False
        self.reserve = meter.reserve

    def charge(self, step: int, rollouts: pl.DataFrame, /) -> None:
        """Record what was generated; what a stop leaves in flight belongs to the attempt that resumes."""
        if not self.stopped or (rollouts["cohort"] != "unused").any():
            self._meter.charge(step, rollouts)

    def admit(self, *, step: int, rollouts: int) -> bool:
        """Return whether a step may be taken."""
        admitted = bool(self._meter.admit(step=step, rollouts=rollouts))
        # A request that is cleared meanwhile, as by the next command, still stops the cell.
        self.stopped = self.stopped or (admitted and cell_folder.stop_requested(self._home))
        return admitted and not self.stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """The bundles of a placement group, and the processes in each.

    Attributes:
        bundles: The resources of each, in Ray's names.
        ranks: The bundle of each learner rank that is an actor.
        engines: The bundle of each engine that is an actor.
        share: Share of its GPU that each process takes.
    """

    bundles: Sequence[dict[str, float]]
    ranks: Sequence[int]
    engines: Sequence[int]
    share: float

    @classmethod
    def of(cls, config: WorkerConfig) -> Bundles:
        """Lay out a worker's processes.

        Separate engines have their own bundles; several colocated engines have one on each rank's device.
        """
        asked = config.resources
        gpus, ranks, engines = asked.device == "cuda", asked.rank_actors, asked.engine_actors
        shared = engines > 0 and asked.placement == "colocated"
        rank = {"CPU": 2.0 if shared else 1.0, **({"GPU": 1.0} if gpus else {})}
        engine = {"CPU": 1.0, **({"GPU": float(asked.engine.tensor_parallel or 1)} if gpus else {})}
        return cls(
            bundles=[rank] * ranks + [engine] * (0 if shared else engines),
            ranks=range(ranks),
            engines=range(engines) if shared else range(ranks, ranks + engines),
            share=0.5 if shared else 1.0,
        )


def reserve(layout: Bundles, *, seconds: float) -> Any:
    """Return a placement group for a layout.

    Ray ends a group with the command whose workers reserved it, not with the worker. So groups of dead workers are
    removed if there is no room.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    context = ray.get_runtime_context()
    name = context.get_actor_name() if context.worker.mode == ray.WORKER_MODE else ""
    group: Any = placement_group(list(layout.bundles), strategy="PACK", name=name or "")
    end = monotonic() + seconds
    # Unlike ready(), wait() starts no worker process.
    while not (there := group.wait(1.0)) and monotonic() < end:
        _remove_orphans()
    if not there:
        remove_placement_group(group)
        needed, has = amounts(layout.bundles), amounts([ray.cluster_resources()])
        raise ExperimentError(
            f"{len(layout.ranks)} learner ranks and {len(layout.engines)} engines need {needed} together, and in "
            f"{seconds:g} s the cluster, which has {has} in all, had no room for them: set learner_ranks, replicas or "
            "workers lower, or join a larger cluster"
        )
    return group


def _remove_orphans() -> None:
    """Remove the groups of dead workers: each group is named after its worker, and is in our namespace."""
    import ray
    from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group

    named = [entry["name"] for entry in placement_group_table().values() if entry["state"] != "REMOVED"]
    for name in filter(None, named):
        try:
            ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            with suppress(ValueError):
                # Another worker may be removing it.
                remove_placement_group(get_placement_group(name))


VLLM_TOLERANCE = 1e-4
"""Allowed difference between two programs' log-probabilities of a token in float32, in nats; rounding gives 3e-6."""
COMPARED_PROBLEMS, COMPARED_SAMPLES = 4, 2


def compare_with_vllm(model: str, generation: Generation, problems: pl.DataFrame) -> Agreement:
    """Compare a model's log-probabilities in vLLM with those in transformers, for tokens that vLLM has sampled.

    vLLM runs in its own process, which then ends: what it loads and sets must not affect results of this process.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        try:
            found = apart.submit(_compared, model, generation, problems.head(COMPARED_PROBLEMS)).result()
        except BrokenProcessPool:
            raise ExperimentError(f"{model}: the process that was to answer with vLLM ended before it had") from None
    check_beside(found, model)
    return found


def check_beside(found: Agreement, model: str) -> None:
    """Refuse a model for which the two programs disagree."""
    # Written this way because a NaN must count as disagreement.
    if not found.maximum <= VLLM_TOLERANCE:
        raise ExperimentError(
            f"{model}: vLLM's log-probabilities of tokens differ from those of transformers by up to "
            f"{found.maximum:.2g} nats, which must be at most {VLLM_TOLERANCE:g}: one of the two does not compute this "
            "model; name the right one in resources.sampler"
        )


def _compared(model: str, generation: Generation, problems: pl.DataFrame) -> Agreement:
    import torch

    torch.set_num_threads(1)
    options: dict[str, Any] = {
        "prompting": generation.prompting,
        "scoring": generation.scoring,
        "engine": EngineConfig(profile="cpu"),
        "responses": COMPARED_PROBLEMS * COMPARED_SAMPLES,
    }
    with closing(open_sampler("vllm", model, generation.sampling, **options)) as sampler:
        rollouts = sampler.sample(problems, samples=COMPARED_SAMPLES, seed=0, step=0, phase="canary")
    learner = Learner(model, LearnerConfig(learning_rate=1.0, temperature=generation.sampling.temperature))
    return learner.agreement(rollouts)
