"""The health of each run of a sweep, judged before the fit: what is unusual about it, on what evidence, what follows.

Every judgement is relative: to the noise of evaluations, and to the gain of the sweep's other runs by the same compute.
Where no run gained, none failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression
from scipy.stats import norm

from ..data.curves import Array, Mask
from ..data.reading import short
from ..errors import FrontierError
from .evaluations import Run


class Kind(StrEnum):
    """A kind of run; a run may be of several."""

    TRAINED = "trained"
    NEVER_TOOK_OFF = "never took off"
    COLLAPSED = "collapsed"
    ENDED_EARLY = "ended early"
    SPIKY = "spiky"
    MISSING_EVALUATIONS = "missing evaluations"
    RESCALED = "rescaled"
    DENSE = "dense"


FAILED = (Kind.NEVER_TOOK_OFF, Kind.COLLAPSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits between the kinds.

    Attributes:
        significant: Standard errors by which a reward must have changed. A run is judged by the highest of its moving
            means, of which the noise alone lifts the highest of twenty by two to three.
        share: Share of the others' gain below which a run has not taken off, however sure its gain is.
        lost: Share of its gain, or of the reward before training where there was no gain, that a run has lost to its
            end when it collapsed. A run that overtrains loses less.
        fallen: Evaluations that a collapse is seen in; a single low one at the end may be a bad evaluation.
        early: Share of the planned compute before which an end is early: budgets are whole batches.
    """

    significant: float = 4.0
    share: float = 0.1
    lost: float = 0.5
    fallen: int = 2
    early: float = 0.9

    def __post_init__(self) -> None:
        shares = {"share": self.share, "lost": self.lost, "early": self.early}
        wrong = [f"{name} is {value}" for name, value in shares.items() if not 0 < value < 1]
        if wrong or self.significant <= 0 or self.fallen < 1:
            said = wrong[0] if wrong else f"significant is {self.significant} and fallen {self.fallen}"
            raise FrontierError(f"{said}: shares lie between 0 and 1, the others above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A kind of a run, the evidence in numbers, and what was done about it."""

    kind: Kind
    evidence: str
    handling: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The judgement of a run.

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
        """All that it is."""
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


def judge(runs: Sequence[Run], *, unit: str = "rollouts", thresholds: Thresholds | None = None) -> tuple[Health, ...]:
    """Judge every run of a sweep, in their order."""
    limits = thresholds or Thresholds()
    found: dict[int, Health] = {}
    # Runs of another base model start elsewhere and gain otherwise.
    for base in dict.fromkeys(run.base for run in runs):
        own = [k for k, run in enumerate(runs) if run.base == base]
        found.update(zip(own, _judge_together([runs[k] for k in own], unit, limits), strict=True))
    return tuple(found[k] for k in range(len(runs)))


def _judge_together(runs: Sequence[Run], unit: str, limits: Thresholds) -> list[Health]:
    """Judge all runs of one base model."""
    factor = excess(runs)
    views = [view(run, factor) for run in runs]
    scales = [other_scale(v, [o for o in views if o is not v]) for v in views]
    sound = [v for v, scale in zip(views, scales, strict=True) if scale is None]
    starts = {id(v): start_of(v, [o for o in sound if o is not v], limits.significant) for v in sound}
    found = []
    for own, scale in zip(views, scales, strict=True):
        others = [o for o in sound if o is not own]
        outcome = Finding(kind=Kind.RESCALED, evidence=scale or "", handling="left out")
        if scale is None:
            usual = usual_gain(own, others, [starts[id(o)] for o in others], times=limits.significant)
            outcome = _outcome(own, starts[id(own)], usual, unit, limits)
        odd = own.spikes if scale is None else ()
        if scale is None and bad_start(own, others, SPIKE):
            odd = (0, *odd)
        found.append(_health(own, [o.run for o in others], outcome, odd, unit, limits))
    return found


def _outcome(own: View, start: Level, usual: float | None, unit: str, limits: Thresholds) -> Finding:
    """Judge whether the run trained, never took off or collapsed."""
    top, end, last = own.best(own.run.last), own.end, _at(own.run.last, unit)
    rose = top.above(start, limits.significant) and top.reward - start.reward > limits.share * (usual or 0.0)
    gain = top.reward - start.reward
    low = own.after_last(top.reward - limits.lost * gain if rose else limits.lost * start.reward)
    low &= own.compute > (top.compute if rose else 0.0)
    if low.sum() >= limits.fallen and (top if rose else start).above(own.mean(low), limits.significant):
        peak = int(np.argmax(np.where(low | (own.compute > top.compute), -np.inf, own.reward)))
        before = f"rose from {start.reward:.3f} to {own.reward[peak]:.3f} at {_at(own.compute[peak], unit)}, then"
        if not rose:
            before = f"never rose above its start of {start.reward:.3f} and"
        return _failed(Kind.COLLAPSED, f"{before} fell to {own.mean(low).reward:.3f} by {last}")
    said = f"from {start.reward:.3f} to {own.reward[-1]:.3f} by {last}"
    # A run whose first evaluation comes late may have made its gain before, and one of great noise may have gained.
    most = end.reward - start.reward + limits.significant / 2 * float(np.hypot(end.error, start.error))
    if not rose and usual is not None and most < limits.lost * usual:
        return _failed(Kind.NEVER_TOOK_OFF, f"went {said}, where others had gained {usual:.3f}")
    count = len(own.run.compute)
    handling = f"its {count} evaluations are in the curves" if count > 1 else "its evaluation is in the curves"
    return Finding(kind=Kind.TRAINED, evidence=f"{'rose' if rose else 'went'} {said}", handling=handling)


def _failed(kind: Kind, evidence: str) -> Finding:
    return Finding(kind=kind, evidence=evidence, handling="left out of the curves and counted as a failure")


def _health(
    own: View, others: Sequence[Run], outcome: Finding, odd: tuple[int, ...], unit: str, limits: Thresholds
) -> Health:
    """All findings of a run, the outcome first."""
    run, used = own.run, outcome.kind is Kind.TRAINED
    further = [_end(run, others, unit, limits, used), _spiky(run, odd, unit, used), _missing(run, others, unit)]
    if len(run.compute) > POINTS:
        handling = f"averaged to {len(own.compute)} points" if used else ""
        further.append(Finding(kind=Kind.DENSE, evidence=f"{len(run.compute):,} evaluations", handling=handling))
    longest = max((o.last for o in others), default=run.last)
    if planned_end(run, others) is None and run.last < limits.early * longest:
        outcome = replace(outcome, evidence=f"{outcome.evidence}, and ended there; another reached {short(longest)}")
    findings = (outcome, *(f for f in further if f is not None))
    return Health(name=run.name, run_id=run.run_id, findings=findings, ended_at=own.end.reward, spikes=odd)


def _end(run: Run, others: Sequence[Run], unit: str, limits: Thresholds, used: bool) -> Finding | None:
    found = planned_end(run, others)
    if found is None or run.last >= limits.early * found[0]:
        return None
    said = f"ended at {short(run.last)} of the {_at(found[0], unit)} that {found[1]} others reached"
    return Finding(kind=Kind.ENDED_EARLY, evidence=said, handling="nothing is assumed after its end" if used else "")


def _spiky(run: Run, where: Sequence[int], unit: str, used: bool) -> Finding | None:
    if not where:
        return None
    first, last = where[0], len(run.reward) - 1
    said = f"{run.reward[first]:.3f} at {_at(run.compute[first], unit)}, alone "
    said += "at the end after " if first == last else "beside "
    said += " and ".join(f"{run.reward[i]:.3f}" for i in (first - 1, first + 1) if 0 <= i <= last and i not in where)
    more = f", and {len(where) - 1} more far from their neighbours" if len(where) > 1 else ""
    handling = "such evaluations count as far less sure" if used else ""
    return Finding(kind=Kind.SPIKY, evidence=said + more, handling=handling)


def _missing(run: Run, others: Sequence[Run], unit: str) -> Finding | None:
    absent = missing_points(run, others)
    if not len(absent):
        return None
    said = f"lacks the evaluation at {_at(float(absent[0]), unit)}"
    said += f" and {len(absent) - 1} more that others have" if len(absent) > 1 else " that others have"
    return Finding(kind=Kind.MISSING_EVALUATIONS, evidence=said, handling="nothing is filled in")


def _at(compute: float, unit: str) -> str:
    return f"{short(compute)} {unit.replace('_', ' ')}"


SAME_POINT = 0.02
"""Share of compute within which two evaluations are at one point of a grid."""
FEW = 8
"""Points up to which moving means are of two, not three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A mean reward.

    Attributes:
        error: Its standard error.
        compute: Of the last evaluation in it.
    """

    reward: float
    error: float
    compute: float = 0.0

    def above(self, other: Level, times: float) -> bool:
        """Return whether it is higher than another by so many standard errors."""
        return self.reward - other.reward > times * float(np.hypot(self.error, other.error))


@dataclass(frozen=True, kw_only=True)
class View:
    """A run as it is judged: without its spikes, in few points, with the noise that its evaluations really have.

    Attributes:
        spikes: Indices of its spikes.
        compute: Of the points, shape ``(points,)``.
        error: Their standard errors, noise beyond sampling included.
    """

    run: Run
    spikes: tuple[int, ...]
    compute: Array
    reward: Array
    error: Array

    @property
    def first(self) -> Level:
        """Its first evaluation."""
        return Level(reward=float(self.reward[0]), error=float(self.error[0]), compute=float(self.compute[0]))

    @property
    def end(self) -> Level:
        """The reward that it ended at, over its last points."""
        return self._means[-1] if self._means else self.first

    def best(self, until: float) -> Level:
        """Its highest moving mean after the start, up to some compute."""
        reached = [m for m in self._means if m.compute <= until * (1 + SAME_POINT)]
        return max(reached, key=lambda m: m.reward, default=self.first)

    def mean(self, chosen: Mask) -> Level:
        """The mean of some of its points, one or more."""
        error = float(np.sqrt((self.error[chosen] ** 2).sum()) / chosen.sum())
        return Level(reward=float(self.reward[chosen].mean()), error=error, compute=float(self.compute[chosen][-1]))

    def after_last(self, level: float) -> Mask:
        """Points after the last one that reached a reward."""
        reached = np.flatnonzero(self.reward >= level)
        return np.arange(len(self.reward)) > (reached[-1] if len(reached) else -1)

    @cached_property
    def _means(self) -> list[Level]:
        after = np.flatnonzero(self.compute > self.compute[0])
        width = min(3 if len(self.compute) > FEW else 2, len(after))
        last = np.arange(len(self.compute))
        return [self.mean((last > i - width) & (last <= i)) for i in after[max(width - 1, 0) :]]


def view(run: Run, factor: float) -> View:
    """Make the view of a run.

    Args:
        factor: Noise of the sweep's evaluations over the errors stated.
    """
    bad = tuple(np.flatnonzero(spikes(run, factor)).tolist())
    kept = binned(run.without(bad))
    error = expected_error(kept)
    # Before training there is nothing to be smoothed with.
    error[:1] = kept.error_at(kept.reward)[:1]
    return View(run=run, spikes=bad, compute=kept.compute, reward=kept.reward, error=factor * error)


SHARED_END = 0.1
"""Share of compute within which runs count as planned to one end: budgets are whole batches."""
MOST_POINTS = 2000
"""Points of grids beyond which none is missed: what is logged at each step is no grid."""


def common_start(own: View, others: Sequence[View]) -> tuple[Level, int]:
    """The median reward before training of the other runs of its group, and how many of them say it.

    All runs of a sweep start from one model, so that their evaluations at compute 0 differ by sampling only. Equal ones
    are one evaluation: runs of one seed may share it.
    """
    starts = [v.first for v in others if v.run.cell.group == own.run.cell.group and v.run.compute[0] == 0]
    if not starts:
        return own.first, 0
    rewards = [s.reward for s in starts]
    error = float(np.median([s.error for s in starts])) / float(np.sqrt(len(set(rewards))))
    return Level(reward=float(np.median(rewards)), error=error), len(starts)


def usual_at(own: View, others: Sequence[View], compute: float) -> float:
    """The median reward of the others at some compute: of the same cell if there are any, else of its n and B_p."""
    cell = [o for o in others if o.run.cell == own.run.cell]
    same = [o for o in others if _setting(o.run) == _setting(own.run)]
    return float(np.median([np.interp(compute, o.compute, o.reward) for o in cell or same or others]))


def bad_start(own: View, others: Sequence[View], times: float) -> bool:
    """Return whether its first evaluation alone is far from the others: the second is nearer their start or progress.

    Args:
        times: Standard errors that count as far.
    """
    shared, count = common_start(own, others)
    if count < 2 or own.run.compute[0] > 0 or len(own.compute) < 2:
        return False
    # The error of what it should have been: a share of 0 seems to have almost none.
    error = np.hypot(own.run.error_at(np.full(len(own.run.reward), shared.reward))[0], shared.error)
    off = abs(own.first.reward - shared.reward)
    usual = np.array([shared.reward, usual_at(own, others, float(own.compute[1]))])
    return bool(off > times * error and np.abs(own.reward[1] - usual).min() < off)


def start_of(own: View, others: Sequence[View], times: float) -> Level:
    """The reward before training: what all runs say together, unless this one begins elsewhere.

    Args:
        times: Standard errors beyond which it does.
    """
    shared, count = common_start(own, others)
    if not count or own.run.compute[0] > 0:
        return own.first
    elsewhere = shared.above(own.first, times) or own.first.above(shared, times)
    return own.first if elsewhere and not bad_start(own, others, times) else shared


def usual_gain(own: View, others: Sequence[View], starts: Sequence[Level], *, times: float) -> float | None:
    """Median gain of other runs by the compute of this one's end; None where it would not show, or was nothing.

    Those of the same n and B_p say it if one of them gained; else all others, if half of them did.

    Args:
        times: Standard errors beyond which a gain is sure.
    """
    last = float(own.compute[-1])
    same, gains = [], []
    for other, start in zip(others, starts, strict=True):
        if other.run.last < (1 - SHARED_END) * last:
            continue
        best = other.best(last)
        gains.append(best.reward - start.reward if best.above(start, times) else 0.0)
        same.append(_setting(other.run) == _setting(own.run))
    gained = [g for g, s in zip(gains, same, strict=True) if s and g > 0]
    if not gained and 2 * sum(g > 0 for g in gains) >= len(gains):
        gained = [g for g in gains if g > 0]
    usual = float(np.median(gained)) if gained else 0.0
    return usual if usual > 2 * times * own.best(last).error else None


def planned_end(own: Run, others: Sequence[Run]) -> tuple[float, int] | None:
    """The compute that the run was meant to reach, and how many others ended there; None where that is unclear.

    It is the most common last compute of the other runs of the same n and B_p, if two or more share it; else that of
    all others, if two or more and at least half of them share it. Of several as common the largest counts: runs end
    early, not late.
    """
    same = [o for o in others if _setting(o) == _setting(own)]
    for siblings, least in ((same, 2), (list(others), max(2, (len(others) + 1) // 2))):
        lasts = np.array([o.last for o in siblings])
        sharing = [int((np.abs(lasts - last) <= SHARED_END * last).sum()) for last in lasts]
        most = max(sharing, default=0)
        if most >= least:
            return float(max(last for last, count in zip(lasts, sharing, strict=True) if count == most)), most
    return None


def missing_points(own: Run, others: Sequence[Run]) -> Array:
    """Points of the siblings' grid, within the run's own compute, at which the run has no evaluation.

    A point is of the grid if at least two of the runs of the same n and B_p have it, and most of those that reach it;
    where there are no two such runs, all others count.
    """
    same = [o for o in others if _setting(o) == _setting(own)]
    siblings = same if len(same) > 1 else list(others)
    if len(siblings) < 2:
        return np.zeros(0)
    points = np.unique(np.concatenate([o.compute for o in siblings]))
    points = points[points <= own.last * (1 + SAME_POINT)]
    if not len(points) or len(points) > MOST_POINTS:
        return np.zeros(0)
    reaching = sum((o.last >= points * (1 - SAME_POINT)).astype(int) for o in siblings)
    having = sum((_distance(points, o.compute) <= SAME_POINT * points).astype(int) for o in siblings)
    grid = points[(np.asarray(having) >= 2) & (np.asarray(having) > np.asarray(reaching) / 2)]
    # Points that are alike are one: batches of different sizes do not divide a budget alike.
    grid = grid[np.diff(grid, prepend=-1.0) > SAME_POINT * grid]
    absent = grid[_distance(grid, own.compute) > SAME_POINT * grid]
    # A run that lacks most of it has a grid of its own.
    return np.asarray(absent if 2 * len(absent) <= len(grid) else absent[:0])


def _distance(points: Array, compute: Array) -> Array:
    """Distance of each point from the nearest evaluation."""
    after = np.searchsorted(compute, points)
    left, right = compute[np.maximum(after - 1, 0)], compute[np.minimum(after, len(compute) - 1)]
    return np.asarray(np.minimum(np.abs(points - left), np.abs(points - right)))


def _setting(run: Run) -> tuple[int, int, str]:
    return run.cell.problems_per_batch, run.cell.rollouts_per_problem, run.cell.group


SCALES: dict[str, Callable[[float], float]] = {
    "twice": lambda r: 2 * r,
    "half": lambda r: r / 2,
    "(1 + r)/2 of": lambda r: (1 + r) / 2,
    "2r − 1 of": lambda r: 2 * r - 1,
    "a hundredth of": lambda r: r / 100,
    "a hundred times": lambda r: 100 * r,
}
"""Scales in use: −1 and 1 for wrong and right, percent, and a reward halved or doubled by a second part."""
FAR = 4.0
"""Standard errors between starts beyond which they are not of one model and scale: they differ by sampling alone."""
NEAR = 3.0
"""Standard errors within which a start lies where a scale would put it."""


def other_scale(own: View, others: Sequence[View]) -> str | None:
    """The evidence that a run was logged on another scale than the others; None without any.

    Rewards outside 0 to 1 are. Else its start is compared with the common one of two others or more, and it must lie
    where a scale of ``SCALES`` puts it. The second evaluation must agree, and the others be possible on that scale.
    """
    low, high = float(own.run.reward.min()), float(own.run.reward.max())
    if low < 0 or high > 1:
        return f"has rewards from {low:.3g} to {high:.3g}, where a share of successes lies within 0 to 1"
    shared, count = common_start(own, [o for o in others if o.run.reward.min() >= 0 and o.run.reward.max() <= 1])
    if count < 2 or own.run.compute[0] > 0 or len(own.compute) < 2:
        return None
    first, usual, second = own.first, shared.reward, float(own.reward[1])
    if abs(first.reward - usual) <= FAR * np.hypot(first.error, shared.error):
        return None
    later = usual_at(own, others, float(own.compute[1]))
    for name, scale in SCALES.items():
        error = np.hypot(first.error, (scale(1.0) - scale(0.0)) * shared.error)
        possible = first.reward > 0 and low >= scale(0.0) - NEAR * error and high <= scale(1.0) + NEAR * error
        # A single bad evaluation at the start is no scale: the next one must be on it too.
        agrees = abs(second - scale(later)) < abs(second - later)
        if possible and agrees and abs(first.reward - scale(usual)) <= NEAR * error:
            return f"starts at {first.reward:.3f}, which is {name} the {usual:.3f} that {count} others start at"
    return None


SPIKE = 5.0
"""Standard deviations from both neighbours beyond which an evaluation is a spike: of 1,000 evaluations with normal
noise none lies there, and noise is known to about a tenth."""
OUTSIDE = 0.5
"""A spike lies outside the range of its neighbours by more than this share of that range: in a steep rise even a good
evaluation is far from the line between them."""
LOST, AGREEING = 0.5, 3.0
"""The last evaluation is a spike that lost this share of the gain, and so many times what was lost just before."""
OWN_SCATTER = 8
"""Evaluations from which a run's scatter says how large its noise is."""


def spikes(run: Run, factor: float) -> Mask:
    """Single evaluations, or two in a row, that lie far outside the range of their neighbours.

    The worst is taken out first and the others are judged again without it: a good evaluation between two bad ones is
    as far from its neighbours as they are. Low ones go first, since a broken evaluation is nearly always too low. The
    last evaluation is one where it alone lost half of the gain: a second one would be needed to see a collapse.
    """
    if len(run.reward) >= OWN_SCATTER:
        # A spike spoils three differences, so that those of a run with several are judged by the smaller ones.
        factor = max(factor, excess([run], 0.25))
    kept = np.arange(len(run.reward))
    while True:
        left = run.without(np.setdiff1d(np.arange(len(run.reward)), kept).tolist())
        for below, length in ((True, 1), (True, 2), (False, 1), (False, 2)):
            worst = _worst(left, factor, length, below)
            if len(worst):
                kept = np.delete(kept, worst)
                break
        else:
            kept = kept[: len(kept) - _falls_at_end(left, factor)]
            return np.isin(np.arange(len(run.reward)), kept, invert=True)


def _worst(run: Run, factor: float, length: int, below: bool) -> NDArray[np.int64]:
    """Indices of the stretch farthest below or above its neighbours; none where no stretch is far."""
    usual = expected_error(run)
    off, spread = off_neighbours(position(run.compute), run.reward, usual, length)
    inner = np.arange(len(off))[:, None] + 1 + np.arange(length)
    for j in range(length):
        # The error is that of what the evaluation should have been: a share of 0 seems to have almost none.
        rate = run.reward.copy()
        rate[inner[:, j]] -= off[:, j]
        spread[:, j] = np.maximum(spread[:, j], run.error_at(rate)[inner[:, j]])
    own, ends = run.reward[inner], run.reward[np.stack([inner[:, 0] - 1, inner[:, -1] + 1], axis=1)]
    low, high = ends.min(axis=1, keepdims=True), ends.max(axis=1, keepdims=True)
    outside = low - own if below else own - high
    far = (outside > OUTSIDE * (high - low)) & (outside > 0) & (np.abs(off) > SPIKE * factor * spread)
    size = np.where(far.all(axis=1), np.abs(off / spread).min(axis=1), 0.0)
    return inner[int(np.argmax(size))] if size.any() else inner[:0].ravel()


def _falls_at_end(run: Run, factor: float) -> bool:
    """Return whether the last evaluation alone lost half of what the run had gained."""
    if len(run.reward) < 4:
        return False
    first, before, level, last = (float(run.reward[i]) for i in (0, -3, -2, -1))
    usual = (before + level) / 2
    # The error of what it should have been, and of the two before it.
    error = float(run.error_at(np.full(len(run.reward), usual))[-1]) * float(np.sqrt(1.5))
    drop = usual - last
    return drop > max(SPIKE * factor * error, LOST * (usual - min(first, last)), AGREEING * (before - level))


def excess(runs: Sequence[Run], level: float = 0.5) -> float:
    """Noise over the errors stated, from how evaluations differ from their neighbours; robust to a few bad runs.

    Runs of few evaluations say nothing of it: between far neighbours the curve itself bends.

    Args:
        level: Quantile of the differences that it is taken from.
    """
    units = []
    for run in runs:
        if len(run.reward) < OWN_SCATTER:
            continue
        off, spread = off_neighbours(position(run.compute), run.reward, expected_error(run))
        units.append(np.abs(off[:, 0]) / spread[:, 0])
    whole = np.concatenate(units) if units else np.zeros(0)
    usual = float(norm.ppf((1 + level) / 2))
    factor = float(np.quantile(whole, level)) / usual if len(whole) else 1.0
    return max(factor, 1.0 if all(run.error_is_known for run in runs) else 0.1)


def off_neighbours(at: Array, reward: Array, error: Array, length: int = 1) -> tuple[Array, Array]:
    """Distances of stretches of evaluations from the line between those before and after.

    Args:
        at: Position of each evaluation.

    Returns:
        The differences and their standard deviations, both ``(stretches, length)``.
    """
    count = len(reward) - length - 1
    if count < 1:
        return np.zeros((0, length)), np.zeros((0, length))
    inner = np.arange(count)[:, None] + 1 + np.arange(length)
    before, after = np.arange(count)[:, None], np.arange(count)[:, None] + length + 1
    share = (at[inner] - at[before]) / np.maximum(at[after] - at[before], 1e-12)
    off = reward[inner] - reward[before] * (1 - share) - reward[after] * share
    spread = np.sqrt(error[inner] ** 2 + ((1 - share) * error[before]) ** 2 + (share * error[after]) ** 2)
    return off, spread


def expected_error(run: Run) -> Array:
    """Standard errors at the reward that an evaluation and its neighbours have together."""
    return np.array(run.error_at(local_median(run.reward)))


def local_median(reward: Array) -> Array:
    """The median of each value and its neighbours, of the three nearest at the ends."""
    if len(reward) < 3:
        return reward
    inner = np.median(np.lib.stride_tricks.sliding_window_view(reward, 3), axis=1)
    return np.concatenate([inner[:1], inner, inner[-1:]])


def position(compute: Array) -> Array:
    """Positions of evaluations in the logarithm of compute, finite for the start.

    Args:
        compute: Rising, shape ``(evaluations,)``.
    """
    positive = compute[compute > 0]
    return np.log1p(compute / (positive[0] if len(positive) else 1.0))


POINTS = 50
"""Most evaluations of a run that are fitted one by one: a curve has four numbers and bends once."""
REACH = 3
"""Bins on either side that a bin is compared with."""


def binned(run: Run, points: int = POINTS) -> Run:
    """The run in bins that are even in the logarithm of compute; evaluations at compute 0 are one point of their own.

    Thousands of evaluations within one doubling of compute share the slow wander of the run, so the mean of a bin is
    not as sure as that of as many independent ones: how sure it is shows in how bins differ from their neighbours.

    Args:
        points: Most points of the result; a run that has no more is returned as it is.
    """
    if len(run.compute) <= points:
        return run
    started = run.compute > 0
    positive = run.compute[started]
    edges = np.geomspace(positive[0], positive[-1], points)[1:-1]
    own = np.where(started, 1 + np.searchsorted(edges, run.compute, side="right"), 0)
    _, own, members = np.unique(own, return_inverse=True, return_counts=True)
    compute, reward = (np.bincount(own, values) / members for values in (run.compute, run.reward))
    # Before bins are compared, their errors are those of independent evaluations.
    sampled = np.sqrt(np.bincount(own, run.error_at(local_median(run.reward)) ** 2)) / members
    variance = sampled**2
    later = compute > 0
    if not run.error_is_known:
        variance = _within(run, own, members)
    variance[later] += wander(np.log(compute[later]), reward[later], variance[later])
    rate = np.clip(reward, 0.5 / members, 1 - 0.5 / members)
    return replace(
        run,
        compute=compute,
        reward=reward,
        error=np.sqrt(variance),
        trials=None if run.trials is None else np.maximum(rate * (1 - rate) / variance, 1.0),
    )


def _within(run: Run, own: NDArray[np.int64], members: NDArray[np.int64]) -> Array:
    """Variance of the mean of each bin if evaluations were independent, from how they scatter within all bins."""
    steps = np.diff(run.reward)[np.diff(own) == 0]
    # The difference of neighbours has twice their variance, and none of the trend.
    variance = (np.median(np.abs(steps)) / 0.6745) ** 2 / 2 if len(steps) else float(run.error[0]) ** 2
    return np.asarray(np.maximum(variance, 1e-8) / members)


def wander(at: Array, reward: Array, variance: Array) -> float:
    """Variance by which bins scatter beyond that of their independent evaluations.

    It is the larger of two: about a parabola through the neighbours, for what changes from bin to bin, and about the
    rising curve that fits best, for what is slower: a run that falls and rises again wanders.

    Args:
        at: Position of each bin, rising.
        variance: Of each bin's mean, if its evaluations were independent.
    """
    if len(reward) < 2 * REACH + 2:
        return 0.0
    off, own, scale = [], [], []
    for i in range(len(reward)):
        near = np.arange(max(0, i - REACH), min(len(reward), i + REACH + 1))
        near = near[near != i]
        # The value of the parabola at the bin itself, as weights of its neighbours.
        weights = np.linalg.pinv(np.vander(at[near] - at[i], 3))[-1]
        off.append(reward[i] - weights @ reward[near])
        own.append(variance[i] + (weights**2) @ variance[near])
        scale.append(1 + (weights**2).sum())
    rising = isotonic_regression(reward, weights=1 / (variance + np.median(variance))).x
    return max(
        between(np.array(off), np.array(own), np.array(scale)), between(reward - rising, variance, np.ones(len(reward)))
    )


def between(off: Array, variance: Array, scale: Array) -> float:
    """The b ≥ 0 for which off²/(variance + b·scale) is 1 on average (Paule and Mandel, 1982)."""

    def left(b: float) -> float:
        return float(np.mean(off**2 / (variance + b * scale))) - 1.0

    most = float(np.max(off**2 / scale))
    if left(0.0) <= 0:
        return 0.0
    return float(brentq(left, 0.0, most))
