"""Counts from what was logged of each step: cumulative rollouts and tokens.

Batches are counted from the entries of a log whose metrics are means over the batches since the entry before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from math import isclose
from statistics import median
from typing import Any

from ..errors import BudgetError
from .logs.log import Log
from .schedule import Count, Evidence, Schedule, count, merged
from .settings import Settings

LARGEST_COUNT = 2**53
"""A larger count is wrong: a float holds every whole number up to here."""
TRAINING_REWARD = (
    "TRAINING REWARD: measured on the problems that are trained on, by the policy before each update; it says how a "
    "run learnt, not how well it answers problems that it has not seen"
)
LONGEST_RESPONSE = 2**40
"""A longer mean response, in tokens, is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The spread of an evaluation's rewards, as far as it is logged.

    Attributes:
        deviation: The mean of the standard deviations of groups of responses, or None.
        size: Responses in each group, a last one may hold fewer; None where a mean is not of equal groups.
        corrected: Whether deviations are those of samples, not of populations.
    """

    deviation: float | None = None
    size: int | None = None
    corrected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What is logged of one problem set in an evaluation.

    Attributes:
        scores: By metric column: means of rewards as they are logged, success rates once ``success_rates`` made them.
        spread: What is logged of the rewards beside their means; None where that says nothing.
        binary: Whether the trainer found all rewards to be 0 or 1; None where it does not say.
    """

    samples: int
    scores: Mapping[str, float]
    metric: str = ""
    spread: Spread | None = None
    binary: bool | None = None
    questions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Rollouts and tokens that a run had generated for training when it logged a step.

    Attributes:
        logged: The step by the trainer's own count.
        step: Optimizer steps taken.
        rollouts_error: By how much that may be wrong, either way.
        count_source: ``log``, ``log and formula`` where both agree, or ``formula``.
    """

    logged: int
    step: int
    rollouts: int
    rollouts_error: int
    tokens: int
    count_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvaluation(Score):
    """One evaluation of a run.

    Attributes:
        count: What was generated for training before it.
        split: ``validation``, or ``train`` for the reward of training itself.
    """

    count: StepCount
    problem_set: str
    split: str = "validation"

    @classmethod
    def of(cls, score: Score, count: StepCount, problem_set: str, split: str = "validation") -> LoggedEvaluation:
        """A score at a step."""
        parts = {part.name: getattr(score, part.name) for part in fields(Score)}
        return cls(count=count, problem_set=problem_set, split=split, **parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Rollouts and tokens generated for training, at each step that a run logged.

    Attributes:
        following: Rollouts of the step after the last one that is logged, where settings say so or steps are alike.
        plain: Rollouts of these steps by the settings alone: whole batches or parts of them, each generated once.
        more: What was generated in addition to these, or less, by mechanism.
        ahead: Rollouts that the settings have generated before their step is taken, and that no log counts at its end.
    """

    points: Sequence[StepCount]
    following: int | None
    plain: int = 0
    more: Mapping[str, int] = field(default_factory=dict)
    ahead: int = 0

    @classmethod
    def of(cls, points: Sequence[StepCount], per_step: int | None, *, plain: int, baselines: int = 0) -> StepCounts:
        """Make counts in which all that exceeds whole batches replaced discarded groups.

        Where no setting says what a step generates, the next one is taken to be like the last.

        Args:
            baselines: Rollouts that only served as baselines.
        """
        more = {"remax baselines": baselines, "refill": (points[-1].rollouts if points else 0) - plain - baselines}
        if per_step is None and points:
            before = points[-2] if len(points) > 1 else None
            new = points[-1].rollouts - (before.rollouts if before else 0)
            per_step = -(-new // max(points[-1].logged - (before.logged if before else points[-1].logged - 1), 1))
        return cls(points=points, following=per_step, plain=plain, more={k: v for k, v in more.items() if v})


@dataclass(slots=True, kw_only=True)
class Tally:
    """Rollouts and response tokens of a run, step by step.

    Attributes:
        per_step: Rollouts of a step whose count is not logged, where that is known.
        reason_unknown: Why it is not known otherwise, and what a log must hold to say it.
        episode: Steps of a pass over the problems, if its last batch is short, and the rollouts that this one lacks.
    """

    where: str
    per_step: int | None
    reason_unknown: str
    episode: tuple[int, int] | None = None
    step: int = 0
    rollouts: int = 0
    rollouts_error: int = 0
    tokens: float = 0.0
    sources: set[str] = field(default_factory=set)

    def advance(self, step: int, own: int | None, length: float, *, error: int = 0) -> None:
        """Count all steps up to one.

        Args:
            length: Mean tokens of the responses.
            error: Rollouts that may have been started in addition.
        """
        if step <= self.step:
            return
        if own is not None and not 0 <= own < LARGEST_COUNT:
            raise BudgetError(f"{self.where}: step {step} is logged with {own:g} rollouts, which is impossible")
        missing = step - self.step - (own is not None)
        if missing and self.per_step is None:
            raise BudgetError(
                f"{self.where}: how many rollouts step {self.step + 1} generated is not known: {self.reason_unknown}; "
                "log or export it, or give --set rollouts_per_step=NUMBER for such steps"
            )
        self.sources |= ({"formula"} if missing else set()) | ({"log"} if own is not None else set())
        new = missing * (self.per_step or 0) + (own or 0)
        if self.episode is not None:
            steps, lacking = self.episode
            new -= ((self.step + missing) // steps - self.step // steps) * lacking
        self.step = step
        self.rollouts += new
        self.rollouts_error += error
        self.tokens += new * length

    def at(self, step: int, *, logged: int | None = None) -> StepCount:
        """Return what has been counted so far; ``logged`` is the step by the trainer's own count, if another."""
        return StepCount(
            logged=step if logged is None else logged,
            step=step,
            rollouts=self.rollouts,
            rollouts_error=self.rollouts_error,
            tokens=int(self.tokens),
            count_source="formula" if self.sources != {"log"} else "log",
        )

    def evaluations(self, scores: Mapping[str, Score], step: int, split: str = "validation") -> list[LoggedEvaluation]:
        """The evaluations of a step, from scores by problem set."""
        return [LoggedEvaluation.of(score, self.at(step), name, split) for name, score in scores.items()]


Metrics = Mapping[str, float]
Own = Callable[[int, Metrics], tuple[int | None, int]]
"""Of a logged step, the rollouts that its metrics say it generated, or None, and by how much they may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """The count of a run whose every row is of one step, with the evaluation after it.

    Attributes:
        updates: Optimizer steps of each logged step.
        batch: Rollouts of a logged step by the settings alone.
        lengths: Mean tokens of a response at each row.
        trains: Whether a row is of training, and not of an evaluation alone.
    """

    log: Log
    tally: Tally
    updates: int
    batch: int
    lengths: Sequence[float]
    own: Own
    trains: Callable[[Metrics], bool]

    def progress(self, *, one_in: int = 0) -> StepCounts:
        """What was generated for training at each step, one in so many only as a baseline."""
        points = []
        for (step, metrics), length in zip(self.log.rows, self.lengths, strict=True):
            if self.trains(metrics):
                self._advance(step, metrics, length)
                points.append(self.tally.at(step * self.updates, logged=step))
        baselines = self.tally.rollouts // one_in if one_in else 0
        return StepCounts.of(points, self.tally.per_step, plain=self.tally.step * self.batch, baselines=baselines)

    def evaluations(self, scores: Mapping[int, Mapping[str, Score]]) -> list[LoggedEvaluation]:
        """The evaluations of a run."""
        found = []
        for (step, metrics), tokens in zip(self.log.rows, self.lengths, strict=True):
            if step > max(scores):
                break
            # A run that was resumed evaluates before its first step, too.
            self._advance(step, metrics, tokens)
            found += self.tally.evaluations(scores.get(step, {}), step * self.updates)
        return found

    def _advance(self, step: int, metrics: Metrics, length: float) -> None:
        own, error = self.own(step, metrics)
        self.tally.advance(step, own, length, error=error)


def note_no_tokens(log: Log, settings: Settings, evaluations: Sequence[LoggedEvaluation], *names: str) -> None:
    """Note that a run's mean response, the metric of one of these names, is not logged, so that tokens are unknown."""
    if evaluations and evaluations[-1].count.rollouts and log.keys.isdisjoint(names):
        settings.notes.append(f"{names[-1]} is not logged: tokens are 0 and cannot be the unit of a fit")


def lengths(log: Log, *names: str) -> list[float]:
    """Mean response length at each row: the last one logged, or the first where none was before; 0 without any."""
    logged = [next((metrics[name] for name in names if name in metrics), None) for _, metrics in log.rows]
    odd = next((value for value in logged if value is not None and not 0 <= value < LONGEST_RESPONSE), None)
    if odd is not None:
        raise BudgetError(f"{log.name}: {names[0]} is {odd:g} in entry {logged.index(odd) + 1}, which is not a length")
    last = next((value for value in logged if value is not None), 0.0)
    out = []
    for value in logged:
        last = last if value is None else value
        out.append(last)
    return out


def best_samples(scores: Mapping[str, Any]) -> int | None:
    """The largest k of the ``avg_at_k`` among metric columns."""
    return max((int(name.split("_")[2]) for name in scores if name.startswith("avg")), default=None)


def whole_of(log: Log, seconds: str, rate: str) -> int | None:
    """Return a number of things from how long they took and how many a second: both are logged rounded.

    Args:
        seconds: Metric of the time, to four digits.
        rate: Metric of how many a second, to three.
    """
    low, high = 0.0, float("inf")
    for _, metrics in log.rows:
        time, each = metrics.get(seconds), metrics.get(rate)
        if time and each:
            low = max(low, (time - 6e-5) * (each - 6e-4) * (1 - 1e-6))
            high = min(high, (time + 6e-5) * (each + 6e-4) * (1 + 1e-6))
    return round(high) if high < float("inf") and low <= round(high) <= high and high - low < 1 else None


OTHER_SIZES = (1 / 8, 1 / 4, 1 / 3, 1 / 2, 2, 3, 4, 8)
"""Batches of so many times the responses are looked for where a run may have changed its settings."""
MOST_STEPS = 1_000_000
"""Optimizer steps of the longest run that is taken for one: each costs about a kilobyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Names of a trainer's metrics.

    Attributes:
        entry: What every entry of training has, also where nothing was generated.
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
    """Rollouts and tokens that a run generated, by optimizer step."""

    batch: int
    count: Count
    tokens: Sequence[int]
    source: str
    notes: tuple[str, ...]

    def at(self, step: int) -> StepCount:
        """What was generated up to and including a step; wrong if up to two starts left no trace in the log."""
        counted = self.count
        rollouts = (counted.least[step] + counted.most[step]) * self.batch // 2
        return StepCount(
            logged=step,
            step=step,
            rollouts=rollouts,
            rollouts_error=max(
                counted.greatest[step] * self.batch - rollouts, rollouts - counted.fewest[step] * self.batch
            ),
            tokens=self.tokens[step],
            count_source=self.source,
        )


def generated(log: Log, names: Entries, schedules: Sequence[Schedule], batch: int) -> Generated:
    """Count what a run generated, as its log says and one of several schedules explains."""
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
    counted = merged(counts)
    notes: tuple[str, ...] = ()
    if counted.unexplained:
        starts = "a start" if counted.unexplained == 1 else f"{counted.unexplained} starts"
        notes = (f"{log.name}: its log shows {starts} from a checkpoint within a generation batch, which is then lost",)
    # An entry's mean is of the steps before it.
    marks = [(s, m[names.length]) for s, m in log.rows if names.length in m] or [(last, 0.0)]
    lengths(log, names.length)
    mark, tokens = 0, [0.0]
    for step in range(1, last + 1):
        mark += mark + 1 < len(marks) and step > marks[mark][0]
        made = counted.least[step] + counted.most[step] - counted.least[step - 1] - counted.most[step - 1]
        tokens.append(tokens[-1] + made / 2 * batch * marks[mark][1])
    return Generated(
        batch=batch,
        count=counted,
        tokens=[int(t + 1e-6) for t in tokens],
        source="log and formula" if says else "formula",
        notes=notes,
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


def _evidence(log: Log, names: Entries, schedule: Schedule, batch: int) -> dict[int, Evidence]:
    """Collect a log's evidence of the batches generated: none in an entry that lacks what every generation logs."""
    own, saved = names.tokens
    totals = [(s, m.get(own, m.get(saved, 0.0))) for s, m in log.rows if own in m or saved in m]
    logged = {s: m for s, m in log.rows if names.entry in m or own in m or names.length in m}
    says = any(own in m or names.length in m for m in logged.values())
    spans = [(a, b, new - old) for (a, old), (b, new) in pairwise([(0, 0.0), *totals])]
    _check_one_size(log, names, [span for span in spans if own in logged.get(span[1], {})], schedule, batch)
    prompt, scatter = _prompt(log, names, spans, schedule, batch)
    tokens = {}
    for start, stop, new in spans:
        each = batch * (_mean_length(log, names, start) + prompt)
        tokens[stop] = partial(_agrees, new, each, 7.5 * scatter)
    entries = {s: partial(_allows, names, m, batch) for s, m in logged.items() if says}
    return {s: Evidence(entry=entries.get(s), tokens=tokens.get(s)) for s in entries.keys() | tokens.keys() if s}


def _check_one_size(
    log: Log, names: Entries, spans: Sequence[tuple[int, int, float]], schedule: Schedule, batch: int
) -> None:
    """Check that batches kept their size: of another one, tokens are as many times those of the last steps.

    That is seen where responses are longer than prompts, whose lengths differ from batch to batch.
    """
    each = [
        (stop, new / (made * batch), _mean_length(log, names, start))
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
                f"{log.name}: {names.tokens[0]} of step {each[found][0]:,} is of batches of {batch * size:g} responses "
                f"where its settings make {batch:,}, so that it is no run of one n and one batch"
            )


def _allows(names: Entries, metrics: Metrics, batch: int, generations: int) -> bool:
    """Return whether an entry's means over so many generation batches can be of whole numbers."""
    if (generations > 0) != (names.tokens[0] in metrics or names.length in metrics):
        return False
    wholes = [metrics[name] * generations for name in names.wholes if name in metrics]
    wholes += [metrics[name] * generations * batch for name in (names.length, *names.shares) if name in metrics]
    # Up to single precision; large sums say nothing.
    return all(value >= 1e5 or abs(value - round(value)) < 1e-3 + 1e-6 * value for value in wholes)


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
