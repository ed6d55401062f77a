"""Batches generated, from the entries of a log whose metrics are means over the batches since the entry before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import isclose
from statistics import median

from ..errors import BudgetError
from .counting import mean_lengths
from .logs.log import Log
from .schedule import Count, Evidence, Schedule, count, merged

Metrics = Mapping[str, float]
MOST_STEPS = 1_000_000
"""Optimizer steps of the longest run that is taken for one: each costs about a kilobyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Names of a trainer's metrics.

    Attributes:
        entry: What every entry of training has, also where nothing was generated.
        length: Mean response length.
        tokens: Tokens generated up to the step, prompts included: where an entry has it, and where a checkpoint has.
        wholes: Means of whole numbers, one for each generation batch.
        shares: Means of counts over the responses of a generation batch.
    """

    entry: str
    length: str
    tokens: tuple[str, str]
    wholes: tuple[str, ...]
    shares: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a run generated, by optimizer step.

    Attributes:
        batch: Rollouts of a generation batch.
        count: Batches.
        tokens: Response tokens.
        source: Where the count comes from, as in ``Evaluation``.
        notes: What to know of it.
    """

    batch: int
    count: Count
    tokens: Sequence[int]
    source: str
    notes: tuple[str, ...]

    def rollouts(self, step: int) -> int:
        """Rollouts up to and including a step."""
        return (self.count.least[step] + self.count.most[step]) * self.batch // 2

    def error(self, step: int) -> int:
        """By how much that may be wrong, if up to two starts from a checkpoint left no trace in the log."""
        counted, found = self.count, self.rollouts(step)
        return max(counted.greatest[step] * self.batch - found, found - counted.fewest[step] * self.batch)


def generated(log: Log, names: Entries, schedules: Sequence[Schedule], batch: int) -> Generated:
    """What a run generated, as its log says and one of several schedules explains.

    Args:
        schedules: Those that the run may have had.
        batch: Rollouts of a generation batch.

    Raises:
        BudgetError: The log contradicts every schedule.
    """
    last = max(step for step, _ in log.rows)
    if last > MOST_STEPS:
        raise BudgetError(f"{log.name}: it logs step {last:,}, and no run has more than {MOST_STEPS:,} optimizer steps")
    restarts = [(max((s for s, _ in log.rows if s < r), default=0), r) for r in log.restarts]
    counts, refused, says = [], None, False
    for schedule in schedules:
        evidence = _evidence(log, names, schedule, batch)
        says = bool(evidence)
        try:
            counts.append(count(schedule, last, evidence, restarts, where=log.name))
        except BudgetError as error:
            refused = error
    if not counts:
        raise refused or BudgetError(f"{log.name}: no schedule is known by which it could have generated")
    found = merged(counts)
    notes: tuple[str, ...] = ()
    if found.unexplained:
        starts = "a start" if found.unexplained == 1 else f"{found.unexplained} starts"
        notes = (f"{log.name}: its log shows {starts} from a checkpoint within a generation batch, which is then lost",)
    # An entry's mean is of the steps before it.
    marks = [(s, m[names.length]) for s, m in log.rows if names.length in m] or [(last, 0.0)]
    mean_lengths([m for _, m in log.rows], names.length, where=log.name)
    place, tokens = 0, [0.0]
    for step in range(1, last + 1):
        place += place + 1 < len(marks) and step > marks[place][0]
        made = found.least[step] + found.most[step] - found.least[step - 1] - found.most[step - 1]
        tokens.append(tokens[-1] + made / 2 * batch * marks[place][1])
    return Generated(
        batch=batch, count=found, tokens=[int(t + 1e-6) for t in tokens],
        source="log and formula" if says else "formula", notes=notes,
    )  # fmt: skip


def possible(log: Log, every: int, accumulation: int, batches: int | None, steps: int | None) -> list[Schedule]:
    """The schedules that a run may have had, from the epochs that are logged.

    Args:
        every: Micro-steps from one generation batch to the next.
        accumulation: Micro-steps of an optimizer step.
        batches: Generation batches of an epoch, where they are known.
        steps: Optimizer steps of the run, where they are known.

    Raises:
        BudgetError: No schedule gives the epochs that are logged.
    """
    logged = [(s, m["epoch"]) for s, m in log.rows if s and m.get("epoch")]
    if not logged:
        return [Schedule(every=every, accumulation=accumulation, batches=batches)]
    step, epoch = logged[-1]
    # An epoch of S micro-steps takes ⌈S / a⌉ steps, so that S lies in (s·a − (k+1)·a, s·a] / epoch after k epochs.
    most = int(step * accumulation * (1 + 1e-5) / epoch // every)
    least = int((step - epoch - 1) * accumulation * (1 - 1e-5) / epoch // every)
    if most - least > MOST_STEPS:
        raise BudgetError(f"{log.name}: epoch is {epoch:g} after {step:,} steps, which says nothing of a batch")
    few = logged[:: max(1, len(logged) // 100)]
    found = [
        Schedule(every=every, accumulation=accumulation, batches=each)
        for each in range(max(1, least), most + 1)
        if batches in (None, each)
    ]
    found = [f for f in found if all(isclose(f.micro(s) / (f.batches or 1) / every, e, rel_tol=1e-5) for s, e in few)]
    if found:
        return found
    if steps and all(isclose(s / steps, e, rel_tol=1e-5) for s, e in few):
        # A stream of problems, whose one epoch is the run.
        return [Schedule(every=every, accumulation=accumulation)]
    raise BudgetError(
        f"{log.name}: epoch is {epoch:g} after {step:,} optimizer steps, which a generation batch every {every:,} "
        f"micro-steps, {accumulation:,} to an optimizer step, cannot give: its settings are not those of this log"
    )


def _evidence(log: Log, names: Entries, schedule: Schedule, batch: int) -> dict[int, Evidence]:
    """What a log says of the batches generated: none in an entry that lacks what every generation logs."""
    own, saved = names.tokens
    totals = [(s, m.get(own, m.get(saved, 0.0))) for s, m in log.rows if own in m or saved in m]
    logged = {s: m for s, m in log.rows if names.entry in m or own in m or names.length in m}
    says = any(own in m or names.length in m for m in logged.values())
    spans = [(a, b, new - old) for (a, old), (b, new) in pairwise([(0, 0.0), *totals])]
    prompt, scatter = _prompt(log, names, spans, schedule, batch)
    tokens = {}
    for start, stop, new in spans:
        each = batch * (_mean_length(log, names, start) + prompt)
        tokens[stop] = partial(_agrees, new, each, 7.5 * scatter)
    entries = {s: partial(_allows, names, m, batch) for s, m in logged.items() if says}
    return {s: Evidence(entry=entries.get(s), tokens=tokens.get(s)) for s in entries.keys() | tokens.keys() if s}


def _allows(names: Entries, metrics: Metrics, batch: int, generations: int) -> bool:
    """Whether an entry's means over so many generation batches can be of whole numbers."""
    if (generations > 0) != (names.tokens[0] in metrics or names.length in metrics):
        return False
    wholes = [metrics[name] * generations for name in names.wholes if name in metrics]
    wholes += [metrics[name] * generations * batch for name in (names.length, *names.shares) if name in metrics]
    return all(_could_be_whole(value) for value in wholes)


def _mean_length(log: Log, names: Entries, start: int) -> float:
    """Mean response length of some steps, from the first entry that they are in."""
    return next((m[names.length] for s, m in log.rows if s > start and names.length in m), 0.0)


def _prompt(
    log: Log, names: Entries, spans: Sequence[tuple[int, int, float]], schedule: Schedule, batch: int
) -> tuple[float, float]:
    """Mean length of a prompt, and by how much the tokens of a span usually miss what it leads to expect."""
    known = [(new, schedule.between(0, a, b) * batch, _mean_length(log, names, a)) for a, b, new in spans]
    known = [(new, made, length) for new, made, length in known if made and new > 0]
    if not known:
        return 0.0, 0.0
    prompt = max(median(new / made - length for new, made, length in known), 0.0)
    return prompt, median(abs(new - made * (length + prompt)) for new, made, length in known)


def _could_be_whole(value: float) -> bool:
    """Whether a logged sum is a whole number, up to single precision; large ones say nothing."""
    return value >= 1e5 or abs(value - round(value)) < 1e-3 + 1e-6 * value


def _agrees(tokens: float, each: float, scatter: float, batches: int) -> bool | None:
    """Whether so many batches explain the tokens of some steps: None where they cannot, False where it is unlikely.

    Args:
        tokens: Counted in these steps.
        each: Usual tokens of a batch.
        scatter: By how much tokens may well miss what is expected.
    """
    if (tokens > 0) != (batches > 0):
        return None
    off = abs(tokens - batches * each)
    return each <= 0 or off < each / 2 or off < scatter
