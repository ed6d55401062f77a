"""TRL's ``GRPOTrainer``: every batch size counts completions, none counts prompts.

Read in ``trl/trainer/grpo_config.py`` and ``grpo_trainer.py`` of 1.16 and ``transformers/trainer.py`` of 5.23:

* ``generation_batch_size`` is ``per_device_train_batch_size`` × processes × ``steps_per_generation``, which defaults to
  ``gradient_accumulation_steps``. It is filled with groups of ``num_generations``. It is generated anew every
  ``steps_per_generation`` × ``num_iterations`` micro-steps, counted from the start of the process: a resumed run begins
  with a new one. An epoch holds only whole generation batches, and its last optimizer step may be short.
* ``max_steps`` counts optimizer steps and overrides ``num_train_epochs``. The launcher sets the number of processes.
  ``GRPOConfig`` refuses context and sequence parallelism. It counts the processes of tensor parallelism as if each had
  its own rollouts.
* ``num_tokens`` and ``completions/mean_length`` are logged exactly in the steps that generated, as means over the
  generation batches since the last entry. ``num_tokens`` is cumulative and counts the prompt of every completion.
* Evaluations log TRL's metrics under one name, whatever the evaluation set; Trainer's own metric names contain the set.
* ``reward`` is the sum of the reward functions, weighted since 1.0 and unweighted before. Up to 0.16, a function's mean
  was ``rewards/NAME`` and the length ``completion_length``; ``num_tokens`` came with 0.16. Earlier releases are
  refused, since 0.14 counted prompts in ``per_device_train_batch_size``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise, permutations
from math import isclose
from operator import mul
from statistics import median
from typing import NamedTuple

from ..errors import BudgetError, shorten
from .counting import (
    TRAINING_REWARD,
    Evidence,
    LoggedEvaluation,
    Metrics,
    Schedule,
    Score,
    Spread,
    StepCount,
    StepCounts,
    count,
    hull,
    lengths,
)
from .logs.log import Log, LogLayout
from .settings import Batching, Configuration, RunPlan, Settings, exact_quotient, product
from .trainer import LogReader, Trainer

LAUNCHED = ("num_processes", "nproc_per_node", "nnodes")
MOST_PERMUTED = 5
"""Weights of up to this many reward functions are tried in every order: the log does not say which belongs to which."""


ENTRY, LENGTH = "loss", "completions/mean_length"
"""TRL's names of a metric that every training entry has, even without generation, and of the mean response length."""
TOKENS = ("num_tokens", "trainer_state.num_tokens")
"""Tokens generated up to the step, including prompts: in an entry, and in a checkpoint."""
WHOLES = ("completions/min_length", "completions/max_length")
"""Means of whole numbers, one number per generation batch."""
SHARES = ("completions/clipped_ratio", "frac_reward_zero_std")
"""Means of counts over a generation batch's responses."""
OTHER_SIZES = (1 / 8, 1 / 4, 1 / 3, 1 / 2, 2, 3, 4, 8)
"""Ratios of batch sizes to test, in case a run changed its settings."""
MOST_STEPS = 1_000_000
"""Most optimizer steps that a run may have: each costs about a kilobyte."""
FORMER_LENGTH = "completion_length"
FORMER = re.compile(rf"^((?:eval_(?:[^/]+_)?)?)(?:{FORMER_LENGTH}|(rewards/[^/]+))$")
"""Metric names up to 0.16."""
RUNTIME = re.compile(r"eval[_/](?:(?P<set>.+)_)?runtime$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """Completions generated at once by all processes, and the micro-steps that use them; None if unknown."""

    n: int | None
    batch: int | None
    every: int | None
    accumulated: int | None
    iterations: int
    world: int | None


def batch_sizes(settings: Settings) -> BatchSizes:
    """The sizes of a run's batches, used to read both settings and logs."""
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
        settings.unknown.append("world size: the launcher says it (accelerate --num_processes); give --world-size")
    if batch is None and device and accumulated and world:
        batch = device * world * (kept or accumulated)
    if kept is None and batch and device and world:
        kept = exact_quotient(batch, device * world)
        if kept is None:
            one = f"{device * world:,} completions of one pass ({device:,} × {world})"
            settings.inconsistent.append(f"generation_batch_size of {batch:,} is not a multiple of the {one}")
    if n == 1:
        settings.inconsistent.append("num_generations is 1, which TRL refuses: it takes a group of 2 or more")
    elif batch and n and batch % n:
        settings.inconsistent.append(
            f"per_device_train_batch_size counts completions: {batch:,} at once hold no whole groups of {n:,}"
        )
    elif device and n and device < n:
        settings.notes.append(
            f"per_device_train_batch_size counts completions: {device:,} are part of one group of {n:,}, which is "
            "spread over devices and passes"
        )
    return BatchSizes(
        n=n, batch=batch, every=kept and kept * iterations, accumulated=accumulated, iterations=iterations, world=world
    )


def _per_device(settings: Settings) -> int | None:
    """The micro-batch of each process; a Trainer's state repeats it."""
    state = settings.whole("trainer_state.train_batch_size")
    if state and settings.find("per_device_train_batch_size")[1] is None:
        return state
    device = settings.whole("per_device_train_batch_size", default=8)
    if device and state and device != state and "per_device_train_batch_size" not in settings.given:
        both = f"{state} in the trainer's state and {device} in the configuration"
        settings.inconsistent.append(f"per_device_train_batch_size is {both}")
    return device


def _processes(settings: Settings) -> int | None:
    """Data-parallel ranks: the processes, from the launch line or the caller."""
    for key in ("cp_size", "sp_size"):
        if (settings.whole(f"parallelism_config_{key}", f"parallelism_config.{key}") or 1) > 1:
            settings.inconsistent.append(f"parallelism_config_{key} is above 1, which TRL's GRPO trainer refuses")
    if (settings.whole("parallelism_config_tp_size", "parallelism_config.tp_size") or 1) > 1:
        settings.unknown.append("world size: with parallelism_config_tp_size TRL counts every process as a rank")
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


def write(run: RunPlan) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    if a.rollouts_per_problem < 2:
        raise BudgetError("TRL refuses num_generations of 1, whose advantages are all zero; take 2 or more")
    accumulated = run.rank_rollouts // run.pass_rollouts
    return Configuration(
        settings={
            "num_generations": a.rollouts_per_problem,
            "per_device_train_batch_size": run.pass_rollouts,
            "gradient_accumulation_steps": accumulated,
            "steps_per_generation": accumulated,
            "num_iterations": 1,
            "max_steps": a.update_steps,
            "learning_rate": run.learning_rate,
        },
        notes=(
            f"start {run.world_size} process{'es' if run.world_size > 1 else ''}: "
            f"accelerate launch --num_processes {run.world_size}",
            "per_device_train_batch_size counts completions, not prompts",
            f"needs at least {a.problems_per_batch:,} problems, or no generation batch is complete",
        ),
    )


def parse(settings: Settings) -> Batching:
    """Interpret TRL's settings."""
    sizes = batch_sizes(settings)
    problems = exact_quotient(sizes.batch, sizes.n)
    updates = Fraction(sizes.every, sizes.accumulated) if sizes.every and sizes.accumulated else None
    steps = settings.whole("max_steps") if settings.find("max_steps")[1] != -1 else None
    epochs = settings.fraction("num_train_epochs", default=3) if steps is None and settings.has_defaults else None
    generations = None
    if updates and sizes.every and sizes.accumulated and problems:
        batches = None if settings.problems is None else settings.problems // problems
        if batches == 0:
            nothing = f"hold no whole generation batch of {problems:,}: TRL generates nothing"
            settings.inconsistent.append(f"{settings.problems:,} problems {nothing}")
            steps, generations = 0, 0
        else:
            schedule = Schedule(every=sizes.every, accumulation=sizes.accumulated, batches=batches)
            if steps is None and epochs is not None and schedule.epoch_steps:
                steps = -int(-epochs * schedule.epoch_steps // 1)
            generations = None if steps is None else schedule.generations(0, steps)
            if steps and batches is None and sizes.every % sizes.accumulated:
                settings.notes.append("an epoch's last step may be short, and generate less; give --problems D")
    if steps is None:
        settings.note_epochs("num_train_epochs")
    if settings.text("eval_strategy", default="no") != "no":
        settings.notes.append("evaluations generate in addition: num_generations_eval for each of their prompts")
    settings.ranks(sizes.world)
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=sizes.n,
        generations=generations,
        updates=updates,
        passes=sizes.iterations,
        update_steps=steps,
    )


class Generated:
    """Rollouts and tokens of a run by optimizer step, from its log and a schedule; ``notes`` has unlogged starts."""

    def __init__(self, log: Log, schedules: Sequence[Schedule], batch: int) -> None:
        """Count them in batches of this many rollouts."""
        last = max(step for step, _ in log.rows)
        if last > MOST_STEPS:
            raise BudgetError(f"{log.name}: it logs step {last:,}, and no run has more than {MOST_STEPS:,} steps")
        restarts = [(max((s for s, _ in log.rows if s < r), default=0), r) for r in log.restarts]
        counts, refused, says = [], None, False
        for schedule in schedules:
            evidence = _evidence(log, schedule, batch)
            says = bool(evidence)
            try:
                counts.append(count(schedule, last, evidence, restarts, where=log.name))
            except BudgetError as error:
                refused = error
        if not counts:
            raise refused or BudgetError(f"{log.name}: no schedule is known by which it could have generated")
        unexplained = min(c.unexplained for c in counts)
        best = [c for c in counts if c.unexplained == unexplained]
        # The union of the ranges from the schedules that explain the most.
        self._likely = [hull(at) for at in zip(*(c.likely for c in best), strict=True)]
        self._possible = [hull(at) for at in zip(*(c.possible for c in best), strict=True)]
        # An entry's mean covers the steps before it.
        marks = [(s, m[LENGTH]) for s, m in log.rows if LENGTH in m] or [(last, 0.0)]
        lengths(log, LENGTH)
        mark, tokens = 0, [0.0]
        for step in range(1, last + 1):
            mark += mark + 1 < len(marks) and step > marks[mark][0]
            made = sum(self._likely[step]) - sum(self._likely[step - 1])
            tokens.append(tokens[-1] + made / 2 * batch * marks[mark][1])
        self.batch, self.notes = batch, list[str]()
        self._tokens, self._source = [int(t + 1e-6) for t in tokens], "log and formula" if says else "formula"
        if unexplained:
            starts = "a start" if unexplained == 1 else f"{unexplained} starts"
            self.notes.append(f"{log.name}: its log shows {starts} from within a generation batch, which is then lost")

    def at(self, step: int) -> StepCount:
        """What was generated up to and including a step; the error covers up to two starts that left no trace."""
        rollouts = sum(self._likely[step]) * self.batch // 2
        fewest, greatest = self._possible[step]
        return StepCount(
            logged=step,
            step=step,
            rollouts=rollouts,
            rollouts_error=max(greatest * self.batch - rollouts, rollouts - fewest * self.batch),
            tokens=self._tokens[step],
            count_source=self._source,
        )


def possible(log: Log, every: int, accumulation: int, batches: int | None, steps: int | None) -> list[Schedule]:
    """The schedules that a run may have had, given the logged epochs."""
    logged = [(s, m["epoch"]) for s, m in log.rows if s and m.get("epoch")]
    if not logged:
        return [Schedule(every=every, accumulation=accumulation, batches=batches)]
    step, epoch = logged[-1]
    # An epoch of S micro-steps takes ⌈S / a⌉ steps, so S lies in (s·a − (k+1)·a, s·a] / epoch after k epochs.
    most = int(step * accumulation * (1 + 1e-5) / epoch // every)
    least = int((step - epoch - 1) * accumulation * (1 - 1e-5) / epoch // every)
    if most - least > MOST_STEPS:
        raise BudgetError(f"{log.name}: epoch is {epoch:g} after {step:,} steps, which says nothing of a batch")
    few = logged[:: max(1, len(logged) // 100)]
    fitting = [
        Schedule(every=every, accumulation=accumulation, batches=each)
        for each in range(max(1, least), most + 1)
        if batches in (None, each)
    ]
    fitting = [
        f for f in fitting if all(isclose(f.micro(s) / (f.batches or 1) / every, e, rel_tol=1e-5) for s, e in few)
    ]
    if fitting:
        return fitting
    if steps and all(isclose(s / steps, e, rel_tol=1e-5) for s, e in few):
        # A stream of problems, with one epoch for the whole run.
        return [Schedule(every=every, accumulation=accumulation)]
    raise BudgetError(
        f"{log.name}: epoch is {epoch:g} after {step:,} optimizer steps, which a generation batch every {every:,} "
        f"micro-steps, {accumulation:,} to an optimizer step, cannot give: its settings are not those of this log"
    )


class Span(NamedTuple):
    """What was generated between two token counts, with the rollouts according to the schedule."""

    stop: int
    tokens: float
    rollouts: int
    length: float


def _evidence(log: Log, schedule: Schedule, batch: int) -> dict[int, Evidence]:
    """Collect a log's evidence of generated batches: an entry without what every generation logs shows none."""
    own, saved = TOKENS
    totals = [(s, m.get(own, m.get(saved, 0.0))) for s, m in log.rows if own in m or saved in m]
    logged = {s: m for s, m in log.rows if ENTRY in m or own in m or LENGTH in m}
    says = any(own in m or LENGTH in m for m in logged.values())
    spans = [
        # The mean length from the first entry that covers the steps.
        Span(b, new - old, schedule.between(0, a, b) * batch, _first_length(log, a))
        for (a, old), (b, new) in pairwise([(0, 0.0), *totals])
    ]
    _check_one_size(log, [span for span in spans if own in logged.get(span.stop, {}) and span.rollouts > 0], batch)
    known = [span for span in spans if span.rollouts and span.tokens > 0]
    prompt = max(median(s.tokens / s.rollouts - s.length for s in known), 0.0) if known else 0.0
    scatter = median(abs(s.tokens - s.rollouts * (s.length + prompt)) for s in known) if known else 0.0
    tokens = {s.stop: partial(_agrees, s.tokens, batch * (s.length + prompt), 7.5 * scatter) for s in spans}
    entries = {s: partial(_allows, m, batch) for s, m in logged.items() if says}
    return {s: Evidence(entry=entries.get(s), tokens=tokens.get(s)) for s in entries.keys() | tokens.keys() if s}


def _first_length(log: Log, start: int) -> float:
    return next((m[LENGTH] for s, m in log.rows if s > start and LENGTH in m), 0.0)


def _check_one_size(log: Log, spans: Sequence[Span], batch: int) -> None:
    """Check that batches kept their size: with another size, tokens are a multiple of those of the last steps.

    This is visible only if responses are longer than prompts, whose lengths vary from batch to batch.
    """
    each = [(span.tokens / span.rollouts, span.length) for span in spans]
    prompt = median(tokens - length for tokens, length in each[-2:]) if len(each) > 3 else 0.0
    for size in OTHER_SIZES:
        alike = [
            2 * prompt < length and abs(tokens / size - length - prompt) <= 0.3 * prompt + 1 for tokens, length in each
        ]
        found = next((k for k, (one, two) in enumerate(pairwise(alike)) if one and two and prompt > 0), None)
        if found is not None:
            raise BudgetError(
                f"{log.name}: {TOKENS[0]} of step {spans[found].stop:,} is of batches of {batch * size:g} responses "
                f"where its settings make {batch:,}, so that it is no run of one n and one batch"
            )


def _allows(metrics: Metrics, batch: int, generations: int) -> bool:
    """Return whether an entry's means over this many generation batches can be means of whole numbers."""
    if (generations > 0) != (TOKENS[0] in metrics or LENGTH in metrics):
        return False
    wholes = [metrics[name] * generations for name in WHOLES if name in metrics]
    wholes += [metrics[name] * generations * batch for name in (LENGTH, *SHARES) if name in metrics]
    # Tolerate single precision; large sums are uninformative.
    return all(value >= 1e5 or abs(value - round(value)) < 1e-3 + 1e-6 * value for value in wholes)


def _agrees(tokens: float, each: float, scatter: float, batches: int) -> bool | None:
    """Judge whether this many batches explain the tokens of some steps: None if impossible, False if unlikely.

    A batch usually has ``each`` tokens; the total may well differ from the expected one by ``scatter``.
    """
    if (tokens > 0) != (batches > 0):
        return None
    off = abs(tokens - batches * each)
    return each <= 0 or off < each / 2 or off < scatter


def progress(log: Log, settings: Settings, batching: Batching) -> StepCounts:
    """Count what each step of a run generated for training."""
    logged = [s for s, m in log.rows if s and (ENTRY in m or LENGTH in m or TOKENS[0] in m)]
    if not logged:
        _required(log, settings)
        return StepCounts(points=(), following=batching.batch_rollouts)
    counted, schedules = generated(log, settings)
    points = [counted.at(step) for step in logged]
    schedule, steps = schedules[0], logged[-1]
    endless = replace(schedule, batches=None)
    plain = steps * counted.batch * schedule.accumulation // schedule.every
    whole = [s.generations(0, steps) * counted.batch for s in (endless, schedule)]
    more = {
        "whole batches": whole[0] - plain,
        "short epochs": whole[1] - whole[0],
        "resume": points[-1].rollouts - whole[1],
    }
    return StepCounts(
        points=points,
        following=_following(log, logged, schedules) * counted.batch,
        plain=plain,
        more={name: rollouts for name, rollouts in more.items() if rollouts},
    )


def _following(log: Log, logged: Sequence[int], schedules: Sequence[Schedule]) -> int:
    """Batches that the step after the last one generates; the most, if a start may have been at several steps."""
    first = log.restarts[-1] if log.restarts else 1
    before = max((step for step in logged if step < first), default=0)
    return max(
        schedule.between(schedule.micro(start), logged[-1], logged[-1] + 1)
        for schedule in schedules
        for start in range(before, first)
    )


def generated(log: Log, settings: Settings) -> tuple[Generated, Sequence[Schedule]]:
    """Count what a run generated, by optimizer step; return the schedules that it may have had, too."""
    if FORMER_LENGTH in log.keys:
        raise BudgetError(
            f"{log.name}: logs {FORMER_LENGTH} without {TOKENS[0]}, as TRL did before 0.16, whose "
            "per_device_train_batch_size counts prompts (0.14) or completions (0.15): it is not read"
        )
    sizes, batch, every, accumulated = _required(log, settings)
    batches = settings.problems // (batch // sizes.n) if settings.problems and sizes.n else None
    if batches is None and every % accumulated and not any(m.get("epoch") for _, m in log.rows):
        raise settings.missing("problems")
    steps = settings.whole("trainer_state.max_steps", "max_steps") if settings.find("max_steps")[1] != -1 else None
    schedules = possible(log, every, accumulated, batches, steps)
    counted = Generated(log, schedules, batch)
    settings.notes += counted.notes
    if LENGTH not in log.keys:
        settings.notes.append(f"{LENGTH} is not logged: tokens are 0 ({TOKENS[0]} counts prompts too)")
    return counted, schedules


def _required(log: Log, settings: Settings) -> tuple[BatchSizes, int, int, int]:
    """The batch sizes; then a batch's responses and passes, and the passes of an optimizer step."""
    settings.required("per_device_train_batch_size", "trainer_state.train_batch_size", default=8)
    accumulated = settings.required("gradient_accumulation_steps", default=1)
    known = Settings(values=settings.values, where=settings.where, given=settings.given)
    sizes = batch_sizes(known)
    if known.inconsistent:
        raise BudgetError(f"{log.name}: {'; '.join(known.inconsistent)}")
    batch, every = sizes.batch, sizes.every
    if batch is None or every is None or sizes.world is None:
        if any("parallelism" in remark for remark in known.unknown):
            raise BudgetError(f"{log.name}: {'; '.join(known.unknown)}")
        both = "generation_batch_size and steps_per_generation, which say it, are not both logged or configured"
        raise settings.missing("world_size", because=both)
    return sizes, batch, every, accumulated


def entry(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """One entry with Trainer's metric names as in its own state, and its evaluation set in TRL's metric names."""
    plain = {re.sub(r"^train/|^eval/", lambda m: "" if m[0] == "train/" else "eval_", k): v for k, v in metrics.items()}
    length = LENGTH if TOKENS[0] in plain else FORMER_LENGTH
    plain = {FORMER.sub(lambda m: m[1] + (f"{m[2]}/mean" if m[2] else length), k): v for k, v in plain.items()}
    sets = {match["set"] for key in plain if (match := RUNTIME.match(key)) and match["set"]}
    if len(sets) != 1:
        return plain
    (name,) = sets
    return {
        k if k.startswith(f"eval_{name}_") or not k.startswith("eval_") else f"eval_{name}_{k[5:]}": v
        for k, v in plain.items()
    }


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run or, with ``train_reward``, its mean training rewards."""
    training = settings.is_on("train_reward")
    names = log.keys
    prefixes = {""} if training else {m[1] for k in names if (m := re.match(r"(eval_(?:[^/]+_)?)rewards?(?:/.*)?$", k))}
    logged = {prefix: _metric(settings, prefix, names) for prefix in sorted(prefixes)}
    known = {prefix: name for prefix, name in logged.items() if name in names}
    if logged and not known and (wanted := settings.text("metric")):
        functions = ", ".join(sorted({k.split("/")[1] for k in names if re.match(r"(?:eval_.*)?rewards/.+/mean$", k)}))
        raise BudgetError(f"{log.name}: metric is {wanted!r}, which is not logged; there are {functions}")
    logged = known
    if not logged:
        return []
    n, own = settings.required("num_generations", default=8), settings.whole("num_generations_eval")
    samples = n if training or own is None else own
    counts, each = generated(log, settings)[0], settings.whole("per_device_eval_batch_size", default=8)
    evals = []
    for prefix, name in logged.items():
        kind = prefix.removeprefix("eval_").removesuffix("_") or ("train" if training else "eval")
        in_part = _scored_in_part(log, settings, prefix)
        if in_part and not training and settings.find(f"questions.{kind}", "questions")[1] is None:
            part = f"{prefix}reward is not the sum of {', '.join(in_part)}, which scored a part only"
            raise settings.missing("questions", because=part)
        questions = _whole_of(log, f"{prefix}runtime", f"{prefix}samples_per_second")
        # The logged values are means over batches, each over the responses that were scored.
        size = None if training or in_part else product(each, batching.world_size)
        deviation = name[: -len("mean")] + "std" if name.endswith("/mean") else f"{name}_std"
        settings.notes.append(f"avg_at_{samples} is {name}")
        before = 0
        for step, metrics in log.rows:
            if name not in metrics:
                continue
            at = counts.at(step)
            if training:
                questions, before = max((at.rollouts - before) // samples, 1), at.rollouts
            score = Score(
                samples=samples,
                scores={f"avg_at_{samples}": metrics[name]},
                metric=name,
                spread=Spread(deviation=metrics.get(deviation), size=size, corrected=True),
                questions=None if in_part and not training else questions,
            )
            evals.append(LoggedEvaluation.of(score, at, kind, "train" if training else "validation"))
    if training:
        settings.notes.append(TRAINING_REWARD)
    return sorted(evals, key=lambda e: (e.count.step, e.problem_set))


def _whole_of(log: Log, seconds: str, rate: str) -> int | None:
    """Return a whole number from the time it took (four digits) and the rate per second (three digits)."""
    low, high = 0.0, float("inf")
    for _, metrics in log.rows:
        time, each = metrics.get(seconds), metrics.get(rate)
        if time and each:
            low = max(low, (time - 6e-5) * (each - 6e-4) * (1 - 1e-6))
            high = min(high, (time + 6e-5) * (each + 6e-4) * (1 + 1e-6))
    return round(high) if high < float("inf") and low <= round(high) <= high and high - low < 1 else None


def _scored_in_part(log: Log, settings: Settings, prefix: str) -> list[str]:
    """The reward functions of an evaluation if some returned None for responses, which their means then omit.

    Then the reward is not the sum of the functions' means, whatever the order of their weights.
    """
    total = f"{prefix}reward"
    names = {k for k in log.keys if k.startswith(f"{prefix}rewards/") and k.endswith("/mean")}
    whole = [m for _, m in log.rows if total in m and names <= m.keys()]
    weights = settings.find("reward_weights")[1]
    listed = weights if isinstance(weights, list) else [1.0] * len(names)
    given = [float(weight) for weight in listed if isinstance(weight, int | float)]
    # Releases differ in whether the logged sum is weighted.
    orders = {(1.0,) * len(names), *(permutations(given) if len(names) <= MOST_PERMUTED else [tuple(given)])}
    summed = any(
        all(
            isclose(m[total], sum(map(mul, order, (m[n] for n in sorted(names)))), rel_tol=1e-4, abs_tol=1e-4)
            for m in whole
        )
        for order in orders
    )
    return [] if summed or not names else sorted(names)


def _metric(settings: Settings, prefix: str, names: set[str]) -> str:
    """The metric to read: the one that was named, else that of the only reward function."""
    wanted = settings.text("metric")
    if wanted:
        whole = [n for n in (wanted, re.sub("^eval/", "eval_", wanted)) if n in names and n.startswith(prefix)]
        return whole[0] if whole else f"{prefix}rewards/{wanted}/mean"
    each = sorted(k for k in names if k.startswith(f"{prefix}rewards/") and k.endswith("/mean"))
    if len(each) > 1:
        functions = ", ".join(k.split("/")[1] for k in each)
        raise settings.missing("metric", choices=functions, because=f"{prefix}reward sums the rewards {functions}")
    return each[0] if each else f"{prefix}reward"


LOGS = LogReader(
    layout=LogLayout(
        steps=("train/global_step", "global_step", "step"),
        needed=re.compile(
            r"(?:train/)?completion(?:s/mean)?_length$|(?:train/)?num_tokens$|eval[/_](?!runtime|.*per_second)"
        ),
        entry=entry,
    ),
    marks=re.compile(r"completions/mean_length$|num_tokens$|eval_(?:.*_)?completions/"),
    seeds=("seed",),
    learning_rates=("learning_rate",),
    evaluations=evaluations,
    progress=progress,
    understands=("metric", "train_reward"),
)
TRL = Trainer(name="trl", title="TRL", style="dashes", write=write, parse=parse, logs=LOGS)
