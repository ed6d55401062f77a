"""Whether the curves fit their own runs, judged by the noise that evaluations show among themselves.

A curve that cannot follow its runs makes the noise wide and agrees with anything. So residuals are compared with how
evaluations scatter about their neighbours, which no curve enters: the last three together, the largest, and the longest
stretch on one side.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..data.curves import Array
from .noise import OWN_SCATTER, off_neighbours, position
from .posterior import Posterior
from .runs import Runs, Setting

DRAWS = 200
"""Draws whose mean is the fitted curve."""
AT_ONCE = 10**6
"""Evaluations times draws whose curves are in memory at one time."""
LAST = 3
"""Evaluations at the end of a run that are judged together."""
MEAN_OF_LAST = 0.78
"""Standard deviation of their mean, in those of one: evaluations with an autocorrelation of ½."""
FAR = 4.0
"""Standard deviations from which on the end of a run is not that of its curve: of 10,000 ends one lies there."""
LARGEST = 6.0
"""Standard deviations of the largest residual from which on it is no noise."""
STRETCH = 5
"""Evaluations in a row on one side of the curve from which on a stretch is judged."""
LEAST = 0.02
"""Reward below which a residual changes no decision, or this share of the gain of the run:"""
SHARE = 0.1
WIDER = 2.5
"""Noise about the curves over that among neighbours from which on the curves are not those of these runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A setting whose runs are not as its curve says.

    Attributes:
        evidence: What is off, as the end of a sentence that begins with the setting.
    """

    cell: Setting
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Where the runs of a setting were measured to end: the mean of their last evaluations.

    Attributes:
        interval: Its 95 % interval over seeds and evaluations.
        compute: Of the last evaluation.
    """

    cell: Setting
    reward: float
    interval: tuple[float, float]
    compute: float


def misfits(fit: Posterior) -> tuple[Misfit, ...]:
    """The settings whose own runs their curves miss, one of each."""
    runs, model = fit.model.runs, fit.model
    fitted, spread = _curves(fit)
    factor = scatter(runs)
    if float(np.median(model.excess(fit.theta))) > WIDER * factor:
        times = float(np.median(model.excess(fit.theta))) / factor
        evidence = f"evaluations lie {times:.0f} times as far from the curves as from each other"
        return tuple(Misfit(cell=cell, evidence=evidence) for cell in runs.cells)
    found: dict[Setting, Misfit] = {}
    for k, cell in enumerate(runs.cell):
        own = runs.seen[k]
        residual, error = (runs.reward[k] - fitted[k])[own], factor * runs.error[k, own]
        least = max(LEAST, SHARE * float(np.ptp(fitted[k, own])))
        evidence = _evidence(residual, error, float(spread[k, own][-1]), least)
        if evidence:
            found.setdefault(runs.cells[cell], Misfit(cell=runs.cells[cell], evidence=evidence))
    return tuple(found.values())


def _curves(fit: Posterior) -> tuple[Array, Array]:
    """Mean and standard deviation of the curves at the evaluations, a few draws at a time."""
    theta = fit.theta[:: max(1, len(fit.theta) // DRAWS)]
    first = fit.model.curves(theta[:1])[0]
    total, squares, some = np.zeros_like(first), np.zeros_like(first), max(1, AT_ONCE // first.size)
    for begin in range(0, len(theta), some):
        off = fit.model.curves(theta[begin : begin + some]) - first
        total += off.sum(axis=0)
        squares += (off**2).sum(axis=0)
    mean = total / len(theta)
    return first + mean, np.sqrt(np.maximum(squares / len(theta) - mean**2, 0.0))


def _evidence(residual: Array, error: Array, uncertain: float, least: float) -> str:
    """What is off in a run; empty where nothing is.

    Args:
        residual: Of each evaluation.
        error: Standard deviation of its noise.
        uncertain: Standard deviation of the curve at the last evaluation.
        least: Reward below which nothing is off.
    """
    end = float(residual[-LAST:].mean())
    noise = MEAN_OF_LAST * float(np.sqrt((error[-LAST:] ** 2).mean()))
    if abs(end) > least and abs(end) > FAR * np.hypot(noise, uncertain):
        return f"its last evaluations lie {_off(end)} its curve"
    worst = int(np.abs(residual / error).argmax())
    if abs(residual[worst]) > max(2 * least, LARGEST * error[worst]):
        return f"an evaluation lies {_off(float(residual[worst]))} its curve"
    start = 0
    for _, stretch in groupby(residual > 0):
        end_of = start + len(list(stretch))
        mean, sd = float(residual[start:end_of].mean()), float(error[start:end_of].mean())
        if end_of - start >= STRETCH and abs(mean) > max(least, FAR * MEAN_OF_LAST * sd):
            return f"{end_of - start} evaluations in a row lie {_off(mean)} its curve on average"
        start = end_of
    return ""


def _off(residual: float) -> str:
    return f"{abs(residual):.2f} {'above' if residual > 0 else 'below'}"


def scatter(runs: Runs) -> float:
    """Noise over the errors stated, from how evaluations differ from their neighbours; at least 1 where known."""
    units = []
    for k in range(len(runs.cell)):
        own = runs.seen[k]
        if own.sum() >= OWN_SCATTER:
            off, spread = off_neighbours(position(runs.compute[k, own]), runs.reward[k, own], runs.error[k, own])
            units.append(np.abs(off[:, 0]) / spread[:, 0])
    # The median of the absolute value of a standard normal number is 0.6745.
    usual = float(np.median(np.concatenate(units))) / 0.6745 if units else 1.0
    return max(usual, 1.0 if runs.error_is_known else 0.1)


def endings(fit: Posterior) -> tuple[Ending, ...]:
    """Where the runs of each setting were measured to end, the highest first."""
    runs = fit.model.runs
    factor = scatter(runs)
    assumed = fit.model.priors.seed_amplitude
    found = []
    for k, cell in enumerate(runs.cells):
        ends, errors, gains, last = [], [], [], 0.0
        for r in np.flatnonzero(runs.cell == k):
            own = runs.seen[r]
            ends.append(float(runs.reward[r, own][-LAST:].mean()))
            errors.append(factor * MEAN_OF_LAST * float(runs.error[r, own][-LAST:].mean()))
            gains.append(abs(ends[-1] - float(runs.reward[r, 0])))
            last = max(last, float(runs.last[r]))
        # Two seeds say little of how much seeds differ: what is assumed of them is the least.
        between = max(float(np.std(ends, ddof=1)) if len(ends) > 1 else 0.0, assumed * float(np.mean(gains)))
        error = float(np.hypot(between, np.mean(errors)) / np.sqrt(len(ends)))
        mean = float(np.mean(ends))
        found.append(Ending(cell=cell, reward=mean, interval=(mean - 1.96 * error, mean + 1.96 * error), compute=last))
    return tuple(sorted(found, key=lambda e: -e.reward))
