"""Counts from logged steps: cumulative rollouts and tokens, and mean rewards that are success rates.

Some trainers, such as TRL, generate a batch every so many micro-steps. Their batches are counted from what the log says
about the steps that generated. A process generates in its first micro-step and then after every ``every`` of them, so a
restart begins a new cycle. ``count`` finds the histories with the fewest restarts that fit everything in the log, and
derives the counts of every step. It also derives what would follow from further, unlogged restarts.

A mean is a success rate if everything that the trainer logged about it fits successes and failures alone: its value,
the values of the best and the worst of k, the number of successes that they imply, and the spread. Rewards of 0 and 1
are assumed unless something contradicts them. Other rewards must be declared (``scale``), unless the spread leaves no
doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from math import floor, isclose, sqrt

from ..errors import BudgetError
from .logs.log import Log
from .settings import MissingSettingError, Settings

LARGEST_COUNT = 2**53
"""Counts above this are wrong: a float holds every whole number up to here."""
TRAINING_REWARD = (
    "TRAINING REWARD: measured on the problems that are trained on, by the policy before each update; it says how a "
    "run learnt, not how well it answers problems that it has not seen"
)
LONGEST_RESPONSE = 2**40
"""Mean response lengths above this are wrong, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The spread of an evaluation's rewards, as far as it is logged.

    Attributes:
        deviation: The mean of the standard deviations of groups of responses, or None.
        size: Responses in each group; the last group may hold fewer. None if the mean is not over equal groups.
        corrected: Whether these are sample standard deviations, not population ones.
    """

    deviation: float | None = None
    size: int | None = None
    corrected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The logged results of one problem set in an evaluation.

    Attributes:
        scores: By metric column: mean rewards as logged, or success rates after ``success_rates``.
        spread: What is logged about the rewards beside their means; None if that is uninformative.
        binary: Whether the trainer found all rewards to be 0 or 1; None if it does not say.
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
        logged: The step, by the trainer's own count.
        step: Optimizer steps taken.
        rollouts_error: Possible error of ``rollouts``, in either direction.
        count_source: ``log``, ``log and formula`` if both agree, or ``formula``.
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
        count: What was generated for training before the evaluation.
        split: ``validation``, or ``train`` for the training reward itself.
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
        following: Rollouts of the step after the last logged one, from the settings or if steps are alike.
        plain: Rollouts of these steps by the settings alone: whole batches or parts of them, each generated once.
        more: What was generated beyond ``plain``, or short of it, by mechanism.
        ahead: Rollouts that the settings generate before their step is taken; no log counts those left at its end.
    """

    points: Sequence[StepCount]
    following: int | None
    plain: int = 0
    more: Mapping[str, int] = field(default_factory=dict)
    ahead: int = 0

    @classmethod
    def of(cls, points: Sequence[StepCount], per_step: int | None, *, plain: int, baselines: int = 0) -> StepCounts:
        """Make counts that attribute everything beyond whole batches and baselines to replaced discarded groups.

        If no setting says what a step generates, the next step is assumed to be like the last.
        """
        more = {"remax baselines": baselines, "refill": (points[-1].rollouts if points else 0) - plain - baselines}
        if per_step is None and points:
            before = points[-2] if len(points) > 1 else None
            new = points[-1].rollouts - (before.rollouts if before else 0)
            per_step = -(-new // max(points[-1].logged - (before.logged if before else points[-1].logged - 1), 1))
        return cls(points=points, following=per_step, plain=plain, more={k: v for k, v in more.items() if v})


Metrics = Mapping[str, float]
Own = Callable[["Counting", int, Metrics], tuple[int | None, int]]
"""For a logged step: the rollouts that its metrics report, or None, and the possible error of that number."""


@dataclass(slots=True, kw_only=True)
class Counting:
    """Rollouts and response tokens of a run that generates a batch at every logged step.

    Attributes:
        per_step: Rollouts of a batch whose count is not logged, if known.
        reason_unknown: Otherwise, why it is unknown, and what a log must hold to tell it.
        episode: Batches in a pass over the problems whose last batch is short, and the rollouts that this batch lacks.
        updates: Optimizer steps per batch.
        batch: Rollouts of a batch by the settings alone.
        lengths: Mean tokens per response, for each row.
        gaps: Mean tokens per response of unlogged batches before each row; empty to use ``lengths``.
        trains: Whether a row is about training, not about an evaluation alone.
        number: The batch number of a logged step.
        begun: The number before the first batch's number.
    """

    log: Log
    per_step: int | None
    reason_unknown: str
    updates: int
    batch: int
    lengths: Sequence[float | Fraction]
    own: Own
    trains: Callable[[Metrics], bool]
    number: Callable[[int], int] = int
    begun: int = 0
    gaps: Sequence[float | Fraction] = ()
    episode: tuple[int, int] | None = None
    step: int = field(init=False)
    rollouts: int = 0
    rollouts_error: int = 0
    tokens: float | Fraction = 0
    sources: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.step = self.begun

    def progress(self, *, one_in: int = 0) -> StepCounts:
        """What was generated for training at each step; one rollout in ``one_in`` is only a baseline."""
        points = []
        for (step, metrics), length in zip(self.log.rows, self.lengths, strict=True):
            if self.trains(metrics):
                self._count(step, metrics, length)
                points.append(self._at(self.number(step), logged=step))
        baselines, plain = self.rollouts // one_in if one_in else 0, (self.step - self.begun) * self.batch
        return StepCounts.of(points, self.per_step, plain=plain, baselines=baselines)

    def evaluations(
        self,
        scores: Mapping[int, Mapping[str, Score]],
        *,
        before: Callable[[int], bool] = lambda step: False,
        split: str = "validation",
    ) -> list[LoggedEvaluation]:
        """The evaluations of a run, from scores by step and problem set.

        Args:
            before: Whether the evaluation logged with a step precedes that step's batch.
        """
        found = []
        rows = zip(self.log.rows, self.lengths, self.gaps or self.lengths, strict=True)
        for (step, metrics), length, gap in rows:
            if step > max(scores):
                break
            early, number = before(step), self.number(step)
            if early and (step in scores or self.trains(metrics)):
                self._advance(number - 1, None, gap)
            elif not early:
                # A resumed run evaluates before its first step, too.
                self._count(step, metrics, length)
            at = self._at(number - early, logged=step)
            found += [LoggedEvaluation.of(score, at, name, split) for name, score in scores.get(step, {}).items()]
            if early and self.trains(metrics):
                self._count(step, metrics, length)
        return found

    def _count(self, step: int, metrics: Metrics, length: float | Fraction) -> None:
        own, error = self.own(self, step, metrics)
        self._advance(self.number(step), own, length, error=error)

    def _advance(self, step: int, own: int | None, length: float | Fraction, *, error: int = 0) -> None:
        """Count all batches up to a step; ``error`` is the number of rollouts that may also have been started."""
        if step <= self.step:
            return
        where = self.log.name
        if own is not None and not 0 <= own < LARGEST_COUNT:
            raise BudgetError(f"{where}: step {step} is logged with {own:g} rollouts, which is impossible")
        missing = step - self.step - (own is not None)
        if missing and self.per_step is None:
            raise BudgetError(
                f"{where}: how many rollouts step {self.step + 1} generated is not known: {self.reason_unknown}; "
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

    def _at(self, number: int, *, logged: int) -> StepCount:
        return StepCount(
            logged=logged,
            step=(number - self.begun) * self.updates,
            rollouts=self.rollouts,
            rollouts_error=self.rollouts_error,
            tokens=int(self.tokens),
            count_source="formula" if self.sources != {"log"} else "log",
        )


MOST_UNEXPLAINED = 3
"""More restarts, or entries that disagree with the token counts, are a contradiction; in long runs, 1 in 20 entries."""
SLACK = 2
"""Histories with up to this many restarts more than the best one are possible, too."""
MOST_STATES = 300_000
"""Most states kept over all steps (some 500 bytes each); a long unlogged stretch keeps as many as its length
squared."""

Range = tuple[int, int]
"""The smallest and the largest possible value of a number."""

State = tuple[int, int, int, int]
"""Residue of the micro-steps that generate; batches since the last entry or start, and since the last token count;
known starts from a checkpoint so far."""

Layer = dict[State, tuple[int, set[State]]]
"""The possible states of a step, each with the restarts needed to reach it and the preceding states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a trainer generates.

    Attributes:
        every: Micro-steps between generation batches.
        accumulation: Micro-steps per optimizer step.
        batches: Generation batches per epoch, whose last optimizer step may be short; None for one endless epoch.
    """

    every: int
    accumulation: int
    batches: int | None = None

    @property
    def epoch_steps(self) -> int | None:
        """Optimizer steps per epoch."""
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
        """Batches generated by a process that starts after one optimizer step and ends with another."""
        return self.between(self.micro(start), start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A log's evidence at an optimizer step.

    Attributes:
        entry: Whether the logged values fit this number of batches since the last entry or start; None if nothing was
            logged.
        tokens: Whether the token count agrees with this number of batches since the last count. It returns False for an
            unlikely number and None for an impossible one. None if tokens were not counted.
    """

    entry: Callable[[int], bool] | None = None
    tokens: Callable[[int], bool | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The fewest and the most batches generated up to and including each optimizer step, from step 0.

    Attributes:
        likely: With the fewest restarts that explain the log.
        possible: With up to two more.
        unexplained: Restarts, or entries that disagree with the token counts, that had to be assumed.
    """

    likely: Sequence[Range]
    possible: Sequence[Range]
    unexplained: int


def count(
    schedule: Schedule, last: int, evidence: Mapping[int, Evidence], restarts: Sequence[Range], *, where: str
) -> Count:
    """Count the batches generated, as far as a log shows it.

    Args:
        restarts: For each known start from a checkpoint, the first and the last step that it may have started from.
    """
    layers = _layers(schedule, last, evidence, restarts, where=where, unlogged=True)
    slack = 0
    if layers is None:
        # An unlogged restart generates a new batch at once, so it adds one batch at most.
        layers, slack = _layers(schedule, last, evidence, restarts, where=where, unlogged=False), SLACK
    if layers is None:
        raise BudgetError(f"{where}: too little of its {last:,} optimizer steps is logged to say where it began anew")
    allowed = _allowed(evidence)
    costs = {state: cost for state, (cost, _) in layers[-1].items() if state[3] == len(restarts)}
    least = min(costs.values(), default=allowed + 1)
    if least > allowed:
        raise BudgetError(f"{where}: its log shows more starts from a checkpoint than can be told apart")
    likely, (start, *possible) = (
        _ranges(schedule, layers, {state for state, cost in costs.items() if cost <= most})
        for most in (least, least + SLACK)
    )
    possible = [start, *((low, high + slack) for low, high in possible)]
    return Count(likely=likely, possible=possible, unexplained=least)


def _allowed(evidence: Mapping[int, Evidence]) -> int:
    return MOST_UNEXPLAINED + len(evidence) // 20


def _layers(
    schedule: Schedule,
    last: int,
    evidence: Mapping[int, Evidence],
    restarts: Sequence[Range],
    *,
    where: str,
    unlogged: bool,
) -> list[Layer] | None:
    """The possible states of each step, with or without unlogged restarts; None if they are too many to keep."""
    layers: list[Layer] = [{(0, 0, 0, 0): (0, set())}]
    kept = 0
    for step in range(1, last + 1):
        reached = _reached(schedule, step, layers[-1], evidence.get(step, Evidence()), restarts, unlogged=unlogged)
        layer: Layer = {}
        for state, cost, origin in reached:
            old, origins = layer.get(state, (cost + 1, set()))
            if cost < old:
                layer[state] = (cost, {origin})
            elif cost == old:
                origins.add(origin)
        best = min((cost for cost, _ in layer.values()), default=0)
        most = min(best + SLACK, _allowed(evidence))
        layer = {state: least for state, least in layer.items() if least[0] <= most}
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


def _reached(
    schedule: Schedule, step: int, before: Layer, said: Evidence, restarts: Sequence[Range], *, unlogged: bool
) -> Iterator[tuple[State, int, State]]:
    """The states that may follow a step, each with the restarts it needs and the preceding state."""
    for origin, (cost, _) in before.items():
        residue, seen, total, starts = origin
        made = schedule.between(residue, step - 1, step)
        seen, total = seen + made, total + made
        if said.entry is not None:
            if not said.entry(seen):
                continue
            seen = 0
        if said.tokens is not None:
            agrees = said.tokens(total)
            if agrees is None:
                continue
            cost, total = cost + (not agrees), 0
        first, end = restarts[starts] if starts < len(restarts) else (step + 1, step)
        if end < step:
            continue
        yield (residue, seen, total, starts), cost, origin
        anew = schedule.micro(step) % schedule.every
        if first <= step:
            yield (anew, 0, total, starts + 1), cost, origin
        if unlogged and (anew != residue or seen):
            yield (anew, 0, total, starts), cost + 1, origin


def _ranges(schedule: Schedule, layers: Sequence[Layer], ends: set[State]) -> list[Range]:
    """The fewest and the most batches by step, over the histories that end in the given states of the last step."""
    kept = [ends]
    for layer in reversed(layers[1:]):
        kept.append({before for state in kept[-1] for before in layer[state][1]})
    found, reached = [(0, 0)], dict.fromkeys(kept.pop(), (0, 0))
    for step, states in enumerate(reversed(kept), 1):
        before = reached
        reached = {}
        for state in states:
            origins = [
                (before[origin], schedule.between(origin[0], step - 1, step)) for origin in layers[step][state][1]
            ]
            reached[state] = hull((low + made, high + made) for (low, high), made in origins)
        found.append(hull(reached.values()))
    return found


def hull(ranges: Iterable[Range]) -> Range:
    """The smallest range that contains the given ranges."""
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def note_no_tokens(log: Log, settings: Settings, evaluations: Sequence[LoggedEvaluation], *names: str) -> None:
    """Note that a run's mean response length, logged under one of these names, is missing, so tokens are unknown."""
    if evaluations and evaluations[-1].count.rollouts and log.keys.isdisjoint(names):
        settings.notes.append(f"{names[-1]} is not logged: tokens are 0 and cannot be the unit of a fit")


def lengths(log: Log, *names: str) -> list[float]:
    """Mean response length at each row: the last one logged, or before that the first; 0 if none is logged."""
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


SCALES = {"rate": (0.0, 1.0), "sign": (-1.0, 1.0), "percent": (0.0, 100.0)}
"""Rewards of failure and success: 0 and 1, -1 and 1, 0 and 100."""
MOST_RESPONSES = 100_000
"""With more responses, a single-precision mean does not tell how many succeeded."""


def success_rates(
    evaluations: Sequence[LoggedEvaluation], declared: str, *, where: str
) -> tuple[list[LoggedEvaluation], list[str]]:
    """Evaluations with scores as success rates, one scale per problem set, and notes on scales other than 0 and 1."""
    if declared not in ("", *SCALES):
        raise BudgetError(f"{where}: scale is {declared!r}; it must be {', '.join(SCALES)}")
    notes, scales = [], {}
    for key in dict.fromkeys((e.problem_set, e.metric) for e in evaluations):
        of_set = [e for e in evaluations if (e.problem_set, e.metric) == key]
        scales[key] = scale = _scale(of_set, declared, where)
        if scale != "rate":
            low, high = SCALES[scale]
            notes.append(f"{_name(of_set[0])} is of rewards {low:g} and {high:g}: it is read as a success rate")
    return [_scaled(e, *SCALES[scales[e.problem_set, e.metric]]) for e in evaluations], notes


def metric_of_successes(log: Log, settings: Settings, metric: str, share: str) -> str:
    """The metric of a problem set's successes: its mean reward or, if rewards are -1 and 1, the share of the 1s."""
    both = [(step, m[metric], m[share]) for step, m in log.rows if metric in m and share in m]
    if settings.text("scale") or all(isclose(rate, mean, abs_tol=1e-6) for _, mean, rate in both):
        return metric
    other = next((each for each in both if not isclose(each[2], (each[1] + 1) / 2, abs_tol=1e-6)), None)
    if other is None:
        settings.notes.append(f"{metric} is of rewards -1 and 1: {share} is read as a success rate")
        return share
    raise BudgetError(
        f"{log.name}: {metric} is {other[1]:g} and {share} {other[2]:g} at step {other[0]}, of rewards other than 0 "
        "and 1, or -1 and 1: say which with --set scale=…, or name another metric with --set metric=NAME"
    )


def mean_scores(
    log: Log, metric: str, best: str, samples: int, *, low: float = 0.0, binary: bool | None = None
) -> Iterator[tuple[int, Score]]:
    """A problem set's scores by step, means and the best of all samples; failures are rewarded with ``low``."""
    for step, metrics in log.rows:
        if metric in metrics:
            columns = {f"avg_at_{samples}": (metrics[metric] - low) / (1 - low)}
            if samples > 1 and best in metrics:
                columns[f"best_at_{samples}"] = metrics[best]
            spread = Spread(size=samples)
            yield step, Score(samples=samples, scores=columns, metric=metric, spread=spread, binary=binary)


def _scale(evaluations: Sequence[LoggedEvaluation], declared: str, where: str) -> str:
    """The reward scale of a problem set."""
    fitting = [scale for scale in SCALES if all(_fits(e, scale) for e in evaluations)]
    other_rewards = any(e.binary is False for e in evaluations)
    if declared in fitting or ("rate" in fitting and not declared and not other_rewards):
        return declared or "rate"
    # The spread of one batch follows from its mean, which leaves no doubt.
    sure = [e for e in evaluations if e.spread is not None and e.spread.deviation and _groups(e) == 1]
    proved = [s for s in fitting if s != "rate" and not declared and any(_fits(e, s) for e in sure)]
    if proved:
        return proved[0]
    tried = declared or "rate"
    worst = next((e for e in evaluations if not _fits(e, tried)), evaluations[0])
    if tried in fitting:
        raise BudgetError(
            f"{where}: {_name(worst)} has other rewards than 0 and 1, of which alone the trainer logs pass@k: say "
            "--set scale=rate if only a part of the log is there"
        )
    low, high = SCALES[tried]
    other = "name the accuracy's own metric with --set metric=NAME"
    said = f"{where}: {_shown(worst)}, which is not a success rate of rewards {low:g} and {high:g}"
    if "sign" in fitting and not declared:
        cure = "say --set scale=sign if they are -1 and 1"
        raise MissingSettingError(f"{said}: {cure}, or {other}", name="scale", choices="sign")
    if worst.questions and _fits(replace(worst, questions=None), tried):
        cure = f"say how many problems were evaluated with --set questions.{worst.problem_set}=NUMBER"
        raise BudgetError(f"{said}, of {worst.questions:,} × {worst.samples:,} responses: {cure}, or {other}")
    percent = ", or say --set scale=percent if they are 0 and 100" if "percent" in fitting and not declared else ""
    raise BudgetError(f"{said}: {other}{percent}")


def _fits(e: LoggedEvaluation, scale: str) -> bool:
    """Return whether an evaluation fits rewards of success and failure alone."""
    if e.binary and scale != "rate":
        return False
    scaled = _scaled(e, *SCALES[scale])
    if any(not -1e-6 <= rate <= 1 + 1e-6 for rate in scaled.scores.values()):
        return False
    groups, mean = _groups(e), scaled.scores.get(f"avg_at_{e.samples}")
    width = SCALES[scale][1] - SCALES[scale][0]
    rounding = {column: _rounding(score) / width for column, score in e.scores.items()}
    if mean is not None and not all(_in_order(c, rate, mean, rounding[c]) for c, rate in scaled.scores.items()):
        return False
    if groups is not None and e.questions is not None:
        for column, rate in scaled.scores.items():
            kind, _, k = column.split("_")[:3]
            # The best and the worst of all responses to a problem are one value per problem.
            of = e.questions * (int(k) if kind == "avg" else 1)
            exact = kind == "avg" or (int(k) == e.samples and not column.endswith("_biased"))
            # Tolerate single precision and the rounding of a mean.
            slack = 1e-3 + 1e-6 * rate * of + rounding[column] * of * 1.001
            if exact and of < MOST_RESPONSES and abs(rate * of - round(rate * of)) > slack:
                return False
    if e.spread is None or scaled.spread is None or scaled.spread.deviation is None or mean is None:
        return True
    deviation, most = scaled.spread.deviation, _most(mean, e.spread, groups)
    return deviation <= most * 1.001 + 1e-3 and (groups != 1 or isclose(deviation, most, rel_tol=2e-3, abs_tol=2e-3))


def _in_order(column: str, rate: float, mean: float, rounding: float) -> bool:
    """Return whether best and worst of k fit the mean: k responses have at most k times the successes of one."""
    kind, _, k = column.split("_")[:3]
    # Draws with replacement estimate it with a small bias.
    slack = (0.05 if column.endswith("_biased") else 1e-6) + rounding * (1 + int(k))
    if kind == "best":
        return mean - slack <= rate <= int(k) * mean + slack
    return kind != "worst" or mean + slack >= rate >= 1 - int(k) * (1 - mean) - slack


def _groups(e: LoggedEvaluation) -> int | None:
    """The number of equally sized groups of responses that a mean covers, so that responses have equal weight."""
    if e.spread is None or not e.spread.size or e.questions is None or e.questions * e.samples % e.spread.size:
        return None
    return e.questions * e.samples // e.spread.size


def _most(rate: float, spread: Spread, groups: int | None) -> float:
    """The largest mean deviation of groups with this success rate; all groups have one size if that is known."""
    rate = min(max(rate, 0.0), 1.0)
    size = spread.size
    if size is None or (spread.corrected and groups is None):
        # The last batch may hold only two responses, whose sample deviation is the largest.
        return sqrt(rate * (1 - rate)) * (sqrt(2) if spread.corrected else 1)
    # A mixture of groups with c and with c + 1 successes has the largest mean deviation.
    below = floor(rate * size + 1e-9)
    low, high = (sqrt(max(c * (size - c), 0)) / size for c in (below, below + 1))
    most = low + (high - low) * min(max(rate * size - below, 0.0), 1.0)
    return most * (sqrt(size / (size - 1)) if spread.corrected and size > 1 else 1)


def _scaled(e: LoggedEvaluation, low: float, high: float) -> LoggedEvaluation:
    """The evaluation with failures at 0 and successes at 1."""
    width = high - low
    rates = {column: (score - low) / width for column, score in e.scores.items()}
    spread = e.spread
    if spread is not None and spread.deviation is not None:
        spread = replace(spread, deviation=spread.deviation / width)
    within = {c: min(max(rate, 0.0), 1.0) if -1e-6 <= rate <= 1 + 1e-6 else rate for c, rate in rates.items()}
    return replace(e, scores=within, spread=spread)


def _rounding(value: float) -> float:
    """Possible rounding error of a value with few decimals, as on a console."""
    whole, _, decimals = repr(float(value)).partition(".")
    return 0.0 if "e" in decimals or not whole or len(decimals) > 6 else 0.5 * 10.0 ** -len(decimals)


def _name(e: LoggedEvaluation) -> str:
    return e.metric or f"avg_at_{e.samples} of {e.problem_set}"


def _shown(e: LoggedEvaluation) -> str:
    """What was logged, as the subject of a refusal."""
    mean = e.scores.get(f"avg_at_{e.samples}")
    beyond = [f"{c} {s:g}" for c, s in e.scores.items() if not c.startswith("avg_at_") and not 0 <= s <= 1][:2]
    if e.spread is not None and e.spread.deviation is not None:
        beyond.append(f"a standard deviation of {e.spread.deviation:g}")
    with_these = f" with {' and '.join(beyond)}" if beyond else ""
    return f"{_name(e)} is {'not logged' if mean is None else f'{mean:g}'}{with_these} at step {e.count.step}"
