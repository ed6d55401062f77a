"""The log-density of a sweep, in two halves: the likelihood of its evaluations, and the prior of families of numbers.

The likelihood holds all work per evaluation and chain, and takes nearly all of a fit's time. It runs over blocks of
runs and chains that are small enough for their intermediate results to stay in the processor's cache. It reuses the
memory of these results, and keeps each derivative, by curve parameter, only as its sum over a run. The equations are
those of ``model.py``.

A family of numbers shares a learned deviation: seeds, departures of single settings, smooth variation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array, Mask
from .runs import Runs, members

Index = NDArray[np.int64]
TURN = 0.3
"""h: e-folds of compute over which a curve bends."""
LOG_2 = float(np.log(2.0))
LARGEST = 60.0
"""Logarithm of w beyond which the whole gain is made."""


def step_share(position: Array) -> Array:
    """1 − 2^(−C/C_j), the share of the first step made at log C − log C_j; 0 before training."""
    return np.asarray(1.0 - np.exp(-LOG_2 * np.exp(np.minimum(position, LARGEST))))


def bent(share: Array, slope: Array, position: Array, speed: Array, fall: Array) -> Array:
    """A rise that continues beyond a compute, or falls.

    Args:
        share: The rise without a bend.
        slope: e.
        position: log C − w; minus infinity before training.
        speed: d, above 0.
        fall: f, above 0.
    """
    scaled = np.maximum(position / TURN, -700.0)
    since = TURN * (np.maximum(scaled, 0.0) + np.log1p(np.exp(-np.abs(scaled))))
    # Clip before the exponential overflows: by then, all that can be lost is lost.
    worn = np.expm1(np.minimum(speed * since, LARGEST)) / speed
    left = np.exp(np.maximum(np.minimum(slope, 0.0) * worn / fall, -LARGEST))
    return np.asarray(np.where(slope < 0, share * (1.0 - fall + fall * left), share + slope * since))


def rise(position: Array, tail: Array) -> Array:
    """The share of the gain made at z = s·log(C/C_half), one family of curves for all forms.

        rise = 1 − (1 + q·w)^(−1/q),   w = w_half·(C/C_half)^s,   w_half = (2^q − 1)/q

    (Burr's twelfth distribution; half of the gain is made at C_half for any q and s.) ``q = 1`` is ``hill`` with B = s,
    ``q → 0`` and ``s = 1`` is ``exp``, ``s = 1`` is ``power`` with β = 1/q. So the form is a number to integrate over,
    not a choice.

    Args:
        position: z; minus infinity before training.
        tail: q, above 0.
    """
    grown = np.expm1(tail * LOG_2) * np.exp(np.minimum(position, LARGEST))
    return np.asarray(1.0 - np.exp(-np.log1p(grown) / tail))


BLOCK = 65536
"""Evaluations times chains per block."""
ROWS = 128
"""Most runs per block: summing over the runs of a bend costs as many multiplications as the block has bends."""
BUFFERS = 8
BEFORE = -1e200
"""Logarithm of compute before training: nothing is gained at any steepness, and times 0 it is 0."""


class Numbers(NamedTuple):
    """Parameters of all runs' curves, or derivatives with respect to them.

    The first four are per run, shape ``(chains, runs)``, the next two per setting, shape ``(chains, cells)``, and the
    others shared by all, shape ``(chains,)``.
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


class Block(NamedTuple):
    """Some of the runs, and the bends that they share: runs of a setting that were evaluated at the same compute.

    Attributes:
        runs: Slice of the runs.
        bend: Index of each run's bend, shape ``(runs,)``.
        members: Membership of runs in bends, as ones and zeros, shape ``(bends, runs)``.
        compute: Compute of each bend, shape ``(bends, points)``.
        log_compute: Its logarithm.
        cell: Index of each bend's setting, shape ``(bends,)``.
        of_cell: Membership of bends in settings, shape ``(bends, cells)``.
    """

    runs: slice
    bend: Index
    members: Array
    compute: Array
    log_compute: Array
    cell: Index
    of_cell: Array


class Bends(NamedTuple):
    """The first step and the bend of some curves at their evaluations, each of shape ``(chains, bends, points)``.

    Attributes:
        steps: Share of the first step that is not made yet.
        turned: Derivative of ``since`` by log C, times h.
        since: v, in units of h.
        grown: exp(d·v).
        kept: Remaining share of what may be lost.
        rest: Factor of the rise.
        further: Share of the gain added to the rise.
    """

    steps: Array
    turned: Array
    since: Array
    grown: Array
    kept: Array
    rest: Array
    further: Array


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """The likelihood of evaluations: normal, wider than their errors, autocorrelated within a run.

    A residual in units of κ·e is φ times the previous one plus an innovation of variance 1 − φ².

    Attributes:
        compute: Shape ``(runs, points)``; 0 for missing evaluations.
        log_compute: Its logarithm, finite before training.
        reward: Measured reward.
        weight: 1/e; 0 for missing evaluations.
        seen: None if no evaluation is missing.
        cell: Index of each run's setting, shape ``(runs,)``.
        count: Number of evaluations, and of those that follow another.
    """

    compute: Array
    log_compute: Array
    reward: Array
    weight: Array
    seen: Mask | None
    cell: Index
    count: tuple[int, int]
    _blocks: dict[int, list[Block]] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Runs) -> Likelihood:
        """The likelihood of the given runs."""
        seen = runs.seen
        started = seen & (runs.compute > 0)
        return cls(
            compute=np.where(started, runs.compute, 0.0),
            log_compute=np.where(started, np.log(np.where(started, runs.compute, 1.0)), BEFORE),
            reward=runs.reward,
            weight=np.where(seen, 1 / runs.error, 0.0),
            seen=None if seen.all() else seen,
            cell=runs.cell,
            count=(int(seen.sum()), int(seen[:, 1:].sum())),
        )

    def blocks(self, rows: int) -> list[Block]:
        """The runs in blocks of this size."""
        if rows not in self._blocks:
            starts = range(0, len(self.cell), rows)
            self._blocks[rows] = [self._block_of(slice(first, first + rows)) for first in starts]
        return self._blocks[rows]

    def _block_of(self, runs: slice) -> Block:
        every = np.concatenate([self.cell[runs, None], self.compute[runs]], axis=1)
        _, first, bend = np.unique(every, axis=0, return_index=True, return_inverse=True)
        cell = self.cell[runs][first]
        return Block(
            runs=runs,
            bend=bend.reshape(-1),
            members=members(bend.reshape(-1), len(first)).T.copy(),
            compute=self.compute[runs][first],
            log_compute=self.log_compute[runs][first],
            cell=cell,
            of_cell=members(cell, int(self.cell.max()) + 1),
        )

    def __call__(self, at: Numbers) -> tuple[Array, Numbers]:
        """The log-likelihood, shape ``(chains,)``, and its derivatives."""
        (chains, runs), points = at.start.shape, self.compute.shape[1]
        rows = min(runs, ROWS, max(1, BLOCK // (chains * points)))
        some = min(chains, max(1, BLOCK // (rows * points)))
        room = np.empty((BUFFERS, some * rows * points))
        sums, squares = np.empty((5, chains, runs)), np.empty((3, chains, runs))
        settings, whole = np.zeros((2, *at.slope.shape)), np.zeros((4, chains))
        for block in self.blocks(rows):
            for begin in range(0, chains, some):
                part = slice(begin, min(begin + some, chains))
                own = Numbers(*(each[part] for each in at))
                bends, left = self._bends(own, block), (part.stop - begin) * len(block.bend) * points
                used = room[:, :left].reshape(BUFFERS, part.stop - begin, len(block.bend), points)
                by = self._curves(own, block, bends, used, sums[:, part, block.runs], squares[:, part, block.runs])
                self._bent(own, block, bends, by, settings[:, part], whole[:, part])
        return self._gathered(at, sums, squares, settings, whole)

    def _bends(self, at: Numbers, block: Block) -> Bends:
        """The steps and bends of a block's curves."""
        slope, onset = (each[:, block.cell, None] for each in (at.slope, at.onset))
        when, speed, fall = (each[:, None, None] for each in (at.when, at.speed, at.fall))
        steps = np.exp(block.compute * (-LOG_2 * np.exp(-when)))
        turned = np.exp((block.log_compute - np.maximum(onset, self.log_compute.max() - LARGEST)) * (1 / TURN))
        since = np.log1p(turned)
        turned /= turned + 1.0
        grown = np.exp(since * (speed * TURN))
        kept = np.exp((grown - 1.0) * (np.minimum(slope, 0.0) / (fall * speed)))
        rest = kept * fall + (1.0 - fall)
        return Bends(steps, turned, since, grown, kept, rest, since * (np.maximum(slope, 0.0) * TURN))

    def _curves(self, at: Numbers, block: Block, bends: Bends, room: Array, sums: Array, squares: Array) -> Array:
        """Sums over the evaluations of some runs, for some chains.

        Args:
            room: Work space, shape ``(BUFFERS, chains, runs, points)``; its content is ignored.
            sums: Output, shape ``(5, chains, runs)``.
            squares: Output: sums of squares of the first and of the later innovations, and the sum of the later ones
                times φ times the previous residual.

        Returns:
            Sums over the runs of each bend, shape ``(3, chains, bends, points)``: of the derivative by rewards, of that
            by the share of the gain, and of the latter times the rise.
        """
        runs = block.runs
        start, gain, shape, timing = (each[:, runs, None] for each in at[:4])
        tail, height, phi = (each[:, None, None] for each in (at.tail, at.height, at.phi))
        made, logarithm, left, share, rest, value, residual, spare = room
        # The rise: ``made`` is q times its derivative by z, over what is ``left`` of it.
        half = np.log(np.expm1(tail * LOG_2))
        np.multiply(self.log_compute[runs], shape, out=made)
        made += half - shape * timing
        np.minimum(made, half + LARGEST, out=made)
        np.exp(made, out=made)
        np.log1p(made, out=logarithm)
        np.multiply(logarithm, -1 / tail, out=left)
        np.exp(left, out=left)
        np.add(made, 1.0, out=spare)
        made /= spare
        np.subtract(1.0, left, out=share)
        np.take(bends.rest, block.bend, axis=1, out=rest, mode="clip")
        np.multiply(share, rest, out=value)
        np.take(bends.further, block.bend, axis=1, out=spare, mode="clip")
        value += spare
        np.take((bends.steps - 1.0) * height, block.bend, axis=1, out=residual, mode="clip")
        residual += self.reward[runs] - start
        np.multiply(value, gain, out=spare)
        residual -= spare
        residual *= self.weight[runs]
        # Innovations: a residual less φ times the previous one, first for all runs in a row, then the first of each
        # run.
        shocks, before, flat = spare, np.empty_like(spare), (len(residual), -1)
        np.multiply(residual, phi, out=before)
        np.subtract(residual.reshape(flat)[:, 1:], before.reshape(flat)[:, :-1], out=shocks.reshape(flat)[:, 1:])
        shocks[:, :, 0] = residual[:, :, 0]
        if self.seen is not None:
            shocks *= self.seen[runs]
        squares[0] = shocks[:, :, 0] ** 2
        _dot(shocks, shocks, squares[1])
        # With innovations e and residuals r, Σ e·r is Σ e² of the first and of the later ones, plus φ·Σ e·r_before.
        _dot(shocks, residual, squares[2])
        squares[2] -= squares[1]
        squares[1] -= squares[0]
        # The derivative by rewards, without the factor 1/(κ²·(1 − φ²)).
        by_reward = residual
        shocks[:, :, 0] = 0.0
        np.multiply(shocks, phi, out=before)
        by_first = by_reward[:, :, 0] * (1 - phi**2)[:, :, 0]
        np.subtract(shocks.reshape(flat)[:, :-1], before.reshape(flat)[:, 1:], out=by_reward.reshape(flat)[:, :-1])
        by_reward[:, -1, -1] = shocks[:, -1, -1]
        by_reward[:, :, 0] += by_first
        by_reward *= self.weight[runs]
        _sum(by_reward, sums[0])
        _dot(by_reward, value, sums[1])
        left *= rest
        left *= by_reward
        _dot(left, logarithm, sums[2])
        left *= made
        _sum(left, sums[3])
        np.einsum("crp,rp->cr", left, self.log_compute[runs], out=sums[4])
        share *= by_reward
        gains = block.members * at.gain[:, None, runs]
        return np.stack([block.members @ by_reward, gains @ by_reward, gains @ share])

    def _bent(self, at: Numbers, block: Block, bends: Bends, by: Array, settings: Array, whole: Array) -> None:
        """Add the derivatives by the first step and the bend.

        Args:
            by: As returned by ``_curves``.
            settings: Derivatives by e and w, shape ``(2, chains, cells)``.
            whole: Derivatives by j, log C_j, d and f, shape ``(4, chains)``.
        """
        by_reward, by_share, by_rise = by
        slope = at.slope[:, block.cell]
        speed, fall = at.speed[:, None], at.fall[:, None]
        falls = slope < 0
        stepped = bends.steps * by_reward
        whole[0] += (by_reward - stepped).sum(axis=(1, 2))
        whole[1] -= at.height * LOG_2 * np.exp(-at.when) * (stepped * block.compute).sum(axis=(1, 2))
        kept = bends.kept * by_rise
        grown = bends.grown * kept
        worn = (grown - kept).sum(axis=2) / speed
        quick = slope / speed * (TURN * (grown * bends.since).sum(axis=2) - worn)
        whole[2] += np.where(falls, quick, 0.0).sum(axis=1)
        whole[3] += np.where(falls, (kept - by_rise).sum(axis=2) - slope / fall * worn, 0.0).sum(axis=1)
        by_slope = np.where(falls, worn, TURN * (by_share * bends.since).sum(axis=2))
        turning = np.where(falls[:, :, None], grown, by_share) * bends.turned
        settings += np.stack([by_slope, -slope * turning.sum(axis=2)]) @ block.of_cell

    def _gathered(
        self, at: Numbers, sums: Array, squares: Array, settings: Array, whole: Array
    ) -> tuple[Array, Numbers]:
        """Apply the chain rule to the sums over each run's evaluations."""
        left = 1 - at.phi**2
        first, later, cross = squares.sum(axis=2)
        weight = 1 / (at.excess**2 * left)
        size = weight * (left * first + later)
        value = -0.5 * size - self.count[0] * np.log(at.excess) - 0.5 * self.count[1] * np.log(left)
        sums *= weight[:, None]
        tail = at.tail[:, None]
        position = at.gain * sums[3] / tail
        by_half = LOG_2 / -np.expm1(-tail * LOG_2)
        slope, onset = settings * weight[:, None]
        height, when, speed, fall = whole * weight
        return value, Numbers(
            start=sums[0],
            gain=sums[1],
            shape=at.gain * sums[4] / tail - at.timing * position,
            timing=-at.shape * position,
            slope=slope,
            onset=onset,
            tail=(position * by_half - at.gain * sums[2] / tail**2).sum(axis=1),
            height=height,
            when=when,
            speed=speed,
            fall=fall,
            excess=(size - self.count[0]) / at.excess,
            phi=(weight * cross / at.phi + (self.count[1] - weight * later) * at.phi / left),
        )


def _sum(one: Array, out: Array) -> None:
    """Sum over each run's evaluations."""
    np.matmul(one, np.ones(one.shape[2]), out=out)


def _dot(one: Array, other: Array, out: Array) -> None:
    """Sum the products over each run's evaluations."""
    np.einsum("crp,crp->cr", one, other, out=out)


DEPARTURE_DEGREES, SEED_DEGREES = 4.0, 6.0
"""Degrees of freedom of Student's t, for single settings and for seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """Medians of what is learned from all runs together; a deviation is known to a factor, given as its logarithm.

    Attributes:
        seed_amplitude: Standard deviation of seeds, as a share of the gain. With one seed per setting, the data do not
            determine it, and this prior decides.
        seed_factor: Logarithm of the factor to which it is known.
        seed_timing: Standard deviation of seeds in the logarithm of compute.
        smooth: Standard deviations of the Gaussian process: of the amplitude's logit, and of the logarithm of the half
            compute.
        departure: The same for departures of single cells.
        departure_factor: Logarithm of the factor to which it is known.
        shape: Standard deviation of single cells' log s.
        bend: Standard deviation of single cells' e.
        growth: Median of e over all cells.
        rising: Additional growth of the one curve in ten that grows fast, as a share of its gain per e-fold of compute,
            for each standard deviation beyond the threshold. At two standard deviations it is a third in all, like a
            curve that has grown with log C for three e-folds.
        falling: Loss of the one curve in ten that falls, likewise. One of ScaleRL's five recipes in Figure 2 falls;
            about 3 of 200 runs in this project's panel lose a third of their gain from half of their compute on.
        base_level: Standard deviations between base models, if there are several: of the amplitude's logit, and of the
            logarithm of the half compute.
        base_slope: The same for differences between base models per octave of n, B_p and rate.
        base_departure: The same for single settings of single base models.
        wide: Logarithm of the factor to which ``smooth``, ``seed_timing`` and the deviations of base models are known.
    """

    seed_amplitude: float = 0.06
    seed_factor: float = 0.7
    seed_timing: float = 0.08
    smooth: tuple[float, float] = (0.3, 0.4)
    departure: tuple[float, float] = (0.3, 0.3)
    departure_factor: float = 0.6
    shape: float = 0.1
    bend: float = 0.008
    growth: float = 0.0
    rising: float = 0.25
    falling: float = 1.5
    base_level: tuple[float, float] = (0.4, 0.4)
    base_slope: tuple[float, float] = (0.08, 0.1)
    base_departure: tuple[float, float] = (0.06, 0.08)
    wide: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Numbers that share a deviation: ``median · k``, with ``k = exp(factor · h)`` and h standard normal.

    Attributes:
        median: Median of the deviation, shape ``(rows,)``.
        factor: Logarithm of the factor to which it is known, shape ``(rows,)``.
        centred: The numbers are sampled in units of ``k`` to the power of one minus this: 1 if the data determine each
            number well, 0 if they do not.
        degrees: Degrees of freedom of Student's t; infinite for a normal distribution.
    """

    median: Array
    factor: Array
    centred: float = 1.0
    degrees: float = np.inf


def families(prior: Priors, *, slopes: int, bases: bool) -> dict[str, Family]:
    """The numbers of a sweep with a learned deviation; base models may differ along ``slopes`` axes."""
    known, wide = np.full(2, prior.departure_factor), np.full(2, prior.wide)
    seeds = np.array([prior.seed_amplitude, prior.seed_timing])
    seed_factor = np.array([prior.seed_factor, prior.wide])
    made = {
        "smooth": Family(median=np.array(prior.smooth), factor=wide),
        "departure": Family(median=np.array(prior.departure), factor=known, degrees=DEPARTURE_DEGREES),
        "shapes": Family(median=np.array([prior.shape]), factor=wide[:1], centred=0.7),
        "bends": Family(median=np.array([prior.bend]), factor=known[:1]),
        "seeds": Family(median=seeds, factor=seed_factor, degrees=SEED_DEGREES),
    }
    if bases:
        both = np.array([prior.base_level, *[prior.base_slope] * slopes]).T.ravel()
        made["bases"] = Family(median=both, factor=np.full(len(both), prior.wide))
        made["own"] = Family(median=np.array(prior.base_departure), factor=wide, centred=0.0)
    return made


class Scaled(NamedTuple):
    """Numbers in their own unit.

    Attributes:
        values: By family, shape ``(chains, rows, members)``.
        unit: Value of 1 in the vector, for all families, shape ``(chains, numbers)``.
        whole: All numbers, likewise.
    """

    values: dict[str, Array]
    unit: Array
    whole: Array


@dataclass(frozen=True, kw_only=True)
class Families:
    """All numbers of a sweep with learned deviations, as one array: in their own unit, and their prior.

    Attributes:
        parts: Each family's part of the vector for its numbers and, under ``_sd``, for its deviations.
    """

    families: dict[str, Family]
    parts: dict[str, slice]

    @cached_property
    def deviations(self) -> Index:
        """Indices of all families' deviations, one per row, shape ``(rows,)``."""
        return np.asarray(np.r_[tuple(self.parts[name + "_sd"] for name in self.families)])

    @cached_property
    def numbers(self) -> Index:
        """Indices of all families' numbers, shape ``(numbers,)``."""
        return np.asarray(np.r_[tuple(self.parts[name] for name in self.families)])

    @cached_property
    def _counts(self) -> list[int]:
        """Size of each family."""
        return [self.parts[name].stop - self.parts[name].start for name in self.families]

    @cached_property
    def own(self) -> dict[str, slice]:
        """Each family's part of all ``numbers``."""
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
        """Exponents per h, by row: of the scale of the numbers in the vector, and of the rest of their unit."""
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
        """First number of each row, shape ``(rows,)``."""
        return np.flatnonzero(np.diff(self._row, prepend=-1))

    @cached_property
    def _members(self) -> Array:
        """Number of members in each row, shape ``(rows,)``."""
        return np.bincount(self._row).astype(np.float64)

    def scaled(self, theta: Array) -> Scaled:
        """All numbers in their own unit."""
        unit = _taken(self._median * np.exp(self._powers[1] * _taken(theta, self.deviations)), self._row)
        whole = unit * _taken(theta, self.numbers)
        return Scaled({name: self._rows(whole, name) for name in self.families}, unit, whole)

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations of a family (scales for Student's t), shape ``(chains, rows)``."""
        family = self.families[name]
        return np.asarray(family.median * np.exp(family.factor * theta[:, self.parts[name + "_sd"]]))

    def back(self, by_value: dict[str, Array], scaled: Scaled, gradient: Array) -> None:
        """Write the gradient by the vector, given the gradient by the numbers in their own unit."""
        by_all = np.concatenate([by_value[name].reshape(len(gradient), -1) for name in self.families], axis=1)
        gradient[:, self.numbers] = by_all * scaled.unit
        gradient[:, self.deviations] = self._powers[1] * self._sums(by_all * scaled.whole)

    def prior(self, theta: Array, gradient: Array) -> Array:
        """Log prior density of the numbers given their deviations, shape ``(chains,)``.

        Args:
            gradient: By the vector. The part of the numbers is overwritten, that of the deviations is added to.
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


def _taken(columns: Array, which: Index) -> Array:
    """Select columns in row-major order: indexing would return them column-major and slow down what follows."""
    return np.take(columns, which, axis=1)
