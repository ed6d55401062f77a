"""``advise``: which n to start with before any training, from the results of other sweeps, and what would narrow it.

It gives no probability that an n is best, since nothing of this problem set was measured. Sources are the rows of
``sweeps.csv``; docs/sweeps.md lists them and reports how often the intervals contain a source that was left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor, log2, sqrt
from statistics import mean, median
from typing import Any

from ..data.reading import short
from ..data.sweeps import Sweep
from ..errors import FrontierError
from ..posterior.between import Between, Mixture, without
from .signal import Spread

LEVEL = 0.8
"""Probability of the interval: four in five."""
WIDEST = 16.0
"""Largest ratio of the interval's high end (or the largest feasible n, if lower) to its low end; beyond it, no n is
named."""
BEYOND = 4.0
"""As in ``fit``: nothing is said beyond this many times the sources' budgets."""
LEAST_UPDATES = 64
"""Fewest updates in the panel that the questions rest on; the Playbook's largest n had 61."""
LEAST_PROBLEMS, MOST_PROBLEMS = 8, 32
"""B_p in the panel and on the Playbook's lines of n."""
RATE, RATE_BATCH = 1e-6, 1024
"""IsoCompute Playbook, section 3: the rate of a 7B model at a batch of 1,024 rollouts; it scales as √B."""
OTHER_METRIC = 1.0
"""Octaves added for best@k and worst@k, for which no source has an n*: assumed."""
MEASURED_TO = 1.0
"""Octaves: precision of n* from three cells a factor of four apart; rows of ``sweeps.csv`` have 0.8 to 1."""
SIGNAL_SIZES = (2, 4, 8, 16, 32, 64)
PLAYBOOK = "Playbook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to ``advise``.

    Attributes:
        budget: Rollouts.
        spread: Pass rates of the base model over the training problems.
        problems: Training problems, D, if known.
        parameters: Of the model, if known.
        max_batch: Most rollouts in a batch, if there is a limit.
        metric: ``avg``, ``best`` or ``worst`` (at k).
        anchor: A learning rate that worked, and its batch in rollouts.
    """

    budget: float
    spread: Spread
    problems: int | None = None
    parameters: float | None = None
    max_batch: int | None = None
    metric: str = "avg"
    anchor: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A run: rollouts per problem, problems per batch, update steps and learning rate."""

    n: int
    problems_per_batch: int
    steps: int
    learning_rate: float

    @property
    def rollouts(self) -> int:
        """Rollouts that it generates."""
        return self.n * self.problems_per_batch * self.steps

    def flags(self, trainer: str) -> str:
        """The cell as flags of a trainer, a key of ``FLAGS``."""
        batch, steps = self.problems_per_batch, self.steps
        numbers = {"n": self.n, "batch": batch, "steps": steps, "rollouts": self.n * batch, "problems": batch * steps}
        return FLAGS[trainer].format(**numbers, rate=self.learning_rate)

    def as_dict(self) -> dict[str, Any]:
        """The cell for ``--json``, with the tables' column names."""
        return {
            "rollouts_per_problem": self.n,
            "problems_per_batch": self.problems_per_batch,
            "update_steps": self.steps,
            "learning_rate": self.learning_rate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to start with.

    Attributes:
        start: The run to start with, at the median n; None if nothing can be said.
        interval: Low end, median and high end of n* with probability four in five; never below 2.
        cannot: Why nothing can be said, or empty.
        left_out: By source, the interval without that source.
        pilots: Three cells that would narrow the interval; ``ratio_after`` is the ratio expected after them.
        forbidden: The largest n that the batch limit and the least updates allow at the smallest B_p.
    """

    question: Question
    sweeps: tuple[Sweep, ...]
    between: Between
    start: Cell | None
    interval: tuple[float, float, float]
    cannot: str
    left_out: dict[str, tuple[float, float, float]]
    pilots: tuple[Cell, ...]
    ratio_after: float
    forbidden: int

    @property
    def ratio(self) -> float:
        """Ratio of the interval's high end to its low end."""
        return self.interval[2] / self.interval[0]

    def as_dict(self) -> dict[str, Any]:
        """The advice for ``--json``."""
        sources, sets = self.between.deviations
        spread = self.question.spread
        return {
            "budget": self.question.budget,
            "pass_rate": spread.mean,
            "start": self.start and self.start.as_dict(),
            "cannot_say": self.cannot or None,
            "interval": {"level": LEVEL, **dict(zip(("low", "median", "high"), self.interval, strict=True))},
            "deviation_octaves": {"sources": sources, "sets": sets},
            "left_out": {name: list(each) for name, each in self.left_out.items()},
            "signal": {str(n): spread.signal(n) for n in SIGNAL_SIZES},
            "pilots": [cell.as_dict() for cell in self.pilots],
            "ratio_after_pilots": self.ratio_after,
        }


def advise(question: Question, sweeps: Sequence[Sweep]) -> Advice:
    """What to start with, from all sources and from all but each.

    Raises:
        FrontierError: The batch limit or the budget cannot hold the smallest run of any source.
    """
    budget = question.budget
    most = largest_n(question)
    between = _between(tuple(sweeps))
    interval = _interval(between, question)
    low, middle, high = interval
    least, largest = min(s.budget for s in sweeps), max(s.budget for s in sweeps)
    cannot = ""
    if not least / BEYOND <= budget <= largest * BEYOND:
        sources = f"{short(least)} to {short(largest)}"
        cannot = f"{short(budget)} rollouts are more than {BEYOND:g} times beyond the sources', {sources}"
    elif min(high, most) > WIDEST * low:
        cannot = (
            f"the sources leave n between {_n(low)} and {_n(high)}, {high / low:.0f} × apart (at most {WIDEST:g} ×)"
        )
    n = min(_power(middle), _power(most, down=True))
    # The cheapest pilots whose three n get the least updates.
    room = LEAST_UPDATES * LEAST_PROBLEMS
    pilot = next((budget / part for part in (8, 4) if budget / part >= 8 * room), budget / 2)
    sizes = _around(n, min(most, pilot / room))
    batch = min(problems_per_batch(question, size, pilot) for size in sizes)
    after = between.after(budget, question.spread.mean, measured_at=pilot, deviation=MEASURED_TO)
    narrowed = _sizes(after)
    return Advice(
        question=question,
        sweeps=tuple(sweeps),
        between=between,
        start=None if cannot else _cell(question, n, problems_per_batch(question, n, budget), budget),
        interval=interval,
        cannot=cannot,
        left_out={
            name: _interval(_between(rest), question)
            for name in dict.fromkeys(s.source for s in sweeps)
            if (rest := without(sweeps, name))
        },
        pilots=tuple(_cell(question, size, batch, pilot) for size in sizes),
        ratio_after=narrowed[2] / narrowed[0],
        forbidden=most,
    )


def largest_n(question: Question) -> int:
    """The largest n for which B_p = 8 problems fit the batch limit and leave the least updates.

    Raises:
        FrontierError: There is none of 2 or more.
    """
    by_updates = floor(question.budget / (LEAST_UPDATES * LEAST_PROBLEMS))
    if by_updates < 2:
        raise FrontierError(
            f"{question.budget:,.0f} rollouts are fewer than {LEAST_UPDATES} updates of {LEAST_PROBLEMS} problems and "
            f"2 rollouts each, {2 * LEAST_UPDATES * LEAST_PROBLEMS:,}: give a larger budget"
        )
    if question.max_batch is not None and question.max_batch < 2 * LEAST_PROBLEMS:
        raise FrontierError(
            f"a batch of {question.max_batch:,} holds no {LEAST_PROBLEMS} problems of 2 rollouts, the least that any "
            "source has trained: accumulate gradients over several passes, and give the batch of an update"
        )
    return min(by_updates, (question.max_batch or by_updates * LEAST_PROBLEMS) // LEAST_PROBLEMS)


def problems_per_batch(question: Question, n: int, budget: float) -> int:
    """The largest power of two up to 32 whose batches fit the limit, the problems and the least updates; at least 8."""
    limits = [MOST_PROBLEMS, budget / (LEAST_UPDATES * n)]
    limits += [question.max_batch / n] if question.max_batch else []
    limits += [question.problems] if question.problems else []
    return max(LEAST_PROBLEMS, _power(min(limits), down=True))


def lines(advice: Advice, trainer: str, *, cost: float | None = None) -> Iterator[str]:
    """The advice as text: one sentence, followed by the source of each part.

    Args:
        trainer: A key of ``FLAGS``.
        cost: Rollouts per GPU-hour, to print the cost of cells in GPU-hours.
    """
    question, start = advice.question, advice.start
    low, _, high = advice.interval
    known = f"at {short(question.budget)} rollouts, pass rate {question.spread.mean:.2g}, for {question.metric}@k"
    if start is None:
        sizes = ", ".join(str(cell.n) for cell in advice.pilots)
        to = short(max(cell.rollouts for cell in advice.pilots))
        yield f"Cannot say: measure n = {sizes} to {to} rollouts each; {advice.cannot}"
    else:
        rate, at = question.anchor or (RATE, RATE_BATCH)
        whose = "from the one that worked" if question.anchor else "a 7B model's; no source for other sizes"
        # An n that no batch holds, or that leaves too few updates, cannot be chosen, however far apart the sources are.
        ends = f"({_n(low)} to {_n(high)}, of which at most {advice.forbidden} fits)"
        if advice.forbidden >= high:
            ends = f"({_n(low)} to {_n(high)})"
        yield (
            f"Begin with n = {start.n} {ends}, B_p = {start.problems_per_batch}, {start.steps:,} steps, rate "
            f"{start.learning_rate:.2g} = {rate:g}·√(B/{at:,.0f}) ({whose})"
        )
    count = len({(s.problem_set, s.model) for s in advice.sweeps})
    sigma, tau = (2**each for each in advice.between.deviations)
    slope, error = advice.between.slope
    rises = f"{2**slope:.2g} (× {2 ** (slope - error):.2g} to {2 ** (slope + error):.2g})"
    yield (
        f"The interval, {known}: n* of four in five such sweeps, by {len(advice.left_out)} sources with {count} "
        f"problem sets and models, which are few. Sources differ by {sigma:.1f} ×, sets of one source by {tau:.1f} × "
        f"(one standard deviation); n* rises by × {rises} where C doubles."
    )
    if question.metric != "avg":
        yield (
            f"{question.metric}@k: no source has an n* of it. Assumed: that of avg@k within an octave more. By the "
            "Playbook (Figure 8) larger n pays for worst@4 on Easy and for best@4 on Hard; our panel says neither "
            "(docs/findings.md, Q7 and Q8)."
        )
    yield "Sources (docs/sweeps.md), each at its budget nearest to this:"
    yield from _sources(advice)
    without_each = "; ".join(f"without {name} {_said(each)}" for name, each in advice.left_out.items())
    yield f"Each source left out in turn: {without_each}."
    yield from _arithmetic(advice)
    yield from _narrow(advice, trainer, cost)


def _sources(advice: Advice) -> Iterator[str]:
    ordered = sorted(dict.fromkeys(s.source for s in advice.sweeps), key=lambda name: name != PLAYBOOK)
    for source in ordered:
        at = _nearest(advice, source)
        if len(at) > 3:
            found, one = [2**s.log2_n for s in at], at[0]
            yield (
                f"  {source}, {len(at)} sets and models ({short(one.parameters)} parameters, {_rates(at)}): n* "
                f"{_n(min(found))} to {_n(max(found))}, median {_n(median(found))}, at {short(one.budget)}, {one.held}"
                f"{_lost(at)} [{one.citation}]"
            )
            continue
        for s in at:
            ends = (2 ** (s.log2_n + sign * 1.28 * s.deviation) for sign in (-1, 1))
            span = " to ".join(_n(end) for end in ends)
            what = f"{s.problem_set}, {s.model} ({_rates([s])}): n* {_n(2**s.log2_n)} ({span})"
            yield f"  {source}, {what} at {short(s.budget)}, {s.held}{_lost([s])} [{s.citation}]"


def _nearest(advice: Advice, source: str) -> list[Sweep]:
    """The rows of a source at its budget that is nearest to the question's."""
    own = [s for s in advice.sweeps if s.source == source]
    near = min((s.budget for s in own), key=lambda budget: abs(log2(budget / advice.question.budget)))
    return [s for s in own if s.budget == near]


def _lost(sweeps: Sequence[Sweep]) -> str:
    sizes = [n for n in (2, 8, 16, 64, 256) if all(n in s.lost for s in sweeps)]
    lost = [f"{mean(s.lost[n] for s in sweeps):.3f} at n = {n}" for n in sizes]
    return f"; reward lost: {', '.join(lost)}" if lost else ""


def _arithmetic(advice: Advice) -> Iterator[str]:
    question, n = advice.question, advice.start.n if advice.start else _power(advice.interval[1])
    spread = question.spread
    shares = ", ".join(f"{spread.signal(size):.0%} at {size}" for size in SIGNAL_SIZES)
    p = spread.mean
    alike = ", ".join(f"{1 - p**size - (1 - p) ** size:.0%}" for size in SIGNAL_SIZES[:4])
    yield (
        f"Groups with a signal (rewards that differ, without which a group teaches nothing), by n: {shares} ["
        f"1 − pⁿ − (1 − p)ⁿ; {spread.said}]. Were all problems at {p:.2g}: "
        f"{alike}, …"
    )
    if question.problems:
        passes = question.budget / (n * question.problems)
        near = _nearest(advice, PLAYBOOK)
        others = ", ".join(f"{s.problem_set} {s.budget / (2**s.log2_n * s.problems):.2g}" for s in near)
        yield f"Epochs: C/(n·D) = {passes:.2g} passes over each problem at n = {n} [the Playbook's at n*: {others}]."
    else:
        yield "Epochs: C/(n·D), once --problems is given."
    most = floor(question.budget / (LEAST_UPDATES * (advice.start or advice.pilots[0]).problems_per_batch))
    yield (
        f"Updates: at least {LEAST_UPDATES}, so n up to {most:,} at this B_p [the panel's rule; the Playbook's "
        "n = 2,048 had 61]."
    )
    if question.max_batch:
        limit = question.max_batch
        sizes = [b for b in (MOST_PROBLEMS, 16, LEAST_PROBLEMS) if 2 * b <= limit]
        pairs = ", ".join(f"n above {limit // b:,} at B_p = {b}" for b in sizes)
        short_of = " That is less than the sources' median." if advice.forbidden < advice.interval[1] else ""
        yield f"Batches up to {limit:,} rollouts forbid {pairs}.{short_of}"
    trained, own = sorted({s.parameters for s in advice.sweeps}), question.parameters
    if own and all(abs(log2(own / size)) > 2 for size in trained):
        said = ", ".join(short(size) for size in trained)
        yield f"Model: no source is within a factor of four of {short(own)} parameters; they have {said}."
    at = "the rate that worked" if question.anchor else "the Playbook's, of a 7B model"
    yield (
        f"Rate: √B from {at}. In our panel ½, 1 and 2 times the chosen rate ended at 0.709, 0.674 and 0.506, and 0 of "
        "64, 3 of 66 and 15 of 60 runs failed: halving costs little, doubling is a cliff [docs/findings.md]."
    )


def _narrow(advice: Advice, trainer: str, cost: float | None) -> Iterator[str]:
    total = sum(cell.rollouts for cell in advice.pilots)
    hours = f", {total / cost:,.3g} GPU-hours" if cost else ""
    cost_said = f"{short(total)} rollouts together ({total / advice.question.budget:.0%} of the budget{hours})"
    yield (
        f"To narrow it, {len(advice.pilots)} runs, {cost_said}, after which the high end "
        f"of the interval would be about {advice.ratio_after:.2g} × the low end, in place of {advice.ratio:.2g} ×:"
    )
    for cell in advice.pilots:
        price = f", {cell.rollouts / cost:,.3g} GPU-hours" if cost else ""
        yield f"  n = {cell.n}, {short(cell.rollouts)} rollouts{price}: {cell.flags(trainer)}"
    yield (
        "  isocompute-budget convert writes all settings for your devices and problems; then isocompute-frontier fit "
        "reads what they logged, and next says what to add."
    )


FLAGS = {
    "trl": "--num_generations {n} --per_device_train_batch_size {n} --gradient_accumulation_steps {batch} "
    "--max_steps {steps} --learning_rate {rate:.3g}",
    "verl": "data.train_batch_size={batch} actor_rollout_ref.rollout.n={n} "
    "actor_rollout_ref.actor.ppo_mini_batch_size={batch} trainer.total_training_steps={steps} "
    "trainer.total_epochs={steps} actor_rollout_ref.actor.optim.lr={rate:.3g}",
    "openrlhf": "--rollout.batch_size {batch} --rollout.n_samples_per_prompt {n} --train.batch_size {rollouts} "
    "--data.max_samples {problems} --actor.adam.lr {rate:.3g}",
    "prime-rl": "--orchestrator.batch_size {rollouts} --orchestrator.group_size {n} --max_steps {steps} "
    "--trainer.optim.lr {rate:.3g}",
}
"""A cell as flags of a trainer (TRL's for one device), in the form that ``isocompute-budget convert --from`` reads."""


def _interval(between: Between, question: Question) -> tuple[float, float, float]:
    extra = 0.0 if question.metric == "avg" else OTHER_METRIC
    return _sizes(between.at(question.budget, question.spread.mean).widened(extra))


def _sizes(octaves: Mixture) -> tuple[float, float, float]:
    """The interval in rollouts per problem; a group has at least two."""
    low, middle, high = (max(2.0, 2**each) for each in octaves.interval(LEVEL))
    return low, middle, high


_between = lru_cache(maxsize=16)(Between)


def _cell(question: Question, n: int, batch: int, budget: float) -> Cell:
    rate, at = question.anchor or (RATE, RATE_BATCH)
    return Cell(
        n=n,
        problems_per_batch=batch,
        steps=floor(budget / (n * batch)),
        learning_rate=rate * sqrt(n * batch / at),
    )


def _around(n: int, most: float) -> list[int]:
    """Up to three powers of two, a factor of four apart if the largest possible n leaves room."""
    ladder = [2**k for k in range(1, int(log2(_power(most, down=True))) + 1)]
    place = ladder.index(min(n, ladder[-1]))
    low, high = max(place - 2, 0), min(place + 2, len(ladder) - 1)
    middle = place if low < place < high else (low + high) // 2
    return sorted({ladder[low], ladder[middle], ladder[high]})


def _power(value: float, *, down: bool = False) -> int:
    """The nearest power of two in octaves or, with ``down``, the largest not above the value; at least 2."""
    octaves = floor(log2(max(value, 2.0))) if down else round(log2(max(value, 2.0)))
    return int(2**octaves)


def _n(value: float) -> str:
    return f"{value:.0f}" if value < 99.5 else f"{float(f'{value:.2g}'):,.0f}"


def _said(interval: tuple[float, float, float]) -> str:
    low, middle, high = interval
    said = f"n = {_power(middle)} ({_n(low)} to {_n(high)})"
    return said if high <= WIDEST * low else f"cannot say ({_n(low)} to {_n(high)})"


def _rates(sweeps: Sequence[Sweep]) -> str:
    rates = sorted(s.pass_rate for s in sweeps)
    return f"pass rate {rates[0]:.2g}" + (f" to {rates[-1]:.2g}" if rates[-1] > rates[0] else "")
