"""TRL's ``GRPOConfig``: every batch size counts completions, none counts prompts.

Read in ``trl/trainer/grpo_config.py`` of 1.16: ``generation_batch_size`` is ``per_device_train_batch_size`` ×
processes × ``steps_per_generation``, which is ``gradient_accumulation_steps`` unless it is set, and is filled with
groups of ``num_generations``. ``max_steps`` counts optimizer steps and overrides ``num_train_epochs``. The number of
processes is the launcher's: ``accelerate launch --num_processes``, or ``torchrun --nnodes`` × ``--nproc_per_node``.
Every process is a data-parallel rank: ``GRPOConfig`` refuses context and sequence parallelism, and counts the
processes of tensor parallelism as if each had rollouts of its own.
"""

from __future__ import annotations

from ...errors import BudgetError
from ...wording import shorten
from ..framework import Framework
from ..reading import Reading
from ..run import Configuration, Run
from ..settings import Settings, exact_quotient


def write(run: Run) -> Configuration:
    """Settings for a run.

    Raises:
        BudgetError: A group of one, which TRL refuses.
    """
    a = run.allocation
    if a.rollouts_per_problem < 2:
        raise BudgetError("TRL refuses num_generations of 1, whose advantages are all zero; take 2 or more")
    accumulated = run.rank_rollouts // run.pass_rollouts
    return Configuration(
        framework="trl",
        settings={
            "num_generations": a.rollouts_per_problem,
            "per_device_train_batch_size": run.pass_rollouts,
            "gradient_accumulation_steps": accumulated,
            "steps_per_generation": accumulated,
            "num_iterations": 1,
            "max_steps": a.update_steps,
            **run.learning_rate_setting("learning_rate"),
        },
        notes=(
            f"start {run.world_size} process{'es' if run.world_size > 1 else ''}: "
            f"accelerate launch --num_processes {run.world_size}",
            "per_device_train_batch_size counts completions, not prompts",
            f"needs at least {a.problems_per_batch:,} problems, or no generation batch is complete",
        ),
    )


def parse(settings: Settings) -> Reading:
    """Interpret TRL's settings."""
    n = settings.whole("num_generations", default=8)
    device = settings.whole("per_device_train_batch_size", default=8)
    accumulated = settings.whole("gradient_accumulation_steps", default=1)
    kept = settings.whole("steps_per_generation")
    generated = settings.whole("generation_batch_size")
    world = _processes(settings)
    if generated is not None and kept is not None:
        settings.inconsistent.append("generation_batch_size and steps_per_generation are both set, which TRL refuses")
    if n == 1:
        settings.inconsistent.append("num_generations is 1, which TRL refuses: it takes a group of 2 or more")
    if world is None and not any(remark.startswith("world size") for remark in settings.unknown):
        settings.unknown.append(
            "world size: the number of processes is the launcher's (accelerate launch --num_processes); "
            "give --world-size"
        )
    if generated is None and device and accumulated and world:
        generated = device * world * (kept or accumulated)
    if kept is None and generated and device and world:
        kept = exact_quotient(generated, device * world)
        if kept is None:
            settings.inconsistent.append(
                f"generation_batch_size of {generated:,} is not a multiple of the {device * world:,} completions "
                f"of one pass ({device:,} × {world})"
            )
    problems = exact_quotient(generated, n)
    if generated and n and problems is None:
        settings.inconsistent.append(
            f"per_device_train_batch_size counts completions: a generation batch of {generated:,} completions does "
            f"not hold whole groups of {n:,}"
        )
    elif device and n and device < n:
        settings.notes.append(
            f"per_device_train_batch_size counts completions: {device:,} are part of one group of {n:,}, which is "
            "spread over devices and passes"
        )
    per_batch = _steps_on_each_batch(settings, kept or accumulated, accumulated)
    batches = _batches(settings, problems, per_batch)
    if settings.values.get("eval_strategy") not in (None, "no"):
        settings.notes.append(
            "evaluations generate in addition: num_generations_eval for each prompt of the evaluation set"
        )
    return settings.reading(
        problems_per_batch=problems,
        rollouts_per_problem=n,
        update_steps=batches,
        per_batch=per_batch,
        world_size=world,
        data_parallel=world,
    )


def _steps_on_each_batch(settings: Settings, kept: int | None, accumulated: int | None) -> int | None:
    """Optimizer steps on each generation batch: its passes, as often as it is used, over the passes of a step."""
    passes = (kept or 0) * (settings.whole("num_iterations") or 1)
    per_batch = exact_quotient(passes, accumulated)
    if accumulated and passes and per_batch is None:
        settings.inconsistent.append(
            f"{passes} passes over a generation batch are not a whole number of optimizer steps of {accumulated} passes"
        )
    return per_batch


def _batches(settings: Settings, problems: int | None, per_batch: int | None) -> int | None:
    """M, generation batches, from optimizer steps or epochs."""
    steps = settings.whole("max_steps") if settings.values.get("max_steps") != -1 else None
    if steps is None:
        return settings.steps(None, settings.fraction("num_train_epochs", default=3), problems, "num_train_epochs")
    if per_batch and steps % per_batch:
        settings.inconsistent.append(f"max_steps of {steps:,} ends within a generation batch of {per_batch} steps")
    return -(-steps // per_batch) if per_batch else None


def _processes(settings: Settings) -> int | None:
    """Data-parallel ranks: the processes, from the launch line or the caller."""
    for key in ("cp_size", "sp_size"):
        if (settings.whole(f"parallelism_config_{key}") or 1) > 1:
            settings.inconsistent.append(f"parallelism_config_{key} is above 1, which TRL's GRPO trainer refuses")
    if (settings.whole("parallelism_config_tp_size") or 1) > 1:
        settings.unknown.append(
            "world size: TRL counts every process as a data-parallel rank, and with parallelism_config_tp_size above 1 "
            "they are not; what it then generates cannot be known from the settings"
        )
        return None
    launched = ("num_processes", "nproc_per_node", "nnodes")
    said = {key: value for key in launched if (value := settings.values.get(key)) is not None}
    words = [f"{key} is {shorten(value)}" for key, value in said.items() if isinstance(value, str)]
    if words:
        settings.unknown.append(f"world size: {' and '.join(words)}, which is only known when the script runs")
        return settings.world_size
    if "num_processes" in said:
        return settings.whole("num_processes")
    if "nproc_per_node" in said:
        return (settings.whole("nproc_per_node") or 1) * (settings.whole("nnodes") or 1)
    return settings.world_size


TRL = Framework(name="trl", title="TRL", style="dashes", write=write, parse=parse)
