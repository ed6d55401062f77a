"""The log-density of a sweep, in two halves: the likelihood of its evaluations, and the prior of families of numbers.

All that is done once for each evaluation and chain is in the likelihood, and nearly all of a fit's time. It runs over
blocks of runs and chains so small that their intermediate results stay in the processor's cache, writes these where the
last ones were, and keeps of each derivative, by what a run's curve is made of, its sum over a run. The equations are
those of ``model.py``.

A family of numbers shares a learned deviation: seeds, departures of single settings, what varies smoothly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array, Mask
from .runs import Runs

TURN = 0.3
"""h: e-folds of compute over which a curve turns."""
LOG_2 = float(np.log(2.0))
LARGEST = 60.0
"""Logarithm of w beyond which all of the gain is made."""


def step_share(position: Array) -> Array:
    """1 − 2^(−C/C_j), the share of the first step that is made; 0 before training.

    Args:
        position: log C − log C_j.
    """
    return np.asarray(1.0 - np.exp(-LOG_2 * np.exp(np.minimum(position, LARGEST))))


def bent(share: Array, slope: Array, position: Array, speed: Array, fall: Array) -> Array:
    """A rise that goes on beyond a compute, or falls.

    Args:
        share: The rise without a bend.
        slope: e.
        position: log C − w; minus infinity before training.
        speed: d, above 0.
        fall: f, above 0.
    """
    scaled = np.maximum(position / TURN, -700.0)
    since = TURN * (np.maximum(scaled, 0.0) + np.log1p(np.exp(-np.abs(scaled))))
    # Where all is lost a little more is no number.
    worn = np.expm1(np.minimum(speed * since, LARGEST)) / speed
    left = np.exp(np.maximum(np.minimum(slope, 0.0) * worn / fall, -LARGEST))
    return np.asarray(np.where(slope < 0, share * (1.0 - fall + fall * left), share + slope * since))


def rise(position: Array, tail: Array) -> Array:
    """The share of the gain made at z = s·log(C/C_half), one family of curves for all forms.

        rise = 1 − (1 + q·w)^(−1/q),   w = w_half·(C/C_half)^s,   w_half = (2^q − 1)/q

    (Burr's twelfth distribution; half of the gain is made at C_half whatever q and s are.) ``q = 1`` is ``hill`` with
    B = s, ``q → 0`` and ``s = 1`` is ``exp``, ``s = 1`` is ``power`` with β = 1/q. So the form is a number to be
    integrated over, not a choice to be made.

    Args:
        position: z; minus infinity before training.
        tail: q, above 0.
    """
    grown = np.expm1(tail * LOG_2) * np.exp(np.minimum(position, LARGEST))
    return np.asarray(1.0 - np.exp(-np.log1p(grown) / tail))


BLOCK = 32768
"""Evaluations times chains of a block."""
BUFFERS, SUMS = 13, 14
BEFORE = -1e200
"""Logarithm of the compute before training: times any steepness nothing is made, and times 0 it is 0."""


class Numbers(NamedTuple):
    """What the curves of all runs are made of, or derivatives by it.

    The first six are of each run, shape ``(chains, runs)``, the others of all together, shape ``(chains,)``.
    """

    start: Array
    gain: Array
    shape: Array
    timing: Array
    slope: Array
    onset: Array
    tail: Array
    height: Array
    when: Array
    speed: Array
    fall: Array
    excess: Array
    phi: Array


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """The likelihood of evaluations: normal, wider than their errors, autocorrelated within a run.

    A residual in units of κ·e follows that of the evaluation before by φ, with innovations of variance 1 − φ².

    Attributes:
        compute: Shape ``(runs, points)``, as all but ``later``.
        log_compute: Its logarithm, finite before training.
        reward: Measured.
        weight: 1/e; 0 where nothing was seen.
        seen: None where all was.
        count: Evaluations, and those of them that follow another.
    """

    compute: Array
    log_compute: Array
    reward: Array
    weight: Array
    seen: Mask | None
    count: tuple[int, int]

    @classmethod
    def of(cls, runs: Runs) -> Likelihood:
        """That of some runs."""
        seen = runs.seen
        started = seen & (runs.compute > 0)
        return cls(
            compute=np.where(started, runs.compute, 0.0),
            log_compute=np.where(started, np.log(np.where(started, runs.compute, 1.0)), BEFORE),
            reward=runs.reward,
            weight=np.where(seen, 1 / runs.error, 0.0),
            seen=None if seen.all() else seen,
            count=(int(seen.sum()), int(seen[:, 1:].sum())),
        )

    def __call__(self, at: Numbers) -> tuple[Array, Numbers]:
        """The log-likelihood, shape ``(chains,)``, and its derivatives."""
        (chains, runs), points = at.start.shape, self.compute.shape[1]
        rows = min(runs, max(1, BLOCK // points))
        some = min(chains, max(1, BLOCK // (rows * points)))
        room = np.empty((BUFFERS, some * rows * points))
        sums, squares = np.empty((SUMS, chains, runs)), np.empty((3, chains, runs))
        for first in range(0, runs, rows):
            own = slice(first, min(first + rows, runs))
            for begin in range(0, chains, some):
                part = slice(begin, min(begin + some, chains))
                size = part.stop - begin, own.stop - first, points
                used = room[:, : size[0] * size[1] * points].reshape(BUFFERS, *size)
                self._block(at, part, own, used, sums[:, part, own], squares[:, part, own])
        return self._gathered(at, sums, squares)

    def _block(self, at: Numbers, part: slice, own: slice, room: Array, sums: Array, squares: Array) -> None:
        """Sums over the evaluations of some runs, for some chains.

        Args:
            room: Shape ``(BUFFERS, chains, runs, points)``; nothing is read from it.
            sums: Written, shape ``(SUMS, chains, runs)``.
            squares: Of first and of later innovations, and these times φ and the residual before; written.
        """
        start, gain, shape, timing, slope, onset = (each[part, own, None] for each in at[:6])
        tail, height, when, speed, fall, _, phi = (each[part, None, None] for each in at[6:])
        log_compute = self.log_compute[own]
        steps, made, logarithm, share, turned, since, grown, kept, rest, value, residual, spare, _ = room
        np.multiply(self.compute[own], -LOG_2 * np.exp(-when), out=steps)
        np.exp(steps, out=steps)
        # The rise: ``made`` is q times its derivative by z, ``logarithm`` what is left times log(1 + q·w).
        np.multiply(log_compute, shape, out=made)
        half = np.log(np.expm1(tail * LOG_2))
        made += half - shape * timing
        np.minimum(made, half + LARGEST, out=made)
        np.exp(made, out=made)
        np.log1p(made, out=logarithm)
        np.multiply(logarithm, -1 / tail, out=share)
        np.exp(share, out=share)
        np.add(made, 1.0, out=spare)
        made /= spare
        made *= share
        logarithm *= share
        np.subtract(1.0, share, out=share)
        # The bend: ``since`` in units of h, ``kept`` of what may be lost.
        onset = np.maximum(onset, self.log_compute.max() - LARGEST)
        np.subtract(log_compute, onset, out=turned)
        turned *= 1 / TURN
        np.exp(turned, out=turned)
        np.log1p(turned, out=since)
        np.add(turned, 1.0, out=spare)
        turned /= spare
        np.multiply(since, speed * TURN, out=grown)
        np.exp(grown, out=grown)
        np.subtract(grown, 1.0, out=kept)
        kept *= np.minimum(slope, 0.0) / (fall * speed)
        np.exp(kept, out=kept)
        np.multiply(kept, fall, out=rest)
        rest += 1.0 - fall
        np.multiply(share, rest, out=value)
        np.multiply(since, np.maximum(slope, 0.0) * TURN, out=spare)
        value += spare
        np.subtract(self.reward[own], start + height, out=residual)
        np.multiply(steps, height, out=spare)
        residual += spare
        np.multiply(value, gain, out=spare)
        residual -= spare
        residual *= self.weight[own]
        # Innovations: a residual less φ times the one before; all runs in a row, then the first of each alone.
        shocks, before = spare, room[BUFFERS - 1]
        np.multiply(residual, phi, out=before)
        flat = len(residual), -1
        np.subtract(residual.reshape(flat)[:, 1:], before.reshape(flat)[:, :-1], out=shocks.reshape(flat)[:, 1:])
        shocks[:, :, 0] = residual[:, :, 0]
        if self.seen is not None:
            shocks *= self.seen[own]
        squares[0] = shocks[:, :, 0] ** 2
        _dot(shocks, shocks, squares[1])
        # Σ e·r, of all evaluations, is that of the first, of the later shocks, and φ·Σ e·r_before.
        _dot(shocks, residual, squares[2])
        squares[2] -= squares[1]
        squares[1] -= squares[0]
        # The derivative by rewards, but for 1/(κ²·(1 − φ²)).
        by_reward = residual
        shocks[:, :, 0] = 0.0
        np.multiply(shocks, phi, out=before)
        by_first = by_reward[:, :, 0] * (1 - phi**2)[:, :, 0]
        np.subtract(shocks.reshape(flat)[:, :-1], before.reshape(flat)[:, 1:], out=by_reward.reshape(flat)[:, :-1])
        by_reward[:, -1, -1] = shocks[:, -1, -1]
        by_reward[:, :, 0] += by_first
        by_reward *= self.weight[own]
        _sum(by_reward, sums[0])
        steps *= by_reward
        _sum(steps, sums[1])
        np.einsum("crp,rp->cr", steps, self.compute[own], out=sums[2])
        _dot(by_reward, value, sums[3])
        rest *= by_reward
        made *= rest
        _sum(made, sums[4])
        np.einsum("crp,rp->cr", made, log_compute, out=sums[5])
        _dot(rest, logarithm, sums[6])
        share *= by_reward
        _sum(share, sums[7])
        kept *= share
        _sum(kept, sums[8])
        grown *= kept
        _sum(grown, sums[9])
        _dot(grown, turned, sums[10])
        _dot(grown, since, sums[11])
        _dot(by_reward, since, sums[12])
        _dot(by_reward, turned, sums[13])

    def _gathered(self, at: Numbers, sums: Array, squares: Array) -> tuple[Array, Numbers]:
        """Apply the chain rule to the sums over each run's evaluations."""
        left = 1 - at.phi**2
        first, later, cross = squares.sum(axis=2)
        weight = 1 / (at.excess**2 * left)
        whole = weight * (left * first + later)
        value = -0.5 * whole - self.count[0] * np.log(at.excess) - 0.5 * self.count[1] * np.log(left)
        sums *= weight[:, None]
        tail, speed, fall = at.tail[:, None], at.speed[:, None], at.fall[:, None]
        position = at.gain * sums[4] / tail
        by_half = LOG_2 / -np.expm1(-tail * LOG_2)
        falls, worn = at.slope < 0, (sums[9] - sums[8]) / speed
        by_speed = at.slope / speed * (TURN * sums[11] - worn)
        by_fall = sums[8] - at.slope / fall * worn - sums[7]
        return value, Numbers(
            start=sums[0],
            gain=sums[3],
            shape=at.gain * sums[5] / tail - at.timing * position,
            timing=-at.shape * position,
            slope=at.gain * np.where(falls, worn, TURN * sums[12]),
            onset=-at.gain * at.slope * np.where(falls, sums[10], sums[13]),
            tail=(position * by_half - at.gain * sums[6] / tail**2).sum(axis=1),
            height=(sums[0] - sums[1]).sum(axis=1),
            when=-at.height * LOG_2 * np.exp(-at.when) * sums[2].sum(axis=1),
            speed=(at.gain * np.where(falls, by_speed, 0.0)).sum(axis=1),
            fall=(at.gain * np.where(falls, by_fall, 0.0)).sum(axis=1),
            excess=(whole - self.count[0]) / at.excess,
            phi=(weight * cross / at.phi + (self.count[1] - weight * later) * at.phi / left),
        )


def _sum(one: Array, out: Array) -> None:
    """Sum over each run's evaluations."""
    np.matmul(one, np.ones(one.shape[2]), out=out)


def _dot(one: Array, other: Array, out: Array) -> None:
    """Sum the products over each run's evaluations."""
    np.einsum("crp,crp->cr", one, other, out=out)


Index = NDArray[np.int64]
DEPARTURE_DEGREES, SEED_DEGREES = 4.0, 6.0
"""Of freedom of Student's t, of single settings and of seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """Medians of what is learned from all runs together; a deviation is known to a factor, given as its logarithm.

    Attributes:
        seed_amplitude: Standard deviation of seeds, as a share of the gain. With one seed per setting the data say
            nothing of it, and this decides.
        seed_factor: Logarithm of the factor to which it is known.
        seed_timing: Standard deviation of seeds in the logarithm of compute.
        smooth: Of the Gaussian process: of the amplitude's logit, and of the logarithm of the half compute.
        departure: Of single cells, likewise.
        departure_factor: Logarithm of the factor to which it is known.
        shape: Of single cells' s, in logarithms.
        bend: Of single cells' e.
        base_level: Of base models, where there are several: of the amplitude's logit, and of the logarithm of the half
            compute.
        base_slope: Of how base models differ per octave of n, B_p and rate, likewise.
        base_departure: Of single settings of single base models, likewise.
        wide: Logarithm of the factor of ``smooth``, ``seed_timing`` and those of base models.
    """

    seed_amplitude: float = 0.06
    seed_factor: float = 0.7
    seed_timing: float = 0.08
    smooth: tuple[float, float] = (0.3, 0.4)
    departure: tuple[float, float] = (0.3, 0.3)
    departure_factor: float = 0.6
    shape: float = 0.1
    bend: float = 0.008
    base_level: tuple[float, float] = (0.4, 0.4)
    base_slope: tuple[float, float] = (0.08, 0.1)
    base_departure: tuple[float, float] = (0.06, 0.08)
    wide: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Numbers that share a deviation: ``median · k``, with ``k = exp(factor · h)`` and h standard normal.

    Attributes:
        median: Of the deviation, shape ``(rows,)``.
        factor: Logarithm of the factor to which it is known, shape ``(rows,)``.
        centred: The numbers are sampled in units of ``k`` to the power of one minus this: 1 where the data say much
            of each, 0 where they say little.
        degrees: Of freedom of Student's t; infinite for a normal distribution.
    """

    median: Array
    factor: Array
    centred: float
    degrees: float


def families(prior: Priors, *, slopes: int = 0, bases: bool = False) -> dict[str, Family]:
    """The numbers of a sweep whose deviation is learned.

    Args:
        slopes: Axes along which base models may differ.
    """
    wide = (prior.wide, prior.wide)
    known = (prior.departure_factor, prior.departure_factor)
    seeds = (prior.seed_amplitude, prior.seed_timing)
    made = {
        "smooth": _family(prior.smooth, wide, centred=1.0),
        "departure": _family(prior.departure, known, centred=1.0, degrees=DEPARTURE_DEGREES),
        "shapes": _family((prior.shape,), wide[:1], centred=0.7),
        "bends": _family((prior.bend,), known[:1], centred=1.0),
        "seeds": _family(seeds, (prior.seed_factor, prior.wide), centred=1.0, degrees=SEED_DEGREES),
    }
    if bases:
        both = [(level, *(slope,) * slopes) for level, slope in zip(prior.base_level, prior.base_slope, strict=True)]
        medians = (*both[0], *both[1])
        made["bases"] = _family(medians, (prior.wide,) * len(medians), centred=1.0)
        made["own"] = _family(prior.base_departure, wide, centred=0.0)
    return made


def _family(median: tuple[float, ...], factor: tuple[float, ...], *, centred: float, degrees: float = np.inf) -> Family:
    return Family(median=np.array(median), factor=np.array(factor), centred=centred, degrees=degrees)


class Scaled(NamedTuple):
    """Numbers in their own unit.

    Attributes:
        values: Of each family, shape ``(chains, rows, members)``.
        unit: What 1 in the vector is in it, of all families, shape ``(chains, numbers)``.
        whole: All numbers, likewise.
    """

    values: dict[str, Array]
    unit: Array
    whole: Array


@dataclass(frozen=True, kw_only=True)
class Families:
    """All numbers of a sweep whose deviations are learned, as one array: in their own unit, and their prior.

    Attributes:
        parts: Part of each one's numbers in the vector, and under ``_sd`` of its deviations.
    """

    families: dict[str, Family]
    parts: dict[str, slice]

    @cached_property
    def deviations(self) -> Index:
        """Indices of the deviations of all families, one for each row, shape ``(rows,)``."""
        return np.concatenate([_places(self.parts[name + "_sd"]) for name in self.families])

    @cached_property
    def numbers(self) -> Index:
        """Indices of the numbers of all families, shape ``(numbers,)``."""
        return np.concatenate([_places(self.parts[name]) for name in self.families])

    @cached_property
    def _counts(self) -> list[int]:
        """Size of each family."""
        return [self.parts[name].stop - self.parts[name].start for name in self.families]

    @cached_property
    def own(self) -> dict[str, slice]:
        """Part of each family in all ``numbers``."""
        ends = np.cumsum(self._counts).tolist()
        return {name: slice(end - many, end) for name, many, end in zip(self.families, self._counts, ends, strict=True)}

    @cached_property
    def _row(self) -> Index:
        """Row of each number, shape ``(numbers,)``."""
        rows = [len(family.median) for family in self.families.values()]
        members = [many // own for many, own in zip(self._counts, rows, strict=True) for _ in range(own)]
        return np.repeat(np.arange(len(members)), members)

    @cached_property
    def _median(self) -> Array:
        return np.concatenate([family.median for family in self.families.values()])

    @cached_property
    def _powers(self) -> tuple[Array, Array]:
        """Of e, per h: what the numbers in the vector are a multiple of, and the rest of their unit, by rows."""
        families = self.families.values()
        return (
            np.concatenate([family.centred * family.factor for family in families]),
            np.concatenate([(1 - family.centred) * family.factor for family in families]),
        )

    @cached_property
    def _heavy(self) -> tuple[Index, Array]:
        """Indices of the Student-t numbers, and their degrees of freedom."""
        degrees = np.repeat([family.degrees for family in self.families.values()], self._counts)
        heavy = np.flatnonzero(np.isfinite(degrees))
        return heavy, degrees[heavy]

    @cached_property
    def _first(self) -> Index:
        """Where each row begins among the numbers, shape ``(rows,)``."""
        return np.flatnonzero(np.diff(self._row, prepend=-1))

    @cached_property
    def _members(self) -> Array:
        """Numbers of each row, shape ``(rows,)``."""
        return np.bincount(self._row).astype(np.float64)

    def scaled(self, theta: Array) -> Scaled:
        """All numbers in their own unit."""
        unit = _taken(self._median * np.exp(self._powers[1] * _taken(theta, self.deviations)), self._row)
        whole = unit * _taken(theta, self.numbers)
        return Scaled({name: self._rows(whole, name) for name in self.families}, unit, whole)

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations (of the Student-t ones their scale) of a family, shape ``(chains, rows)``."""
        family = self.families[name]
        return np.asarray(family.median * np.exp(family.factor * theta[:, self.parts[name + "_sd"]]))

    def back(self, by_value: dict[str, Array], scaled: Scaled, gradient: Array) -> None:
        """Write the gradient by the vector, from that by the numbers in their own unit."""
        by_all = np.concatenate([by_value[name].reshape(len(gradient), -1) for name in self.families], axis=1)
        gradient[:, self.numbers] = by_all * scaled.unit
        gradient[:, self.deviations] = self._powers[1] * self._sums(by_all * scaled.whole)

    def prior(self, theta: Array, gradient: Array) -> Array:
        """Logarithm of the prior density of the numbers, shape ``(chains,)``, given their deviations.

        Args:
            gradient: By the vector; its numbers are written, and what deviations add to it is added.
        """
        power = self._powers[0] * _taken(theta, self.deviations)
        narrow = _taken(np.exp(-power), self._row)
        unit = _taken(theta, self.numbers) * narrow
        slope, square = -unit, unit**2
        heavy, degrees = self._heavy
        far = _taken(square, heavy)
        slope[:, heavy] *= (degrees + 1) / (degrees + far)
        square[:, heavy] = (degrees + 1) * np.log1p(far / degrees)
        gradient[:, self.numbers] = slope * narrow
        gradient[:, self.deviations] -= self._powers[0] * (self._sums(slope * unit) + self._members)
        return np.asarray(-0.5 * square.sum(axis=1) - power @ self._members)

    def _sums(self, numbers: Array) -> Array:
        """Sums over each row, shape ``(chains, rows)``."""
        return np.asarray(np.add.reduceat(numbers, self._first, axis=1))

    def _rows(self, numbers: Array, name: str) -> Array:
        """One family of all numbers, shape ``(chains, rows, members)``."""
        return numbers[:, self.own[name]].reshape(len(numbers), len(self.families[name].median), -1)


def _places(part: slice) -> Index:
    return np.arange(part.start, part.stop)


def _taken(columns: Array, which: Index) -> Array:
    """Some columns, contiguous by rows: an index would leave them contiguous by columns, and what follows slow."""
    return np.take(columns, which, axis=1)
