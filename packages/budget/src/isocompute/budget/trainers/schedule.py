"""Batches that TRL generates every so many micro-steps, counted where logs say in which steps that was.

A process generates in its first micro-step and then after every ``every`` of them, so that a restart begins anew.
``count`` finds the histories with the fewest restarts that fit all that a log says, what follows for every step, and
what would follow if there had been more restarts of which nothing was logged. A log's metrics are means over the
batches since the entry before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import isclose
from statistics import median

from ..errors import BudgetError
from .counting import Metrics, StepCount, lengths
from .logs.log import Log

ENTRY, LENGTH = "loss", "completions/mean_length"
"""TRL's names of what every entry of training has, also where nothing was generated, and of the mean response."""
TOKENS = ("num_tokens", "trainer_state.num_tokens")
"""Tokens generated up to the step, prompts included: where an entry has them, and where a checkpoint has."""
WHOLES = ("completions/min_length", "completions/max_length")
"""Means of whole numbers, one for each generation batch."""
SHARES = ("completions/clipped_ratio", "frac_reward_zero_std")
"""Means of counts over the responses of a generation batch."""
MOST_UNEXPLAINED = 3
"""More restarts, or entries at odds with the tokens generated, are a contradiction; one in 20 entries in long runs."""
SLACK = 2
"""Histories that need so many more restarts than the best one are possible, too."""
MOST_STATES = 300_000
"""States that are kept of all steps (some 500 bytes each): what is not logged for long leaves as many as its square."""

State = tuple[int, int, int, int]
"""Residue of the micro-steps that generate; batches since the last entry or start, and since the last count of tokens;
starts from a checkpoint that are known to have happened."""

Layer = dict[State, tuple[int, set[State]]]
"""The states that a step may have, each with the restarts that it takes to get there and the states before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a trainer generates.

    Attributes:
        every: Micro-steps from one generation batch to the next.
        accumulation: Micro-steps of an optimizer step.
        batches: Generation batches in an epoch, whose last optimizer step may be short; None for one endless epoch.
    """

    every: int
    accumulation: int
    batches: int | None = None

    @property
    def epoch_steps(self) -> int | None:
        """Optimizer steps of an epoch."""
        return None if self.batches is None else -(-self.batches * self.every // self.accumulation)

    def micro(self, step: int) -> int:
        """Micro-steps taken up to and including an optimizer step."""
        if self.batches is None or not self.epoch_steps:
            return step * self.accumulation
        epochs, rest = divmod(step, self.epoch_steps)
        whole = self.batches * self.every
        return epochs * whole + min(rest * self.accumulation, whole)

    def between(self, residue: int, start: int, stop: int) -> int:
        """Batches generated in the optimizer steps after ``start``, up to and including ``stop``."""
        return -(-(self.micro(stop) - residue) // self.every) + (residue - self.micro(start)) // self.every

    def generations(self, start: int, stop: int) -> int:
        """Batches that a process generates which starts after one optimizer step and ends with another."""
        return self.between(self.micro(start), start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of a log at an optimizer step.

    Attributes:
        entry: Whether the values logged can be of so many batches, those since the last entry or start; None where
            nothing was logged.
        tokens: Whether the tokens counted agree with so many batches since the last count: False where they are only
            unlikely to, None where they cannot; None itself where tokens were not counted.
    """

    entry: Callable[[int], bool] | None = None
    tokens: Callable[[int], bool | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Batches generated up to and including each optimizer step: the fewest and the most that the log allows.

    Attributes:
        least: By step, from 0 on, with the fewest restarts that explain the log.
        fewest: By step, from 0 on, with up to two more restarts.
        unexplained: Restarts, or entries at odds with the tokens generated, that had to be assumed.
    """

    least: Sequence[int]
    most: Sequence[int]
    fewest: Sequence[int]
    greatest: Sequence[int]
    unexplained: int


def count(
    schedule: Schedule, last: int, evidence: Mapping[int, Evidence], restarts: Sequence[tuple[int, int]], *, where: str
) -> Count:
    """Count the batches generated, as far as a log shows it.

    Args:
        restarts: Of each start from a checkpoint that is known, the first and the last step that it may have been from.
    """
    layers = _layers(schedule, last, evidence, restarts, where=where, unlogged=True)
    slack = 0
    if layers is None:
        # A restart that nothing was logged of generates anew at once, so that it adds a batch at the most.
        layers, slack = _layers(schedule, last, evidence, restarts, where=where, unlogged=False), SLACK
    if layers is None:
        raise BudgetError(f"{where}: too little of its {last:,} optimizer steps is logged to say where it began anew")
    allowed = _allowed(evidence)
    whole = {state for state in layers[-1] if state[3] == len(restarts)}
    least = min((layers[-1][state][0] for state in whole), default=allowed + 1)
    if least > allowed:
        raise BudgetError(f"{where}: its log shows more starts from a checkpoint than can be told apart")
    likely = _ranges(schedule, layers, _through(layers, {s for s in whole if layers[-1][s][0] == least}))
    possible = _ranges(schedule, layers, _through(layers, {s for s in whole if layers[-1][s][0] <= least + SLACK}))
    greatest = [most + slack if step else most for step, most in enumerate(possible[1])]
    return Count(least=likely[0], most=likely[1], fewest=possible[0], greatest=greatest, unexplained=least)


def _allowed(evidence: Mapping[int, Evidence]) -> int:
    return MOST_UNEXPLAINED + len(evidence) // 20


def _layers(
    schedule: Schedule,
    last: int,
    evidence: Mapping[int, Evidence],
    restarts: Sequence[tuple[int, int]],
    *,
    where: str,
    unlogged: bool,
) -> list[Layer] | None:
    """The states that each step may have, with restarts unlogged or not; None where they are too many to keep."""
    layers: list[Layer] = [{(0, 0, 0, 0): (0, set())}]
    kept = 0
    for step in range(1, last + 1):
        layer = _step(schedule, step, layers[-1], evidence.get(step), restarts, unlogged=unlogged)
        layer = {state: least for state, least in layer.items() if least[0] <= _allowed(evidence)}
        if not layer:
            sparse = "" if unlogged else "; or it began anew, and too little is logged to say where"
            raise BudgetError(
                f"{where}: its log contradicts its settings at step {step:,}: generating every {schedule.every:,} "
                f"micro-steps, {schedule.accumulation:,} to an optimizer step, does not give what is logged "
                f"there{sparse}"
            )
        layers.append(layer)
        kept += len(layer)
        if kept > MOST_STATES + last:
            return None
    return layers


def _through(layers: Sequence[Layer], ends: set[State]) -> list[set[State]]:
    """The states of every step on the way to some of the last step."""
    kept = [ends]
    for layer in reversed(layers[1:]):
        kept.append({before for state in kept[-1] for before in layer[state][1]})
    return kept[::-1]


def merged(counts: Sequence[Count]) -> Count:
    """Join the counts that explain the most: what each of them leaves open, together."""
    unexplained = min(c.unexplained for c in counts)
    best = [c for c in counts if c.unexplained == unexplained]

    def over(choose: Callable[[Sequence[int]], int], name: str) -> list[int]:
        return [choose(values) for values in zip(*(getattr(c, name) for c in best), strict=True)]

    return Count(
        least=over(min, "least"),
        most=over(max, "most"),
        fewest=over(min, "fewest"),
        greatest=over(max, "greatest"),
        unexplained=unexplained,
    )


def _step(
    schedule: Schedule,
    step: int,
    before: Layer,
    said: Evidence | None,
    restarts: Sequence[tuple[int, int]],
    *,
    unlogged: bool,
) -> Layer:
    """The states after a step; a restart may follow the step."""
    after: Layer = {}

    def reach(state: State, cost: int, origin: State) -> None:
        old, origins = after.get(state, (cost + 1, set()))
        if cost < old:
            after[state] = (cost, {origin})
        elif cost == old:
            origins.add(origin)

    for origin, (cost, _) in before.items():
        residue, seen, total, starts = origin
        made = schedule.between(residue, step - 1, step)
        seen, total = seen + made, total + made
        if said is not None and said.entry is not None:
            if not said.entry(seen):
                continue
            seen = 0
        if said is not None and said.tokens is not None:
            agrees = said.tokens(total)
            if agrees is None:
                continue
            cost, total = cost + (not agrees), 0
        if starts < len(restarts) and restarts[starts][1] < step:
            continue
        reach((residue, seen, total, starts), cost, origin)
        anew = schedule.micro(step) % schedule.every
        if starts < len(restarts) and restarts[starts][0] <= step <= restarts[starts][1]:
            reach((anew, 0, total, starts + 1), cost, origin)
        if unlogged and (anew != residue or seen):
            reach((anew, 0, total, starts), cost + 1, origin)
    best = min((cost for cost, _ in after.values()), default=0)
    return {state: least for state, least in after.items() if least[0] <= best + SLACK}


def _ranges(schedule: Schedule, layers: Sequence[Layer], kept: Sequence[set[State]]) -> tuple[list[int], list[int]]:
    """The fewest and the most batches by step, over the histories that are kept."""
    least, most = [0], [0]
    ranges: dict[State, tuple[int, int]] = dict.fromkeys(kept[0], (0, 0))
    for step, states in enumerate(kept[1:], 1):
        reached: dict[State, tuple[int, int]] = {}
        for state in states:
            bounds = [
                tuple(bound + schedule.between(before[0], step - 1, step) for bound in ranges[before])
                for before in layers[step][state][1]
                if before in ranges
            ]
            reached[state] = (min(b[0] for b in bounds), max(b[1] for b in bounds))
        ranges = reached
        least.append(min(low for low, _ in ranges.values()))
        most.append(max(high for _, high in ranges.values()))
    return least, most


OTHER_SIZES = (1 / 8, 1 / 4, 1 / 3, 1 / 2, 2, 3, 4, 8)
"""Batches of so many times the responses are looked for where a run may have changed its settings."""
MOST_STEPS = 1_000_000
"""Optimizer steps of the longest run that is taken for one: each costs about a kilobyte."""


class Generated:
    """Rollouts and tokens of a run by optimizer step, as its log and a schedule say; ``notes`` has unnamed starts."""

    def __init__(self, log: Log, schedules: Sequence[Schedule], batch: int) -> None:
        """Count them in batches of so many rollouts."""
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
        counted = merged(counts)
        # An entry's mean is of the steps before it.
        marks = [(s, m[LENGTH]) for s, m in log.rows if LENGTH in m] or [(last, 0.0)]
        lengths(log, LENGTH)
        mark, tokens = 0, [0.0]
        for step in range(1, last + 1):
            mark += mark + 1 < len(marks) and step > marks[mark][0]
            made = counted.least[step] + counted.most[step] - counted.least[step - 1] - counted.most[step - 1]
            tokens.append(tokens[-1] + made / 2 * batch * marks[mark][1])
        self.batch, self.notes = batch, list[str]()
        self._count, self._tokens = counted, [int(t + 1e-6) for t in tokens]
        self._source = "log and formula" if says else "formula"
        if counted.unexplained:
            starts = "a start" if counted.unexplained == 1 else f"{counted.unexplained} starts"
            self.notes.append(f"{log.name}: its log shows {starts} from within a generation batch, which is then lost")

    def at(self, step: int) -> StepCount:
        """What was generated up to and including a step; wrong if up to two starts left no trace in the log."""
        counted, batch = self._count, self.batch
        rollouts = (counted.least[step] + counted.most[step]) * batch // 2
        return StepCount(
            logged=step,
            step=step,
            rollouts=rollouts,
            rollouts_error=max(counted.greatest[step] * batch - rollouts, rollouts - counted.fewest[step] * batch),
            tokens=self._tokens[step],
            count_source=self._source,
        )


def possible(log: Log, every: int, accumulation: int, batches: int | None, steps: int | None) -> list[Schedule]:
    """The schedules that a run may have had, from the epochs that are logged."""
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
        # A stream of problems, whose one epoch is the run.
        return [Schedule(every=every, accumulation=accumulation)]
    raise BudgetError(
        f"{log.name}: epoch is {epoch:g} after {step:,} optimizer steps, which a generation batch every {every:,} "
        f"micro-steps, {accumulation:,} to an optimizer step, cannot give: its settings are not those of this log"
    )


def _evidence(log: Log, schedule: Schedule, batch: int) -> dict[int, Evidence]:
    """Collect a log's evidence of the batches generated: none in an entry that lacks what every generation logs."""
    own, saved = TOKENS
    totals = [(s, m.get(own, m.get(saved, 0.0))) for s, m in log.rows if own in m or saved in m]
    logged = {s: m for s, m in log.rows if ENTRY in m or own in m or LENGTH in m}
    says = any(own in m or LENGTH in m for m in logged.values())
    spans = [(a, b, new - old) for (a, old), (b, new) in pairwise([(0, 0.0), *totals])]
    _check_one_size(log, [span for span in spans if own in logged.get(span[1], {})], schedule, batch)
    prompt, scatter = _prompt(log, spans, schedule, batch)
    tokens = {}
    for start, stop, new in spans:
        each = batch * (_mean_length(log, start) + prompt)
        tokens[stop] = partial(_agrees, new, each, 7.5 * scatter)
    entries = {s: partial(_allows, m, batch) for s, m in logged.items() if says}
    return {s: Evidence(entry=entries.get(s), tokens=tokens.get(s)) for s in entries.keys() | tokens.keys() if s}


def _check_one_size(log: Log, spans: Sequence[tuple[int, int, float]], schedule: Schedule, batch: int) -> None:
    """Check that batches kept their size: of another one, tokens are as many times those of the last steps.

    That is seen where responses are longer than prompts, whose lengths differ from batch to batch.
    """
    each = [
        (stop, new / (made * batch), _mean_length(log, start))
        for start, stop, new in spans
        if (made := schedule.between(0, start, stop)) > 0
    ]
    prompt = median(tokens - length for _, tokens, length in each[-2:]) if len(each) > 3 else 0.0
    for size in OTHER_SIZES:
        alike = [
            2 * prompt < length and abs(tokens / size - length - prompt) <= 0.3 * prompt + 1
            for _, tokens, length in each
        ]
        found = next((k for k, (one, two) in enumerate(pairwise(alike)) if one and two and prompt > 0), None)
        if found is not None:
            raise BudgetError(
                f"{log.name}: {TOKENS[0]} of step {each[found][0]:,} is of batches of {batch * size:g} responses "
                f"where its settings make {batch:,}, so that it is no run of one n and one batch"
            )


def _allows(metrics: Metrics, batch: int, generations: int) -> bool:
    """Return whether an entry's means over so many generation batches can be of whole numbers."""
    if (generations > 0) != (TOKENS[0] in metrics or LENGTH in metrics):
        return False
    wholes = [metrics[name] * generations for name in WHOLES if name in metrics]
    wholes += [metrics[name] * generations * batch for name in (LENGTH, *SHARES) if name in metrics]
    # Up to single precision; large sums say nothing.
    return all(value >= 1e5 or abs(value - round(value)) < 1e-3 + 1e-6 * value for value in wholes)


def _mean_length(log: Log, start: int) -> float:
    """Mean response length of some steps, from the first entry that they are in."""
    return next((m[LENGTH] for s, m in log.rows if s > start and LENGTH in m), 0.0)


def _prompt(log: Log, spans: Sequence[tuple[int, int, float]], schedule: Schedule, batch: int) -> tuple[float, float]:
    """Mean length of a prompt, and by how much the tokens of a span usually miss what it leads to expect."""
    known = [(new, schedule.between(0, a, b) * batch, _mean_length(log, a)) for a, b, new in spans]
    known = [(new, made, length) for new, made, length in known if made and new > 0]
    if not known:
        return 0.0, 0.0
    prompt = max(median(new / made - length for new, made, length in known), 0.0)
    return prompt, median(abs(new - made * (length + prompt)) for new, made, length in known)


def _agrees(tokens: float, each: float, scatter: float, batches: int) -> bool | None:
    """Judge whether so many batches explain the tokens of some steps: None if they cannot, False if it is unlikely.

    Args:
        tokens: Counted in these steps.
        each: Usual tokens of a batch.
        scatter: By how much tokens may well miss what is expected.
    """
    if (tokens > 0) != (batches > 0):
        return None
    off = abs(tokens - batches * each)
    return each <= 0 or off < each / 2 or off < scatter
