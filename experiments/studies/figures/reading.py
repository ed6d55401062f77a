"""From the tables of a figure to its numbers: paired differences with intervals, verdicts, and what can be resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import nan

import numpy as np
import polars as pl
from isocompute.frontier.data.curves import binomial_errors
from isocompute.frontier.fitting.point import fit_form
from numpy.typing import NDArray
from scipy import optimize, stats

from ..panel import whole
from ..panel.claims import signed
from ..panel.statistics import LEVEL, Estimate, Rule, Verdict, vertex
from ..panel.study import UNITS
from .cells import missing
from .figure import COMMON, Comparison, Figure, Side

Array = NDArray[np.float64]
Pair = tuple[str, str, int, int]
"""Problem set, base model (empty: the committed one) and its seed, seed."""
LAST = 2
"""Evaluations whose mean is a run's end."""
FEWEST = 6
"""Evaluations of a run whose end is forecast."""
POWER = 0.8
"""Share of studies that resolve the smallest effect that is called resolvable."""
DRAWS = 4000
SAMPLING = 0.013
"""Standard error of one evaluation of 300 problems with four responses each, at a score of 0.3 or 0.7."""
WORDS = {
    Verdict.SUPPORTED: "same direction",
    Verdict.UNDECIDED: "not resolved",
    Verdict.CONTRADICTED: "opposite",
}


def mean(octaves: Array, ends: Array) -> Array:
    """Of the ends."""
    return np.asarray(ends.mean(axis=1))


def slope(octaves: Array, ends: Array) -> Array:
    """Of a line through the ends, by octave."""
    return np.asarray(np.polyfit(octaves, ends.T, 1)[0])


def spread(octaves: Array, ends: Array) -> Array:
    """The largest mean end less the smallest, over the values of the axis."""
    return np.asarray(np.ptp([ends[:, octaves == at].mean(axis=1) for at in np.unique(octaves)], axis=0))


def top(octaves: Array, ends: Array) -> Array:
    """The vertex of a parabola through the ends (octaves), within the values there are."""
    return vertex(octaves, ends, (float(octaves.min()), float(octaves.max())))


MEASURES: Mapping[str, Callable[[Array, Array], Array]] = {
    "end": mean,
    "area": mean,
    "slope": slope,
    "spread": spread,
    "top": top,
    "forecast": mean,
    "spread_of_runs": lambda octaves, ends: np.asarray(ends.std(axis=1, ddof=1)),
}
"""From log2 of what a side is over, shape ``(runs,)``, and numbers of each run, ``(draws, runs)``, to numbers of the
side, ``(draws,)``. ``area``, the mean of all evaluations, takes the place of the end; ``forecast``, by how much a
sigmoid through the first half of C misses it."""


def frame(figure: Figure, done: pl.DataFrame) -> pl.DataFrame:
    """A row for each evaluation of its cells that are done, with what the cells are."""
    plain = [
        {
            "definition": cell.definition,
            "arm": cell.arm,
            "set": cell.unit.problem_set,
            "base": cell.how.base or "",
            "base_seed": cell.unit.base_seed,
            "seed": cell.seed,
            "rollouts_per_problem": cell.rollouts_per_problem,
            "problems_per_batch": cell.problems_per_batch,
            "rate_factor": cell.rate_factor,
            "budget": cell.rollouts,
        }
        for cell in figure.cells
    ]
    return pl.DataFrame(plain).join(done, on="definition", maintain_order="left")


def of_run(measure: str, curve: pl.DataFrame, side: Side) -> float:
    """The number of one run: its end, unless the measure takes another; NaN of too few evaluations.

    Args:
        curve: Its evaluations.
    """
    own = curve.sort("rollouts").filter(pl.col("rollouts") <= side.upto * pl.col("budget"))
    if side.of:
        return float(own[side.metric].to_numpy().mean())
    after = own.filter(pl.col("rollouts") > 0)[side.metric].to_numpy()
    if len(after) < (FEWEST if measure == "forecast" else 1):
        return nan
    if measure == "area":
        return float(after.mean())
    end = float(after[-LAST:].mean())
    if measure != "forecast":
        return end
    compute, reward = (own[name].to_numpy().astype(np.float64) for name in ("rollouts", side.metric))
    half = (compute > 0) & (compute <= compute[-1] / 2)
    errors = binomial_errors(reward, (own["questions"] * own["samples"]).to_numpy().astype(float))
    ahead = fit_form("hill", compute[half], reward[half], errors[half], float(reward[0]))
    return abs(float(ahead(float(compute[-1]))) - end)


def of_side(measure: str, rows: pl.DataFrame, side: Side) -> dict[Pair, float]:
    """The number of each pair on one side, but for those with a run that was hardly evaluated."""
    chosen = rows.filter(pl.col("problem_set") == side.of, *(pl.col(name) == of for name, of in side.asked.items()))
    # The spread of runs is over seeds, so that a pair is a base model.
    keys = ["set", "base", "base_seed", *([] if measure == "spread_of_runs" else ["seed"])]
    found = {}
    for key, own in chosen.group_by(keys, maintain_order=True):
        curves = [(curve[side.over][0], curve) for _, curve in own.group_by("definition", maintain_order=True)]
        octaves = np.log2([at for at, _ in curves])
        numbers = np.array([of_run(measure, curve, side) for _, curve in curves])
        if not np.isfinite(numbers).all():
            continue
        name, base, base_seed, *seed = map(str, key)
        found[name, base, int(base_seed), int(seed[0]) if seed else 0] = float(
            MEASURES[measure](octaves, numbers[None])[0]
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came out of a comparison.

    Attributes:
        bases: Base models among the pairs.
    """

    estimate: Estimate
    bases: int
    word: str


def paired(values: Sequence[float]) -> Estimate:
    """The mean of differences of pairs, with Student's interval over these.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} pairs have no mean with an interval; two or more do")
    numbers, count = np.array(values, dtype=np.float64), len(values)
    error = float(numbers.std(ddof=1) / np.sqrt(count))
    return Estimate(value=float(numbers.mean()), error=error, freedom=count - 1, units=count)


def compared(one: Comparison, rows: pl.DataFrame) -> Found | None:
    """What came out, of the pairs of which both sides are there; None of fewer than two."""
    if one.sets:
        rows = rows.filter(pl.col("set").is_in(one.sets))
    numbers = of_side(one.measure, rows, one.of)
    if one.less:
        less = of_side(one.measure, rows, one.less)
        numbers = {pair: value - less[pair] for pair, value in numbers.items() if pair in less}
    if len(numbers) < 2:
        return None
    estimate = paired(list(numbers.values()))
    return Found(estimate=estimate, bases=len({pair[1:3] for pair in numbers}), word=word_of(one, estimate))


def word_of(one: Comparison, estimate: Estimate) -> str:
    """*Same direction* as the paper, *not resolved*, or *opposite*: by whether the interval holds 0.

    Where the paper finds nothing, the interval is to lie within ``least``.
    """
    least = one.least if one.paper == "equal" else 0.0
    return WORDS[Rule(claimed=one.paper, least=least).of(estimate)[0]]


def came_out(figure: Figure, done: pl.DataFrame) -> list[tuple[Comparison, Found]]:
    """What came out of each comparison; it is read once, of all cells."""
    if figure.page_of or missing(figure, done):
        return []
    rows = frame(figure, done)
    return [(one, found) for one in figure.compare if (found := compared(one, rows))]


def paragraph(figure: Figure, done: pl.DataFrame, came: Sequence[tuple[Comparison, Found]]) -> str:
    """What the paper shows, what came out here with its interval, and what was chosen on the same data."""
    said = [f"The paper: {figure.shows}."]
    if figure.page_of:
        return said[0]
    if came:
        said.append(f"Here: {'; '.join(f'{one.says}: {shown(one, found)}' for one, found in came)}.")
    lost = frame(figure, done).filter("diverged")["definition"].n_unique()
    if lost:
        said.append(f"Runs that diverged, which count with what they had: {lost}.")
    kind = "It was planned to decide" if figure.decides else "An illustration"
    said.append(f"{kind}. Chosen on the same data: {figure.chosen}.")
    return " ".join(said)


def shown(one: Comparison, found: Found) -> str:
    """A number with its interval, pairs and verdict."""
    own = found.estimate
    low, high = own.interval
    digits = 1 if one.measure == "top" else 3
    numbers = [signed(value, digits) for value in (own.value, low, high)]
    return f"{numbers[0]} ({numbers[1]} to {numbers[2]}; {own.units} pairs, {found.bases} base models), *{found.word}*"


@cache
def run_deviation(problem_set: str, rollouts: int) -> float:
    """The deviation of one run's end that two runs of a pair do not share, from the panel's committed tables.

    Over base models: differences between neighbouring n (4 to 32) at half the √B rule's rate, which the rates of
    common.yaml are; their deviation is √2 times this one.
    """
    ends = []
    for unit in UNITS:
        if unit.problem_set == problem_set:
            upto = whole.read(unit).trunks.filter(pl.col("rollouts") <= rollouts, pl.col("factor") == 0.5)
            own = upto.sort("rollouts").group_by("rollouts_per_problem").agg(pl.col("avg_at_4").tail(LAST).mean())
            ends.append(own.filter(pl.col("rollouts_per_problem") >= 4).sort("rollouts_per_problem")["avg_at_4"])
    apart = np.diff(np.stack([each.to_numpy() for each in ends]), axis=1)
    return float(np.sqrt(apart.var(axis=0, ddof=1).mean() / 2))


def resolution(figure: Figure, one: Comparison) -> tuple[int, float, float]:
    """Pairs of a comparison, the deviation of its number between them, and the smallest effect that it resolves.

    That is the one whose 95 % interval excludes 0 in four studies of five. Deviations are those of the panel's runs,
    taken through the measure by simulation.
    """
    rng, variances, pairs = np.random.default_rng(0), [], 0
    for name in one.sets or figure.sets:
        cells = [cell for cell in figure.cells if cell.unit.problem_set == name]
        drawn = np.zeros(DRAWS)
        for sign, side in ((1, one.of), (-1, one.less)):
            if side is None:
                continue
            own = [cell for cell in cells if all(getattr(cell, name) == of for name, of in side.asked.items())]
            first = [c for c in own if (c.unit, c.seed) == (own[0].unit, own[0].seed)]
            # Scores on the other set vary as those of runs that are trained on it; one evaluation is no mean of two.
            asked = side.of if side.of in COMMON.rates else name
            deviation = np.hypot(run_deviation(asked, first[0].rollouts), SAMPLING if side.of else 0.0)
            noise = deviation * rng.standard_normal((DRAWS, len(first)))
            octaves = np.log2([getattr(cell, side.over) for cell in first])
            drawn += sign * MEASURES[one.measure](octaves, noise)
        variances.append(drawn.var())
        pairs += len({(cell.unit, cell.seed) for cell in cells})
    of_pairs = float(np.sqrt(np.mean(variances)))
    return pairs, of_pairs, resolvable(pairs) * of_pairs


@cache
def resolvable(pairs: int) -> float:
    """The smallest mean, in deviations, whose t interval over pairs excludes 0 with probability ``POWER``."""
    freedom = pairs - 1
    bound = stats.t.ppf(0.5 + LEVEL / 2, freedom)

    def lacking(effect: float) -> float:
        return float(stats.nct.sf(bound, freedom, effect * np.sqrt(pairs))) - POWER

    return float(optimize.brentq(lacking, 0.01, 10.0))


def resolutions(figure: Figure) -> Iterator[tuple[str, int, float, float]]:
    """What each comparison of a figure can resolve: its words, pairs, deviation, smallest effect."""
    for one in figure.compare:
        yield one.says, *resolution(figure, one)
