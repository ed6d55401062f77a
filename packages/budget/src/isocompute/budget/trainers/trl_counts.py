"""TRL's batches, and what was generated of them, step by step, from its logs; ``trl`` says where it was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import BudgetError
from ..wording import shorten
from .batching import Batching
from .counting import Progress, Progressed
from .entries import Entries, Generated, generated, possible
from .logs.log import Log
from .schedule import Schedule
from .settings import MissingSettingError, Settings, exact_quotient

LAUNCHED = ("num_processes", "nproc_per_node", "nnodes")
LENGTH, TOKENS = "completions/mean_length", "num_tokens"
ENTRIES = Entries(
    entry="loss",
    length=LENGTH,
    tokens=(TOKENS, "trainer_state.num_tokens"),
    wholes=("completions/min_length", "completions/max_length"),
    shares=("completions/clipped_ratio", "frac_reward_zero_std"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Completions at once, over all processes, and the micro-steps that they are cut into; None where not known."""

    n: int | None
    batch: int | None
    every: int | None
    accumulated: int | None
    iterations: int
    world: int | None


def layers(settings: Settings) -> Layers:
    """The sizes of a run's batches, which both settings and logs are read by."""
    n = settings.whole("num_generations", default=8)
    device = _per_device(settings)
    accumulated = settings.whole("gradient_accumulation_steps", default=1)
    kept, batch = settings.whole("steps_per_generation"), settings.whole("generation_batch_size")
    iterations = settings.whole("num_iterations") or 1
    world = _processes(settings)
    if batch and kept and device and world and batch != device * world * kept:
        settings.inconsistent.append(
            f"generation_batch_size is {batch:,} and steps_per_generation {kept:,}, of which TRL takes one: "
            f"{device:,} completions × {world} processes × {kept:,} are {device * world * kept:,}"
        )
    if world is None and batch and kept and device:
        world = exact_quotient(batch, device * kept)
    if world is None and not any(remark.startswith("world size") for remark in settings.unknown):
        settings.unknown.append(
            "world size: the number of processes is the launcher's (accelerate launch --num_processes); "
            "give --world-size"
        )
    if batch is None and device and accumulated and world:
        batch = device * world * (kept or accumulated)
    if kept is None and batch and device and world:
        kept = exact_quotient(batch, device * world)
        if kept is None:
            settings.inconsistent.append(
                f"generation_batch_size of {batch:,} is not a multiple of the {device * world:,} completions "
                f"of one pass ({device:,} × {world})"
            )
    if n == 1:
        settings.inconsistent.append("num_generations is 1, which TRL refuses: it takes a group of 2 or more")
    elif batch and n and batch % n:
        settings.inconsistent.append(
            f"per_device_train_batch_size counts completions: a generation batch of {batch:,} completions does "
            f"not hold whole groups of {n:,}"
        )
    elif device and n and device < n:
        settings.notes.append(
            f"per_device_train_batch_size counts completions: {device:,} are part of one group of {n:,}, which is "
            "spread over devices and passes"
        )
    return Layers(
        n=n, batch=batch, every=kept and kept * iterations, accumulated=accumulated, iterations=iterations, world=world
    )


def _per_device(settings: Settings) -> int | None:
    """The micro-batch of each process, which the state of a Trainer repeats."""
    device = settings.whole("per_device_train_batch_size", default=8)
    state = settings.whole("trainer_state.train_batch_size")
    if device and state and device != state and "per_device_train_batch_size" not in settings.given:
        settings.inconsistent.append(
            f"per_device_train_batch_size is {state} in the trainer's state and {device} in the configuration"
        )
    return device


def _processes(settings: Settings) -> int | None:
    """Data-parallel ranks: the processes, from the launch line or the caller."""
    for key in ("cp_size", "sp_size"):
        if (settings.whole(f"parallelism_config_{key}", f"parallelism_config.{key}") or 1) > 1:
            settings.inconsistent.append(f"parallelism_config_{key} is above 1, which TRL's GRPO trainer refuses")
    if (settings.whole("parallelism_config_tp_size", "parallelism_config.tp_size") or 1) > 1:
        settings.unknown.append(
            "world size: TRL counts every process as a data-parallel rank, and with parallelism_config_tp_size above 1 "
            "they are not; what it then generates cannot be known from the settings"
        )
        return None
    said = {key: value for key in LAUNCHED if (value := settings.find(key)[1]) is not None}
    words = [f"{key} is {shorten(value)}" for key, value in said.items() if isinstance(value, str)]
    if words:
        settings.unknown.append(f"world size: {' and '.join(words)}, which is only known when the script runs")
        return settings.world_size
    if "num_processes" in said:
        return settings.whole("num_processes")
    if "nproc_per_node" in said:
        return (settings.whole("nproc_per_node") or 1) * (settings.whole("nnodes") or 1)
    return settings.whole("world_size") or settings.world_size


def progress(log: Log, settings: Settings, batching: Batching) -> Progressed:
    """What each step of a run generated for training."""
    logged = [s for s, m in log.rows if s and (ENTRIES.entry in m or LENGTH in m or TOKENS in m)]
    if not logged:
        return Progressed(points=(), following=batching.batch_rollouts)
    counted, schedules = count(log, settings)
    points = [
        Progress(
            logged=step, step=step, rollouts=counted.rollouts(step), rollouts_error=counted.error(step),
            tokens=counted.tokens[step], count_source=counted.source,
        )
        for step in logged
    ]  # fmt: skip
    schedule, steps = schedules[0], logged[-1]
    endless = replace(schedule, batches=None)
    plain = steps * counted.batch * schedule.accumulation // schedule.every
    whole = [s.generations(0, steps) * counted.batch for s in (endless, schedule)]
    more = {
        "whole batches": whole[0] - plain, "short epochs": whole[1] - whole[0], "resume": points[-1].rollouts - whole[1]
    }  # fmt: skip
    return Progressed(
        points=points,
        following=_following(log, logged, schedules) * counted.batch,
        plain=plain,
        more={name: rollouts for name, rollouts in more.items() if rollouts},
    )


def _following(log: Log, logged: Sequence[int], schedules: Sequence[Schedule]) -> int:
    """Batches that the step after the last one generates, the most where a start may have been at several steps."""
    first = log.restarts[-1] if log.restarts else 1
    before = max((step for step in logged if step < first), default=0)
    return max(
        schedule.between(schedule.micro(start), logged[-1], logged[-1] + 1)
        for schedule in schedules
        for start in range(before, first)
    )


def count(log: Log, settings: Settings) -> tuple[Generated, Sequence[Schedule]]:
    """What a run generated, by optimizer step, and the schedules by which it may have."""
    settings.required("per_device_train_batch_size", "trainer_state.train_batch_size", default=8)
    accumulated = settings.required("gradient_accumulation_steps", default=1)
    known = Settings(values=settings.values, where=settings.where, given=settings.given)
    found = layers(known)
    if known.inconsistent:
        raise BudgetError(f"{log.name}: {'; '.join(known.inconsistent)}")
    batch, every = found.batch, found.every
    if batch is None or every is None or found.world is None:
        if any("parallelism" in remark for remark in known.unknown):
            raise BudgetError(f"{log.name}: {'; '.join(known.unknown)}")
        raise MissingSettingError(
            f"{log.name}: world_size (the trainer's processes, one per GPU) is not known: it would follow from "
            "generation_batch_size and steps_per_generation, which are not both in its logs or configuration; give it "
            "with --set world_size=NUMBER", name="world_size",
        )  # fmt: skip
    batches = settings.problems // (batch // found.n) if settings.problems and found.n else None
    if batches is None and every % accumulated and not any(m.get("epoch") for _, m in log.rows):
        raise settings.missing("problems")
    steps = settings.whole("trainer_state.max_steps", "max_steps") if settings.find("max_steps")[1] != -1 else None
    schedules = possible(log, every, accumulated, batches, steps)
    counted = generated(log, ENTRIES, schedules, batch)
    settings.notes += counted.notes
    if not any(LENGTH in metrics for _, metrics in log.rows):
        settings.notes.append(f"{LENGTH} is not logged: tokens are 0 ({TOKENS} counts prompts too)")
    return counted, schedules
