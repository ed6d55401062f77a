"""The search for a sweep's learning rates: cells at each rate tried, their scores, and the rate chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import fsum, sqrt
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.scoring.evaluation import proportion_error

from ..errors import ExperimentError
from ..figures import COLOURS, pyplot, save
from . import cell_folder
from .cell_folder import ONLY
from .cells import Cell, Design, Rates, rounded

NOISE = 2.0
"""A difference is more than noise if it exceeds this many standard errors."""


def find(design: Design, run: Callable[[Sequence[Cell]], None], base: Score | None) -> tuple[Pilot, list[Cell]]:
    """Find the learning rates of a problem set that declares none; return the pilots used for that, too.

    Args:
        base: The base model's score, from responses that selected nothing. None if it was not measured in this metric;
            then the cells' shared first evaluation is used.
    """
    settings, metric = design.sweep.search, design.preset.evaluation.metric
    assert settings is not None
    cells = design.trials()
    for left in range(settings.extensions, -1, -1):
        run(cells)
        known = base or first_score(cells, metric)
        trials: dict[tuple[int, int], list[Trial]] = {}
        for cell in cells:
            pair = (cell.run.rollouts_per_problem, cell.run.problems_per_batch)
            trials.setdefault(pair, []).append(_trial(cell, metric))
        grids = {pair: tried(trials[pair], known) for pair in sorted(trials)}
        steps = {pair: rate for pair, grid in grids.items() if (rate := extension(grid)) is not None} if left else {}
        more = [cell for pair, rate in steps.items() for cell in design.trials([rate], at=[pair])]
        if not more:
            break
        cells += more
    pilot = Pilot(
        rule=settings.rule,
        metric=metric,
        base=known,
        budget=settings.rollouts,
        searches=tuple(
            Search(rollouts_per_problem=n, problems_per_batch=size, grid=grid) for (n, size), grid in grids.items()
        ),
    )
    return pilot, cells


def chosen_lines(pilot: Pilot) -> Iterator[str]:
    """The learning rate found at each (n, B_p), with its score, one per line."""
    for found in pilot.searches:
        chosen = found.chosen
        edge = f", the {found.edge} rate tried" if found.edge in ("lowest", "highest") else ""
        yield (
            f"n = {found.rollouts_per_problem}, B_p = {found.problems_per_batch}: learning rate "
            f"{chosen.learning_rate:g}{edge} ({chosen.score or 0.0:.3f} ± {chosen.standard_error or 0.0:.3f})"
        )


def base_score(problem_set: str, metric: str) -> Score | None:
    """The base model's validation score, from responses that selected nothing; None for a metric that is not a mean."""
    if not metric.startswith("avg_"):
        return None
    found = cell_folder.base_score(ONLY, problem_set)
    return Score(score=float(found["fresh"]), standard_error=float(found["fresh_standard_error"]))


def first_score(cells: Sequence[Cell], metric: str) -> Score:
    """The base model's score in the first evaluations that cells share, averaged over their seeds."""
    first = [cell_folder.read_baseline(folder) for folder in sorted({cell_folder.baseline_of(cell) for cell in cells})]
    return mean(
        [
            sampled(start.metrics[metric], questions=start.questions, samples=start.samples, metric=metric)
            for start in first
        ]
    )


def _trial(cell: Cell, metric: str) -> Trial:
    found = cell_folder.outcome(cell)
    later = found.read("evals").filter(pl.col("step") > 0).select("rollouts", metric, "questions", "samples")
    return Trial(
        learning_rate=cell.learner.learning_rate,
        budget=cell.rollouts,
        evaluations={
            at: sampled(score, questions=questions, samples=samples, metric=metric)
            for at, score, questions, samples in later.iter_rows()
        },
        diverged=found.diverged,
    )


def rates_figure(pilot: Pilot, path: Path) -> None:
    """Draw the pilots' scores against their learning rates, one line per n (IsoCompute Playbook, Figure 4).

    Bars show one standard error, a filled dot the chosen rate, and a cross at the bottom a rate that diverged.
    """
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    base, several = pilot.base, len({each.problems_per_batch for each in pilot.searches}) > 1
    axes.axhline(base.score, color="#4a5568", linestyle=":", linewidth=1, label="base model")
    for index, found in enumerate(pilot.searches):
        size = f", B_p = {found.problems_per_batch}" if several else ""
        label = f"n = {found.rollouts_per_problem}{size}"
        _draw_search(axes, found, label, COLOURS[index % len(COLOURS)])
    axes.set(xlabel="learning rate", ylabel=pilot.metric.replace("_at_", "@"), xscale="log")
    rates = sorted({each.learning_rate for found in pilot.searches for each in found.grid})
    axes.set_xticks(rates, labels=[f"{rate:.3g}" for rate in rates])
    axes.minorticks_off()
    axes.legend(frameon=False)
    save(figure, path)


def _draw_search(axes: Any, found: Search, label: str, colour: str) -> None:
    scored = [each for each in found.grid if each.score is not None and not each.diverged]
    rates = [each.learning_rate for each in scored]
    errors = [each.standard_error for each in scored]
    axes.errorbar(
        rates,
        [each.score for each in scored],
        yerr=errors,
        color=colour,
        marker="o",
        markerfacecolor="white",
        capsize=2,
        linewidth=1.2,
        label=label,
    )
    axes.plot([found.chosen.learning_rate], [found.chosen.score], marker="o", color=colour, zorder=3)
    lost = [each.learning_rate for each in found.grid if each.diverged]
    axes.plot(lost, [0.02] * len(lost), "x", color=colour, transform=axes.get_xaxis_transform())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The learning rates of a problem set, and how they were found.

    Attributes:
        base: The base model's score, from responses that selected nothing.
    """

    rule: str
    metric: str
    base: Score
    budget: int
    searches: tuple[Search, ...]

    def rates(self) -> Rates:
        """The resulting learning rates."""
        found = {(s.rollouts_per_problem, s.problems_per_batch): s.chosen.learning_rate for s in self.searches}
        return Rates(rule=self.rule, found=found)

    def document(self) -> dict[str, Any]:
        """The content of ``pilot.json``."""
        names = ("learning_rate", "score", "standard_error", "stable")
        searches = [
            {**asdict(each), **{name: getattr(each.chosen, name) for name in names}, "edge": each.edge}
            for each in self.searches
        ]
        return {**asdict(self), "searches": searches}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The result of a search at one (n, B_p): every rate tried, lowest first, from ``tried``.

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
        """The rate with the highest score among those that neither diverged nor collapsed in any seed.

        If scores are equal, it is the lowest rate. If every rate collapsed, it is the best of them.
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
        """The end of the grid where the chosen rate lies, ``lowest`` or ``highest``; ``both``, or None if inside.

        A better rate may lie beyond it.
        """
        if len(self.grid) == 1:
            return "both"
        return {self.grid[0]: "lowest", self.grid[-1]: "highest"}.get(self.chosen)


def extension(grid: Sequence[Tried]) -> float | None:
    """The next rate for a grid whose best rate lies at its edge: one more step of the same ratio.

    If no rate is stable, the grid is extended below its lowest rate. None if the best rate lies inside, or if the grid
    has only one rate and so no step.
    """
    rates = [each.learning_rate for each in grid]
    if len(rates) < 2:
        return None
    best = _best(each for each in grid if each.stable)
    if best is None or best.learning_rate == rates[0]:
        return rounded(rates[0] * (rates[0] / rates[1]))
    if best.learning_rate == rates[-1]:
        return rounded(rates[-1] * (rates[-1] / rates[-2]))
    return None


def _best(grid: Iterable[Tried]) -> Tried | None:
    """The stable rate with the highest score, else the best that did not diverge; among equals, the lowest."""
    there = [each for each in grid if each.score is not None and not each.diverged]
    stable = [each for each in there if each.stable]
    return max(stable or there, key=lambda each: (each.score, -each.learning_rate), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One learning rate over the seeds of a search.

    Attributes:
        score: Mean of ``Trial.end`` over the seeds; None if a seed has no evaluation.
        standard_error: Its standard error: the larger of the sampling error and the one from the seeds' spread, since
            the spread of two or three seeds alone is often too small by chance. None if ``score`` is.
        diverged: Seeds whose gradient became non-finite.
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
        """Return whether every seed finished, and none below the base model."""
        return self.score is not None and not self.diverged and not self.collapsed


def tried(trials: Iterable[Trial], base: Score) -> tuple[Tried, ...]:
    """Group the cells of one search by learning rate, lowest first.

    A seed has collapsed if its end s is below the base model b by more than two standard errors, s + 2·√(e_s² + e_b²) <
    b. The base model's score is from responses that selected nothing.
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
        evaluations: Evaluations after the first, by the rollouts spent before each; empty for some cells that diverged.
    """

    learning_rate: float
    budget: int
    evaluations: Mapping[int, Score]
    diverged: bool = False

    def end(self) -> Score | None:
        """Mean of the evaluations in the last quarter of the budget, or None if there is no evaluation at all.

        If the cell has none in that quarter, as after divergence, its last evaluation counts. Each evaluation samples
        its own responses, so the mean of k of them has the standard error √(Σ e²)/k.
        """
        if not self.evaluations:
            return None
        late = [each for at, each in self.evaluations.items() if 4 * at > 3 * self.budget]
        return mean(late or [self.evaluations[max(self.evaluations)]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A policy's score, with its standard error from sampling."""

    score: float
    standard_error: float


def below(one: Score, other: Score) -> bool:
    """Return whether a score is below another by more than noise."""
    return one.score + NOISE * sqrt(one.standard_error**2 + other.standard_error**2) < other.score


def sampled(score: float, *, questions: int, samples: int, metric: str) -> Score:
    """A score with the standard error of a proportion of responses, or of questions for a best or worst."""
    count = questions * samples if metric.startswith("avg_") else questions
    return Score(score=score, standard_error=proportion_error(score, count))


def mean(scores: Sequence[Score]) -> Score:
    """Mean of independently sampled scores."""
    error = sqrt(fsum(each.standard_error**2 for each in scores)) / len(scores)
    return Score(score=fsum(each.score for each in scores) / len(scores), standard_error=error)


def mean_over_seeds(ends: Sequence[Score]) -> Score:
    """Mean over seeds, with the standard error from the seeds' spread, at least that of sampling."""
    found, count = mean(ends), len(ends)
    if count == 1:
        return found
    spread = sqrt(fsum((end.score - found.score) ** 2 for end in ends) / (count - 1) / count)
    return Score(score=found.score, standard_error=max(found.standard_error, spread))
