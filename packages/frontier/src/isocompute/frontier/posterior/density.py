"""The log-density of a sweep, in two halves: the likelihood of its evaluations, and the prior of families of numbers.

All that is done once for each evaluation and chain is in the likelihood, and nearly all of a fit's time. It runs over
blocks of runs and chains so small that their intermediate results stay in the processor's cache, writes these where the
last ones were, and keeps of each derivative, by what a run's curve is made of, its sum over a run. The equations are
those of ``model.py``.

A family of numbers shares a learned deviation: seeds, departures of single settings, what varies smoothly.
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
"""h: e-folds of compute over which a curve turns."""
LOG_2 = float(np.log(2.0))
LARGEST = 60.0
"""Logarithm of w beyond which all of the gain is made."""


def step_share(position: Array) -> Array:
    """1 − 2^(−C/C_j), the share of the first step that is made, of log C − log C_j; 0 before training."""
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


BLOCK = 65536
"""Evaluations times chains of a block."""
ROWS = 128
"""Runs of a block at most: a sum over those of a bend costs as many multiplications as the block has bends."""
BUFFERS = 8
BEFORE = -1e200
"""Logarithm of the compute before training: times any steepness nothing is made, and times 0 it is 0."""


class Numbers(NamedTuple):
    """What the curves of all runs are made of, or derivatives by it.

    The first four are of each run, shape ``(chains, runs)``, the next two of each setting, shape ``(chains, cells)``,
    the others of all together, shape ``(chains,)``.
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
        runs: Which they are.
        bend: Index of each one's bend, shape ``(runs,)``.
        members: Membership of runs in bends, as ones and zeros, shape ``(bends, runs)``.
        compute: Of each bend, shape ``(bends, points)``.
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
        steps: Share of the first step that is not made.
        turned: Derivative of ``since`` by log C, times h.
        since: v, in units of h.
        grown: exp(d·v).
        kept: Of what may be lost.
        rest: What the rise is multiplied by.
        further: The share of the gain that is added to it.
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

    A residual in units of κ·e follows that of the evaluation before by φ, with innovations of variance 1 − φ².

    Attributes:
        compute: Shape ``(runs, points)``; 0 where nothing was seen.
        log_compute: Its logarithm, finite before training.
        reward: Measured.
        weight: 1/e; 0 where nothing was seen.
        seen: None where all was.
        cell: Index of each run's setting, shape ``(runs,)``.
        count: Evaluations, and those of them that follow another.
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
        """That of some runs."""
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
        """The runs in blocks of so many."""
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
        """Where the curves of a block step and bend."""
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
            room: Shape ``(BUFFERS, chains, runs, points)``; nothing is read from it.
            sums: Written, shape ``(5, chains, runs)``.
            squares: Of first and of later innovations, and these times φ and the residual before; written.

        Returns:
            Sums over the runs of each bend, shape ``(3, chains, bends, points)``: of the derivative by rewards, of that
            by the share of the gain, and of this times the rise.
        """
        runs = block.runs
        start, gain, shape, timing = (each[:, runs, None] for each in at[:4])
        tail, height, phi = (each[:, None, None] for each in (at.tail, at.height, at.phi))
        made, logarithm, left, share, rest, value, residual, spare = room
        # The rise: ``made`` is q times its derivative by z over what is ``left`` of it.
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
        # Innovations: a residual less φ times the one before; all runs in a row, then the first of each alone.
        shocks, before, flat = spare, np.empty_like(spare), (len(residual), -1)
        np.multiply(residual, phi, out=before)
        np.subtract(residual.reshape(flat)[:, 1:], before.reshape(flat)[:, :-1], out=shocks.reshape(flat)[:, 1:])
        shocks[:, :, 0] = residual[:, :, 0]
        if self.seen is not None:
            shocks *= self.seen[runs]
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
            by: As ``_curves`` returns it.
            settings: By e and w, shape ``(2, chains, cells)``.
            whole: By j, log C_j, d and f, shape ``(4, chains)``.
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
        growth: Of e, of all cells.
        rising: What a curve of the one in ten that grow fast gains more, as a share of its gain per e-fold of compute,
            for each standard deviation beyond: two out a third in all, as a curve does that has grown with log C for
            three e-folds.
        falling: What one of the one in ten that fall loses, likewise. Of ScaleRL's five recipes in Figure 2 one falls;
            of the runs of this project's panel about 3 of 200 lose a third of their gain from half of their compute on.
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
        median: Of the deviation, shape ``(rows,)``.
        factor: Logarithm of the factor to which it is known, shape ``(rows,)``.
        centred: The numbers are sampled in units of ``k`` to the power of one minus this: 1 where the data say much
            of each, 0 where they say little.
        degrees: Of freedom of Student's t; infinite for a normal distribution.
    """

    median: Array
    factor: Array
    centred: float = 1.0
    degrees: float = np.inf


def families(prior: Priors, *, slopes: int, bases: bool) -> dict[str, Family]:
    """The numbers of a sweep whose deviation is learned; ``slopes`` are axes along which base models may differ."""
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
        return np.asarray(np.r_[tuple(self.parts[name + "_sd"] for name in self.families)])

    @cached_property
    def numbers(self) -> Index:
        """Indices of the numbers of all families, shape ``(numbers,)``."""
        return np.asarray(np.r_[tuple(self.parts[name] for name in self.families)])

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


def _taken(columns: Array, which: Index) -> Array:
    """Some columns, contiguous by rows: an index would leave them contiguous by columns, and what follows slow."""
    return np.take(columns, which, axis=1)
