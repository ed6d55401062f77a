"""From the settings of a sweep to its cells, and to their learning rates: declared, or found by pilots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, fsum, log, sqrt
from typing import Any, cast

from isocompute.budget import Allocation, Scaling
from isocompute.learner import RunConfig
from isocompute.rollout.scoring.evaluation import proportion_error

from ..errors import ExperimentError
from ..settings import DeclaredRate, Preset, SweepConfig
from .cells import Cell, CommandCell, CommandSurroundings, Origin

NOISE = 2.0
"""Standard errors that a difference must exceed to be more than noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Makes the cells of one problem set."""

    preset: Preset
    sweep: SweepConfig
    origin: Origin

    def declared_rates(self) -> Rates | None:
        """The learning rates where they are declared; None where pilots find them."""
        rate = self.sweep.learning_rate
        if not isinstance(rate, DeclaredRate):
            return None
        return Rates(rule=rate.rule, found={(rate.batch_rollouts, 1): rate.learning_rate})

    def trials(
        self, rates: Iterable[float] | None = None, *, at: Iterable[tuple[int, int]] | None = None
    ) -> list[Cell]:
        """One pilot cell for each seed, (n, B_p) and rate, none of a declared rate: all have a seed before one has two.

        Args:
            rates: Learning rates; by default those that a search begins with.
            at: Every (n, B_p); by default those that are searched.
        """
        pilot = self.sweep.search
        if pilot is None:
            return []
        tried = list(pilot.learning_rates if rates is None else rates)
        pairs = list(self.sweep.searched() if at is None else at)
        return [
            self.cell("pilot", pilot.run(n, size, seed), rollouts=pilot.rollouts, learning_rate=rate)
            for seed in pilot.seeds
            for rate in tried
            for n, size in pairs
        ]

    def cells(self, rates: Rates) -> list[Cell]:
        """Every (n, B_p), rate factor and seed of the sweep."""
        return [
            self.cell(
                "sweep",
                self.sweep.run(n, size, seed),
                rollouts=self.sweep.rollouts,
                learning_rate=_rounded(rates.at(n, size) * factor),
            )
            for n, size in self.sweep.grid()
            for factor in self.sweep.rate_factors
            for seed in self.sweep.seeds
        ]

    def cell(self, purpose: str, run: RunConfig, *, rollouts: int, learning_rate: float) -> Cell:
        """One cell."""
        learner = self.preset.learner(self.sweep, learning_rate=learning_rate)
        if self.sweep.warmup_rollouts is not None:
            steps = max(1, round(self.sweep.warmup_rollouts / run.batch_rollouts))
            learner = replace(learner, optimizer=replace(learner.optimizer, warmup_steps=steps))
        kind = CommandCell if isinstance(self.origin.surroundings, CommandSurroundings) else Cell
        return kind(
            purpose=purpose,
            origin=self.origin,
            run=run,
            rollouts=rollouts,
            evaluation_samples=self.preset.evaluation.samples,
            learner=learner,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The learning rates of a sweep.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        found: The rate at every (n, B_p) searched: one, the anchor, or with ``tuned`` several. Of a rate that is
            declared for a batch of B rollouts that is (B, 1).
    """

    rule: str
    found: Mapping[tuple[int, int], float]

    def at(self, rollouts_per_problem: int, problems_per_batch: int) -> float:
        """The learning rate of a cell.

        From an anchor or a declared rate η at B_0 rollouts it is η, η·B/B_0 or η·√(B/B_0). A tuned rate is the one
        that was found at this (n, B_p); between two tuned n of one B_p, log η is linear in log n; beyond them it is
        that of the nearest n, since no rule says how the largest stable rate goes on. At a B_p that was not searched
        the nearest B_p (in log B_p) is taken.
        """
        if self.rule != "tuned":
            (((n, size), rate),) = self.found.items()
            batch = Allocation(
                problems_per_batch=problems_per_batch, rollouts_per_problem=rollouts_per_problem, update_steps=1
            )
            return batch.learning_rate(anchor=rate, anchor_batch=n * size, scaling=cast(Scaling, self.rule))
        n, sizes = rollouts_per_problem, sorted({size for _, size in self.found})
        nearest = min(sizes, key=lambda each: abs(log(each / problems_per_batch)))
        points = sorted((n, rate) for (n, size), rate in self.found.items() if size == nearest)
        lower = [point for point in points if point[0] <= n]
        upper = [point for point in points if point[0] >= n]
        (few, low), (many, high) = (lower or upper[:1])[-1], (upper or lower[-1:])[0]
        if few == many:
            return low
        share = log(n / few) / log(many / few)
        rate = exp((1 - share) * log(low) + share * log(high))
        # Rounding must not lead beyond what was found.
        return min(max(rate, min(low, high)), max(low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The learning rates of a problem set, and how they were found.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        base: The base model's score, of responses that selected nothing.
        budget: Rollouts that one cell of the search was to be trained on.
        searches: What was found at every (n, B_p) searched.
    """

    rule: str
    metric: str
    base: Score
    budget: int
    searches: tuple[Search, ...]

    def rates(self) -> Rates:
        """The learning rates that follow."""
        found = {(s.rollouts_per_problem, s.problems_per_batch): s.chosen.learning_rate for s in self.searches}
        return Rates(rule=self.rule, found=found)

    def document(self) -> dict[str, Any]:
        """As in ``pilot.json``."""
        names = ("learning_rate", "score", "standard_error", "stable")
        searches = [
            {**asdict(each), **{name: getattr(each.chosen, name) for name in names}, "edge": each.edge}
            for each in self.searches
        ]
        return {**asdict(self), "searches": searches}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Result of a search at one (n, B_p): every rate tried, lowest first, from ``tried``.

    Raises:
        ExperimentError: Every rate diverged.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    grid: tuple[Tried, ...]

    def __post_init__(self) -> None:
        _ = self.chosen

    @property
    def chosen(self) -> Tried:
        """Of the rates that neither diverged nor collapsed in any seed the one with the highest score.

        Of equal scores it is the lowest rate; where every rate collapsed, the best of them.
        """
        best = _best(self.grid)
        if best is None:
            raise ExperimentError(
                f"every learning rate tried at n = {self.rollouts_per_problem}, B_p = {self.problems_per_batch} "
                f"diverged ({', '.join(f'{each.learning_rate:g}' for each in self.grid)}): give lower ones"
            )
        return best

    @property
    def edge(self) -> str | None:
        """The end of the grid, ``lowest`` or ``highest``, that the chosen rate is; ``both``, or None inside.

        Beyond it a better rate may lie.
        """
        if len(self.grid) == 1:
            return "both"
        return {self.grid[0]: "lowest", self.grid[-1]: "highest"}.get(self.chosen)


def extension(grid: Sequence[Tried]) -> float | None:
    """The next rate of a grid whose best rate lies at its edge: one more step of the same ratio.

    Where no rate is stable the grid goes on below its lowest rate. None where the best one lies inside, or where the
    grid has one rate and so no step.
    """
    rates = [each.learning_rate for each in grid]
    if len(rates) < 2:
        return None
    best = _best(each for each in grid if each.stable)
    if best is None or best.learning_rate == rates[0]:
        return _rounded(rates[0] * (rates[0] / rates[1]))
    if best.learning_rate == rates[-1]:
        return _rounded(rates[-1] * (rates[-1] / rates[-2]))
    return None


def _best(grid: Iterable[Tried]) -> Tried | None:
    """The stable rate with the highest score, else the best that did not diverge; of equal ones the lowest."""
    there = [each for each in grid if each.score is not None and not each.diverged]
    stable = [each for each in there if each.stable]
    return max(stable or there, key=lambda each: (each.score, -each.learning_rate), default=None)


def _rounded(rate: float) -> float:
    """To twelve digits: a rate is part of a run's identity, and 0.001 is not to be 0.0010000000000000002."""
    return float(f"{rate:.12g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One learning rate over the seeds of a search.

    Attributes:
        score: Mean over the seeds of ``Trial.end``; None where a seed has no evaluation.
        standard_error: Its standard error: the larger of what sampling gives and what the seeds' spread gives, since
            the spread of two or three seeds alone is often too small by luck. None where ``score`` is.
        seeds: Seeds trained.
        diverged: Seeds whose gradient ceased to be finite.
        collapsed: Seeds that ended below the base model by more than noise.
    """

    learning_rate: float
    score: float | None
    standard_error: float | None
    seeds: int
    diverged: int
    collapsed: int

    @property
    def stable(self) -> bool:
        """Return whether every seed ended, and none below the base model."""
        return self.score is not None and not self.diverged and not self.collapsed


def tried(trials: Iterable[Trial], base: Score) -> tuple[Tried, ...]:
    """Join the cells of one search by their learning rates, lowest first.

    A seed has collapsed when its end s and the base model b differ by more than two standard errors,
    s + 2·√(e_s² + e_b²) < b. The base model's score is of responses that selected nothing.
    """
    by_rate: dict[float, list[Trial]] = {}
    for trial in trials:
        by_rate.setdefault(trial.learning_rate, []).append(trial)
    found = []
    for rate, own in sorted(by_rate.items()):
        ends = [end for trial in own if (end := trial.end()) is not None]
        joined = mean_over_seeds(ends) if len(ends) == len(own) else None
        found.append(
            Tried(
                learning_rate=rate,
                score=joined.score if joined else None,
                standard_error=joined.standard_error if joined else None,
                seeds=len(own),
                diverged=sum(trial.diverged for trial in own),
                collapsed=sum(below(end, base) for end in ends),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One cell of a search: a learning rate and a seed.

    Attributes:
        budget: Rollouts that the cell was to be trained on.
        evaluations: Evaluations after the first, by the rollouts spent before each; a cell that diverged may have
            none.
        diverged: Whether its gradient ceased to be finite.
    """

    learning_rate: float
    budget: int
    evaluations: Mapping[int, Score]
    diverged: bool = False

    def end(self) -> Score | None:
        """Mean of the evaluations after more than three quarters of the budget, or None where there is none at all.

        Where the cell has none in that quarter, as one that diverged may, its last evaluation counts. Each evaluation
        samples responses of its own, so that k of them have the standard error √(Σ e²)/k.
        """
        if not self.evaluations:
            return None
        late = [each for at, each in self.evaluations.items() if 4 * at > 3 * self.budget]
        return mean(late or [self.evaluations[max(self.evaluations)]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One score of a policy, with its standard error of sampling."""

    score: float
    standard_error: float


def below(one: Score, other: Score) -> bool:
    """Return whether a score is below another by more than noise."""
    return one.score + NOISE * sqrt(one.standard_error**2 + other.standard_error**2) < other.score


def sampled(score: float, *, questions: int, samples: int, metric: str) -> Score:
    """A score with its standard error as a proportion of responses, or of questions for a best or worst."""
    count = questions * samples if metric.startswith("avg_") else questions
    return Score(score=score, standard_error=proportion_error(score, count))


def mean(scores: Sequence[Score]) -> Score:
    """Mean of scores, each of which was sampled by itself."""
    error = sqrt(fsum(each.standard_error**2 for each in scores)) / len(scores)
    return Score(score=fsum(each.score for each in scores) / len(scores), standard_error=error)


def mean_over_seeds(ends: Sequence[Score]) -> Score:
    """Mean over seeds; its standard error is that of the seeds' spread, and no lower than that of sampling."""
    found, count = mean(ends), len(ends)
    if count == 1:
        return found
    spread = sqrt(fsum((end.score - found.score) ** 2 for end in ends) / (count - 1) / count)
    return Score(score=found.score, standard_error=max(found.standard_error, spread))
