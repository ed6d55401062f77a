"""The health of each run of a sweep, judged before the fit: what is unusual about it, and the evidence.

Every judgement is relative to the noise of evaluations, and to the gain of the sweep's other runs by the same compute.
If no run gained, none failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.linalg import block_diag

from ..data.curves import Array
from ..data.reading import short
from ..errors import FrontierError
from .posterior import Posterior
from .runs import POINTS, SPIKE, Run, Runs, Setting, binned, excess
from .siblings import SIGNIFICANT, Level, Siblings, View, other_scale, view


class Kind(StrEnum):
    """A kind of run; a run may be of several kinds."""

    TRAINED = "trained"
    NEVER_TOOK_OFF = "never took off"
    COLLAPSED = "collapsed"
    ENDED_EARLY = "ended early"
    SPIKY = "spiky"
    MISSING_EVALUATIONS = "missing evaluations"
    RESCALED = "rescaled"
    DENSE = "dense"


FAILED = (Kind.NEVER_TOOK_OFF, Kind.COLLAPSED)


UNMOVED = 0.1
"""A run has not taken off below this share of the others' gain, however significant its own gain is."""
HALF = 0.5
"""A collapsed run has lost this share of its gain at its end, or of the reward before training if there was no gain. A
run that overtrains loses less."""
FALLEN = 2
"""Evaluations needed to see a collapse; a single low one at the end may be a bad evaluation."""
EARLY = 0.9
"""A run ended early before this share of the planned compute: budgets are whole batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One kind that a run is of, with the evidence in numbers."""

    kind: Kind
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The judgement on a run.

    Attributes:
        findings: One or more.
        ended_at: Mean reward of its last evaluations.
        spikes: Indices of evaluations whose error is widened.
    """

    name: str
    run_id: str | None
    findings: tuple[Finding, ...]
    ended_at: float
    spikes: tuple[int, ...] = ()

    @property
    def kinds(self) -> frozenset[Kind]:
        """All kinds that the run is of."""
        return frozenset(f.kind for f in self.findings)

    @property
    def failed(self) -> bool:
        """Return whether it counts as a failure of its setting."""
        return any(kind in FAILED for kind in self.kinds)

    @property
    def fitted(self) -> bool:
        """Return whether its evaluations are in the curves."""
        return not self.failed and Kind.RESCALED not in self.kinds

    @property
    def evidence(self) -> str:
        """The evidence of all findings."""
        return "; ".join(f.evidence for f in self.findings)


def judge(runs: Sequence[Run], *, unit: str = "rollouts") -> tuple[Health, ...]:
    """Judge every run of a sweep, in order."""
    found: dict[int, Health] = {}
    # Runs of another base model start and gain differently.
    for base in dict.fromkeys(run.base for run in runs):
        own = [k for k, run in enumerate(runs) if run.base == base]
        found.update(zip(own, _judge_together([runs[k] for k in own], unit), strict=True))
    return tuple(found[k] for k in range(len(runs)))


def _judge_together(runs: Sequence[Run], unit: str) -> list[Health]:
    """Judge all runs of one base model."""
    factor = excess(runs)
    views = [view(run, factor) for run in runs]
    every = Siblings(views)
    possible = Siblings([v for v in views if v.run.reward.min() >= 0 and v.run.reward.max() <= 1])
    scales = [other_scale(v, every, possible) for v in views]
    others = Siblings([v for v, scale in zip(views, scales, strict=True) if scale is None])
    found = []
    for own, scale in zip(views, scales, strict=True):
        if scale is None:
            outcome = _outcome(own, others.start_of(own), others.usual_gain(own), unit)
            odd = (0, *own.spikes) if others.bad_start(own, SPIKE) else own.spikes
        else:
            outcome, odd = Finding(kind=Kind.RESCALED, evidence=scale), ()
        found.append(_health(own, others, outcome, odd, unit))
    return found


def _outcome(own: View, start: Level, usual: float | None, unit: str) -> Finding:
    """Judge whether the run trained, never took off or collapsed."""
    top, end, last = own.best(own.run.last), own.end, _at(own.run.last, unit)
    gain = top.reward - start.reward
    rose = top.above(start) and gain > UNMOVED * (usual or 0.0)
    low = own.after_last(top.reward - HALF * gain if rose else HALF * start.reward)
    low &= own.compute > (top.compute if rose else 0.0)
    if low.sum() >= FALLEN and (top if rose else start).above(own.mean(low)):
        peak = int(np.argmax(np.where(low | (own.compute > top.compute), -np.inf, own.reward)))
        before = f"rose from {start.reward:.3f} to {own.reward[peak]:.3f} at {_at(own.compute[peak], unit)}, then"
        if not rose:
            before = f"never rose above its start of {start.reward:.3f} and"
        evidence = f"{before} fell to {own.mean(low).reward:.3f} by {last}"
        return Finding(kind=Kind.COLLAPSED, evidence=evidence)
    said = f"from {start.reward:.3f} to {own.reward[-1]:.3f} by {last}"
    # A run may have gained before a late first evaluation, or behind large noise.
    most = end.reward - start.reward + SIGNIFICANT / 2 * float(np.hypot(end.error, start.error))
    if not rose and usual is not None and most < HALF * usual:
        evidence = f"went {said}, where others had gained {usual:.3f}"
        return Finding(kind=Kind.NEVER_TOOK_OFF, evidence=evidence)
    return Finding(kind=Kind.TRAINED, evidence=f"{'rose' if rose else 'went'} {said}")


def _health(own: View, others: Siblings, outcome: Finding, odd: tuple[int, ...], unit: str) -> Health:
    """All findings on a run, the outcome first."""
    run, planned = own.run, others.planned_end(own)
    further = [_end(run, planned, unit), _spiky(run, odd, unit), _missing(others.missing_points(own), unit)]
    if len(run.compute) > POINTS:
        further.append(Finding(kind=Kind.DENSE, evidence=f"{len(run.compute):,} evaluations"))
    longest = others.longest(own)
    if planned is None and run.last < EARLY * longest:
        outcome = replace(outcome, evidence=f"{outcome.evidence}, and ended there; another reached {short(longest)}")
    findings = (outcome, *(f for f in further if f is not None))
    return Health(name=run.name, run_id=run.run_id, findings=findings, ended_at=own.end.reward, spikes=odd)


def _end(run: Run, planned: tuple[float, int] | None, unit: str) -> Finding | None:
    if planned is None or run.last >= EARLY * planned[0]:
        return None
    said = f"ended at {short(run.last)} of the {_at(planned[0], unit)} that {planned[1]} others reached"
    return Finding(kind=Kind.ENDED_EARLY, evidence=said)


def _spiky(run: Run, where: Sequence[int], unit: str) -> Finding | None:
    if not where:
        return None
    first, last = where[0], len(run.reward) - 1
    said = f"{run.reward[first]:.3f} at {_at(run.compute[first], unit)}, alone "
    said += "at the end after " if first == last else "beside "
    said += " and ".join(f"{run.reward[i]:.3f}" for i in (first - 1, first + 1) if 0 <= i <= last and i not in where)
    more = f", and {len(where) - 1} more far from their neighbours" if len(where) > 1 else ""
    return Finding(kind=Kind.SPIKY, evidence=said + more)


def _missing(absent: Array, unit: str) -> Finding | None:
    if not len(absent):
        return None
    said = f"lacks the evaluation at {_at(float(absent[0]), unit)}"
    said += f" and {len(absent) - 1} more that others have" if len(absent) > 1 else " that others have"
    return Finding(kind=Kind.MISSING_EVALUATIONS, evidence=said)


def _at(compute: float, unit: str) -> str:
    return f"{short(compute)} {unit.replace('_', ' ')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Counts of one cell's runs.

    Attributes:
        failed: Runs that never took off or collapsed.
        runs: All counted runs: those that failed and those in the curves.
        reward: Mean reward at which failed runs ended; None if none failed.
    """

    failed: int
    runs: int
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A sweep ready to fit.

    Attributes:
        runs: The healthy curves.
        health: Health of each run, in the given order.
        failures: For every cell that was run, with a curve or without.
        notes: Sentences on what a reader of the table would not expect.
    """

    runs: Runs
    health: tuple[Health, ...]
    failures: Mapping[Setting, Failures]
    notes: tuple[str, ...]


def prepare(runs: Sequence[Run], *, unit: str = "rollouts") -> Prepared:
    """Judge the runs of a sweep, and make the arrays of those to fit.

    Raises:
        FrontierError: There is no run, or no healthy run.
    """
    if not runs:
        raise FrontierError("there is no run to fit: the table has no evaluation")
    health = judge(runs, unit=unit)
    fitted = [h.fitted and run.last > 0 for run, h in zip(runs, health, strict=True)]
    kept = [_as_fitted(run, h) for run, h, f in zip(runs, health, fitted, strict=True) if f]
    if not kept:
        first = f"{health[0].name} {health[0].evidence}"
        raise FrontierError(f"none of the {len(runs)} runs can be fitted ({first}): a fit needs one that trained")
    failures = _failures(runs, health, fitted)
    return Prepared(runs=Runs.of(kept), health=health, failures=failures, notes=_notes(runs, health, failures))


def _as_fitted(run: Run, health: Health) -> Run:
    """A healthy run with wide errors at its spikes, reduced to at most 50 points."""
    if Kind.DENSE in health.kinds:
        return binned(run.without(health.spikes))
    return _widened(run, health.spikes) if health.spikes else run


def _widened(run: Run, where: Sequence[int]) -> Run:
    """The run with errors at some evaluations widened to their distance from the line through the others."""
    good = np.ones(len(run.compute), dtype=np.bool_)
    good[list(where)] = False
    expected = np.interp(run.compute, run.compute[good], run.reward[good])
    wide = np.where(good, run.error, np.maximum(run.error, np.abs(run.reward - expected)))
    trials = run.trials
    if trials is not None:
        # A share's error is at most that of one response, so a spike's error is limited to that.
        few = np.clip(expected * (1 - expected) / wide**2, 1.0, trials)
        trials = np.where(good, trials, few)
    return replace(run, error=wide, trials=trials)


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
    """Draws of the change in each setting's level and gain with other questions, shape ``(draws, 2, cells)``.

    All evaluations of a sweep ask the same questions, so the choice of questions moves every curve. It moves two curves
    alike to the extent that both find the same questions easy. Each question contributes, per setting, to the level and
    to the gain. The covariance of these contributions over questions, less the part from sampling responses, gives that
    of the means.

    Returns:
        None if the answers to each question are unknown, or if base models have their own.
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
        # The variance for one question; the mean over questions has the standard error.
        sampled.append((solve * error**2 * answers.shape[1]) @ solve.T)
    every = np.concatenate(parts)
    covariance = (np.cov(every) - block_diag(*sampled)) / every.shape[1]
    value, vector = np.linalg.eigh(covariance)
    drawn = rng.standard_normal((len(fitted.theta), len(value))) * np.sqrt(np.maximum(value, 0.0)) @ vector.T
    return np.asarray(drawn.reshape(len(drawn), len(cells), 2).transpose(0, 2, 1))
