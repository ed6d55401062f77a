"""A sweep as it is fitted: healthy curves, failures counted apart, notes, and the luck of the questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag

from ..data.curves import Array
from ..errors import FrontierError
from .evaluations import Run
from .health import Health, Kind, Thresholds, judge
from .noise import POINTS, binned
from .posterior import Posterior
from .runs import Runs, Setting, padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Counts of the runs of one cell.

    Attributes:
        failed: Runs that never took off or collapsed.
        runs: All that are counted: those that failed and those in the curves.
        reward: Mean reward that failed runs ended at; None where none failed.
    """

    failed: int
    runs: int
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A sweep ready to be fitted.

    Attributes:
        runs: The healthy curves.
        health: Of each run, in the order in which they were given.
        failures: Of every cell that was run, with a curve or without.
        notes: Sentences on what is not as a reader of the table would expect.
    """

    runs: Runs
    health: tuple[Health, ...]
    failures: Mapping[Setting, Failures]
    notes: tuple[str, ...]


def prepare(runs: Sequence[Run], *, unit: str = "rollouts", thresholds: Thresholds | None = None) -> Prepared:
    """Judge the runs of a sweep and make the arrays of those that are fitted.

    Args:
        thresholds: Where one kind of run ends and the next begins.

    Raises:
        FrontierError: There is no run, or none that is healthy.
    """
    if not runs:
        raise FrontierError("there is no run to fit: the table has no evaluation")
    health = judge(runs, unit=unit, thresholds=thresholds)
    fitted = [h.fitted and run.compute[-1] > 0 for run, h in zip(runs, health, strict=True)]
    kept = [_as_fitted(run, h) for run, h, f in zip(runs, health, fitted, strict=True) if f]
    if not kept:
        first = f"{health[0].name} {health[0].evidence}"
        raise FrontierError(f"none of the {len(runs)} runs can be fitted ({first}): a fit needs one that trained")
    failures = _failures(runs, health, fitted)
    return Prepared(runs=_arrays(kept), health=health, failures=failures, notes=_notes(runs, health, failures))


def _as_fitted(run: Run, health: Health) -> Run:
    """A healthy run with wide errors at its spikes, in at most 50 points."""
    if Kind.DENSE in health.kinds:
        return binned(run.without(health.spikes))
    return _widened(run, health.spikes) if health.spikes else run


def _widened(run: Run, where: Sequence[int]) -> Run:
    """The run with errors as wide at some evaluations as those are off the line through the others."""
    good = np.ones(len(run.compute), dtype=np.bool_)
    good[list(where)] = False
    expected = np.interp(run.compute, run.compute[good], run.reward[good])
    wide = np.where(good, run.error, np.maximum(run.error, np.abs(run.reward - expected)))
    trials = run.trials
    if trials is not None:
        # A share has at most the error of one response, so that of a spike is that or less.
        few = np.clip(expected * (1 - expected) / wide**2, 1.0, trials)
        trials = np.where(good, trials, few)
    return replace(run, error=wide, trials=trials)


def _arrays(runs: Sequence[Run]) -> Runs:
    cells = tuple(dict.fromkeys(run.cell for run in runs))
    bases = tuple(dict.fromkeys(run.base for run in runs))
    trials = [run.trials for run in runs if run.trials is not None]
    lengths = np.array([len(run.compute) for run in runs])
    return Runs(
        cells=cells,
        cell=np.array([cells.index(run.cell) for run in runs], dtype=np.int64),
        compute=padded([run.compute for run in runs], 1.0),
        reward=padded([run.reward for run in runs], 0.0),
        error=padded([run.error for run in runs], 1.0),
        seen=np.arange(lengths.max()) < lengths[:, None],
        trials=padded(trials, 1.0) if len(trials) == len(runs) else None,
        error_is_known=all(run.error_is_known for run in runs),
        bases=bases,
        base=np.array([bases.index(run.base) for run in runs], dtype=np.int64),
    )


def _failures(runs: Sequence[Run], health: Sequence[Health], fitted: Sequence[bool]) -> dict[Setting, Failures]:
    found = {}
    for cell in dict.fromkeys(run.cell for run in runs):
        own = [(h, f) for run, h, f in zip(runs, health, fitted, strict=True) if run.cell == cell]
        ended = [h.ended_at for h, _ in own if h.failed]
        reward = float(np.mean(ended)) if ended else None
        found[cell] = Failures(failed=len(ended), runs=len(ended) + sum(f for _, f in own), reward=reward)
    return found


def _notes(runs: Sequence[Run], health: Sequence[Health], failures: Mapping[Setting, Failures]) -> tuple[str, ...]:
    notes = []
    for run, own in zip(runs, health, strict=True):
        if own.fitted and run.compute[-1] == 0:
            notes.append(f"{run.name} has no evaluation after the start and is left out")
        elif Kind.RESCALED in own.kinds:
            notes.append(f"{run.name} is left out: it {own.findings[0].evidence}")
    for cell, counted in failures.items():
        name = next(run.name for run in runs if run.cell == cell).rpartition(", seed")[0]
        if counted.failed and counted.failed == counted.runs:
            times = "its one run" if counted.runs == 1 else f"all {counted.runs} of its runs"
            notes.append(f"{name} has no curve: {times} failed, at a reward of {counted.reward:.3f}")
        elif not counted.runs:
            notes.append(f"{name} has no run that could be fitted and is dropped")
    dense = sum(Kind.DENSE in h.kinds and h.fitted for h in health)
    if dense:
        several = "s" if dense > 1 else ""
        notes.append(f"{dense} run{several} of more than {POINTS} evaluations averaged to at most {POINTS} points")
    if len({run.trials is None for run in runs}) > 1:
        notes.append("some runs do not say how many responses an evaluation has: errors are those measured")
    return tuple(notes)


def luck_of(runs: Sequence[Run], fitted: Posterior, *, rng: np.random.Generator) -> Array | None:
    """Draws of what other questions would add to level and gain of each setting, shape ``(draws, 2, cells)``.

    All evaluations of a sweep ask the same questions, so their luck moves every curve, and two curves alike as far as
    both find the same questions easy. Each question contributes, per setting, to the level and to the gain; the
    covariance of these over questions, less what sampling responses adds to it, is that of the means.

    Returns:
        None where the answers to each question are not known, or where base models have their own.
    """
    cells = fitted.model.runs.cells
    used = [run for run in runs if run.cell in cells]
    if any(run.answers is None for run in used) or len(fitted.model.runs.bases) > 1:
        return None
    parts, sampled = [], []
    for k, cell in enumerate(cells):
        own = [run for run in used if run.cell == cell]
        compute, error = (np.concatenate([getattr(r, name) for r in own]) for name in ("compute", "error"))
        answers = np.concatenate([r.answers for r in own if r.answers is not None])
        share = fitted.share(compute)[:, k].mean(axis=0)
        basis = np.stack([np.ones_like(compute), share], axis=1)
        weighted = basis * error[:, None] ** -2
        solve = np.linalg.pinv(basis.T @ weighted, rcond=1e-9, hermitian=True) @ weighted.T
        parts.append(solve @ answers)
        # Of one question, whose mean over questions has the standard error.
        sampled.append((solve * error**2 * answers.shape[1]) @ solve.T)
    every = np.concatenate(parts)
    covariance = (np.cov(every) - block_diag(*sampled)) / every.shape[1]
    value, vector = np.linalg.eigh(covariance)
    drawn = rng.standard_normal((len(fitted.theta), len(value))) * np.sqrt(np.maximum(value, 0.0)) @ vector.T
    return np.asarray(drawn.reshape(len(drawn), len(cells), 2).transpose(0, 2, 1))
