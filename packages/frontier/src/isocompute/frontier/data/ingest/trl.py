"""TRL's GRPOTrainer: batch sizes count completions, and the step counts optimizer steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...errors import FrontierError
from .counting import lengths
from .run import Layout, Run
from .settings import Settings

LENGTHS = ("completions/mean_length", "train/completions/mean_length")
LAYOUT = Layout(
    steps=("train/global_step", "global_step", "step"),
    needed=re.compile(r"(?:train/)?completions/mean_length$|eval[/_](?!runtime|.*per_second)"),
)


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals`` from ``eval_…`` metrics; the reward is avg@k over the evaluation's generations.

    Args:
        run: The run's logs.
        settings: What its configuration and ``--set`` say.

    Returns:
        The rows, and notes on defaults used and on what is biased; both empty where the run has no evaluation.

    Raises:
        FrontierError: A setting that is needed is missing, or the metric is not a success rate.
    """
    metric = settings.text("metric")
    every = ((step, _score(metrics, metric)) for step, metrics in run.rows)
    scored = {step: score for step, score in every if score is not None}
    if not scored:
        return [], []
    n = settings.whole("rollouts_per_problem", "num_generations")
    generation = _generation(settings, n)
    common = settings.common(n=n, problems=generation.batch // n, seed_keys=("seed",))
    samples = settings.whole("samples", "num_generations_eval", "num_generations")
    found, notes = [], set(settings.notes)
    tokens, before = 0.0, 0
    for (step, _), length in zip(run.rows, lengths(run, *LENGTHS), strict=True):
        rollouts = generation.after(step)
        tokens += (rollouts - before) * length
        before = rollouts
        if step not in scored:
            continue
        name, value = scored[step]
        if not 0 <= value <= 1:
            raise FrontierError(
                f"{run.name}: {name} is {value:g} at step {step}, which is not a success rate: "
                "name the accuracy's own metric with --set metric=NAME"
            )
        notes.add(f"avg_at_{samples} is {name}")
        found.append(
            {**common, "step": step, "rollouts": rollouts, "tokens": int(tokens),
             "problem_set": settings.text("problem_set", default="eval"), "samples": samples,
             f"avg_at_{samples}": value}
        )  # fmt: skip
    if tokens == 0 and any(row["step"] for row in found):
        notes.add("completions/mean_length is not logged: tokens are 0 (num_tokens counts prompts too)")
    return found, sorted(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How the trainer generates.

    After s optimizer steps ⌈s·accumulation / every⌉ batches have been generated.

    Attributes:
        batch: Completions generated at once, over all processes.
        every: Micro-batches trained on between two generations.
        accumulation: Micro-batches of an optimizer step.
    """

    batch: int
    every: int
    accumulation: int

    def after(self, step: int) -> int:
        """Completions generated up to and including an optimizer step."""
        return -(-step * self.accumulation // self.every) * self.batch


def _generation(settings: Settings, n: int) -> Generation:
    """TRL's generation_batch_size = per_device_train_batch_size × world size × steps_per_generation.

    The world size is a property of TRL's configuration, which its dumps leave out; the other three are in them.
    """
    per_device = _per_device(settings)
    accumulation = settings.whole("gradient_accumulation_steps", "gradient_accumulation_steps")
    batch = settings.optional("generation_batch_size", "generation_batch_size")
    pieces = settings.optional("steps_per_generation", "steps_per_generation")
    world = settings.optional("world_size", "world_size", "num_processes")
    if world is None and (batch is None or pieces is None):
        raise FrontierError(
            f"{settings.where}: world_size (the trainer's processes, one per GPU) is not known: it would follow from "
            "generation_batch_size and steps_per_generation, which are not both in its logs or configuration; give "
            "it with --set world_size=NUMBER"
        )
    if pieces is None and batch is not None and world is not None and batch % (per_device * world) == 0:
        pieces = batch // (per_device * world)
    if pieces is None:
        pieces = settings.whole("steps_per_generation", "steps_per_generation", default=accumulation)
    micro = per_device * pieces
    batch = micro * (world or 1) if batch is None else batch
    if batch % micro:
        raise FrontierError(
            f"{settings.where}: generation_batch_size is {batch}, which is not a multiple of "
            f"per_device_train_batch_size × steps_per_generation = {per_device} × {pieces}"
        )
    if world is not None and batch != micro * world:
        raise FrontierError(
            f"{settings.where}: generation_batch_size is {batch}, but per_device_train_batch_size × world_size × "
            f"steps_per_generation = {per_device} × {world} × {pieces} is {micro * world}: one of them is wrong"
        )
    if batch % n:
        raise FrontierError(
            f"{settings.where}: a generation batch of {batch} completions must be a multiple of num_generations = {n} "
            "(per_device_train_batch_size counts completions)"
        )
    iterations = settings.whole("num_iterations", "num_iterations", default=1)
    return Generation(batch=batch, every=pieces * iterations, accumulation=accumulation)


def _per_device(settings: Settings) -> int:
    """The micro-batch of each process, which the trainer's state repeats."""
    configured = settings.optional("per_device_train_batch_size", "per_device_train_batch_size")
    state = settings.found("trainer_state.train_batch_size", "trainer_state.train_batch_size")
    if settings.is_given("per_device_train_batch_size") or configured is None or state in (None, configured):
        return settings.whole("per_device_train_batch_size", "per_device_train_batch_size",
                              "trainer_state.train_batch_size")  # fmt: skip
    raise FrontierError(
        f"{settings.where}: per_device_train_batch_size is {state} in the trainer's state and {configured} in the "
        "configuration; say which with --set per_device_train_batch_size=NUMBER"
    )


def _score(metrics: dict[str, float], wanted: str) -> tuple[str, float] | None:
    """The evaluation's success rate: the metric named, else the one reward there is."""
    names = [wanted] if wanted else ["eval_reward", "eval/reward"]
    return next(((name, metrics[name]) for name in names if name in metrics), None)
