"""The joint density of all runs of a sweep: curves that vary smoothly over settings, and seeds about them.

For run r of cell c (one n, B_p and learning rate) from base model b, evaluated at compute C with standard error e:

    reward = R0_b + j·(1 − 2^(−C/C_j)) + (1 − R0_b)·σ(a_bc)·(1 + α_r)·bent(rise(s_c·(log C − t_bc − δ_r), q)) + noise
    bent(rise) = rise + e_c·v  where e_c > 0,  rise·(1 − f + f·exp(e_c/f·(exp(d·v) − 1)/d))  where e_c < 0
    v = h·log(1 + exp((log C − w_c)/h)), the e-folds of compute since exp(w_c)

* ``a`` (amplitude) and ``t`` (logarithm of the compute of half the gain) are each a line in log2 n and log2 B_p, a
  parabola in log2 of the learning rate over √B whose top may move with n, a Gaussian process over all three, and a
  departure of the single cell, Student-t with 4 degrees of freedom.
* ``j`` is a step that all runs take first, such as to the answer's format; the rise may come late and sudden (large s).
* About a compute exp(w) the curve bends: it gains a share e with every e-fold of compute (growth without end, a second
  rise), or falls (overfitting) to 1 − f of the rise, first by a share −e with every e-fold where d → 0, or with every
  exp(w) of compute where d is 1. Where w lies beyond the data nothing is known of e but its prior, and intervals grow
  with the distance. ``e`` and ``w`` are each a line in log2 n; single cells depart in e.
* Where there are several base models (or draws of a problem set), each shifts and tilts both, and departs from that at
  single cells: normal, with deviations that are learned.
* ``α`` and ``δ`` are the seeds: Student-t with 6 degrees of freedom, in amplitude (a share of the gain) and timing.
* noise has the standard deviation κ·e and the autocorrelation φ from one evaluation of a run to the next.

Everything is written in numbers that are standard normal or Student-t before the data (non-centred), so a sampler needs
no constraint. Every function takes a stack of such vectors, whose first axis is the chains: a step costs mostly numpy's
calls, so chains share them, and so do all families of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array, Mask
from .runs import Curves, Runs, Setting, members

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


TAIL = (-2.0, 1.5)
"""Mean and standard deviation of log q: a curve may be an exponential, where q is 0, as well as a power."""
STEEPNESS = (0.1, 0.4)
"""Of log s = mean + deviation·sinh(x), x standard normal: most curves rise over decades, a few within a doubling."""
STEP = (0.02, 0.7)
"""Standard deviations of j, and of the logarithm of C_j about that of the first evaluation."""
BEND = (0.03, 0.004)
"""Of e = first·sinh(x) at the middle n, and of what an octave of n adds."""
ONSET = (1.2, 0.2)
"""Of w about the logarithm of the largest compute measured, and of what an octave of n adds."""
FALL = 1.5
"""Of the logits of d and f, which are ½ in the median."""
TURN = 0.3
"""h: e-folds of compute over which a curve turns."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The density of the numbers behind a sweep.

    Attributes:
        runs: The data.
        priors: What is expected before them.
    """

    runs: Runs
    priors: Priors = field(default_factory=Priors)

    @cached_property
    def at(self) -> Array:
        """Coordinates of the cells, shape ``(cells, 3)``."""
        return coordinates(self.runs.cells)

    @cached_property
    def centre(self) -> Array:
        """Means of the coordinates, shape ``(3,)``."""
        return np.asarray(self.at.mean(axis=0))

    @cached_property
    def rates(self) -> bool:
        """Return whether some n and B_p was run at several rates; else rate and n are one axis."""
        settings = [(c.rollouts_per_problem, c.problems_per_batch) for c in self.runs.cells if c.learning_rate]
        return len(set(settings)) < len(settings)

    @cached_property
    def features(self) -> Features:
        """The features of the cells."""
        columns, prior = features(self.at, self.centre, rates=self.rates)
        at = self.at if self.rates else self.at * np.array([1.0, 1.0, 0.0])
        root = np.asarray(np.linalg.cholesky(correlations(at, at) + 1e-6 * np.eye(len(at))), dtype=np.float64)
        return Features(columns=columns, centre=prior, root=root)

    @cached_property
    def curve(self) -> Curves:
        """The curves: one for each cell of each base model."""
        return Curves.of(self.runs)

    @cached_property
    def tilts(self) -> Array:
        """Factors of a base model's shift and tilts: a column of ones, and each axis, shape ``(cells, 1 + axes)``."""
        return self.tilts_at(self.at)

    def tilts_at(self, at: Array) -> Array:
        """The same of other settings.

        Args:
            at: Their coordinates, shape ``(cells, 3)``.
        """
        varied = np.ptp(self.at, axis=0) > 0
        varied[2] &= self.rates
        return np.concatenate([np.ones((len(at), 1)), (at - self.centre)[:, varied]], axis=1)

    @cached_property
    def parts(self) -> dict[str, slice]:
        """Part of each kind of number in a vector."""
        cells, bases, columns = len(self.runs.cells), len(self.runs.bases), self.features.columns.shape[1]
        members = {
            "smooth": cells,
            "departure": cells,
            "shapes": cells,
            "bends": cells,
            "seeds": len(self.runs.cell),
            "bases": bases,
            "own": len(self.curve.cell),
        }
        sizes = {
            "start": bases,
            "tail": 1,
            "shape": 1,
            "step": 2,
            "bend": 6,
            "level": 2,
            "lines": 2 * columns,
            "excess": 1,
            "autocorrelation": 1,
        }
        for name, family in self.families.items():
            sizes[name + "_sd"] = len(family.median)
            sizes[name] = len(family.median) * members[name]
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @cached_property
    def size(self) -> int:
        """Numbers in a vector."""
        return max(int(part.stop) for part in self.parts.values())

    @cached_property
    def free(self) -> Mask:
        """All but the deviations, shape ``(size,)``."""
        found = np.ones(self.size, dtype=np.bool_)
        found[self._families.deviations] = False
        return found

    @cached_property
    def _log_compute(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.runs.compute)

    @cached_property
    def _middle(self) -> float:
        """Logarithm of a compute at which half of the gain may be made, before the data are seen."""
        positive = self.runs.compute[self.runs.seen & (self.runs.compute > 0)]
        return float(np.log(positive).mean())

    @cached_property
    def _earliest(self) -> float:
        """Logarithm of the least compute measured after the start."""
        return float(np.log(self.runs.compute[self.runs.seen & (self.runs.compute > 0)].min()))

    @cached_property
    def _latest(self) -> float:
        """Logarithm of the largest compute measured."""
        return float(np.log(self.runs.last.max()))

    @cached_property
    def _first(self) -> Array:
        """A reward that the runs of each base model begin near, shape ``(bases,)``."""
        first = self.runs.reward[:, 0] @ self._of_base / self._of_base.sum(axis=0)
        return np.asarray(np.clip(first, 0.002, 0.95))

    @cached_property
    def _of_cell(self) -> Array:
        """Membership of runs in cells, as ones and zeros, shape ``(runs, cells)``."""
        return members(self.runs.cell, len(self.runs.cells))

    @cached_property
    def _of_base(self) -> Array:
        """Membership of runs in base models, as ones and zeros, shape ``(runs, bases)``."""
        return members(self.runs.base_of_run, len(self.runs.bases))

    @cached_property
    def families(self) -> dict[str, Family]:
        """The numbers whose deviation is learned."""
        several = len(self.runs.bases) > 1
        return families(self.priors, slopes=self.tilts.shape[1] - 1, bases=several)

    @cached_property
    def _families(self) -> Families:
        return Families(families=self.families, parts=self.parts)

    def numbers(self, theta: Array, name: str) -> Array:
        """Numbers of a family in their own unit, shape ``(chains, rows, members)``."""
        return self._families.scaled(theta).values[name]

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations (of the Student-t ones their scale) of a family, shape ``(chains, rows)``."""
        return self._families.deviation(theta, name)

    def excess(self, theta: Array) -> Array:
        """κ, at least 1 where the error of sampling responses is known, shape ``(chains, 1)``."""
        own = theta[:, self.parts["excess"]]
        return np.asarray(np.sqrt(1 + 0.2 * np.exp(1.5 * own)) if self.runs.error_is_known else np.exp(own))

    def autocorrelation(self, theta: Array) -> Array:
        """φ, shape ``(chains, 1)``."""
        return np.asarray(1 / (1 + np.exp(1.5 - theta[:, self.parts["autocorrelation"]])))

    def start(self, theta: Array) -> Array:
        """R0 of every base model, shape ``(chains, bases)``."""
        logit = np.log(self._first / (1 - self._first))
        return np.asarray(1 / (1 + np.exp(-(logit + 0.5 * theta[:, self.parts["start"]]))))

    def tail(self, theta: Array) -> Array:
        """q, shape ``(chains, 1)``."""
        return np.asarray(np.exp(TAIL[0] + TAIL[1] * theta[:, self.parts["tail"]]))

    def shape(self, theta: Array) -> Array:
        """Logarithm of s of all cells together, shape ``(chains, 1)``."""
        return np.asarray(STEEPNESS[0] + STEEPNESS[1] * np.sinh(theta[:, self.parts["shape"]]))

    def step(self, theta: Array) -> tuple[Array, Array]:
        """J and the logarithm of C_j, each of shape ``(chains, 1)``."""
        own = theta[:, self.parts["step"]]
        return STEP[0] * own[:, :1], self._earliest + STEP[1] * own[:, 1:]

    def bends(self, theta: Array) -> Array:
        """E and w of the cells, shape ``(chains, 2, cells)``."""
        return self._bends(theta, self._families.scaled(theta))

    def falling(self, theta: Array) -> tuple[Array, Array]:
        """Speed d and share f of a fall, each of shape ``(chains, 1, 1)``."""
        own = 1 / (1 + np.exp(-FALL * theta[:, self.parts["bend"]][:, 4:]))
        return own[:, :1, None], own[:, 1:, None]

    def _bends(self, theta: Array, numbers: Scaled) -> Array:
        found = self.bend_lines(theta, self.at)
        found[:, 0] += numbers.values["bends"][:, 0]
        return found

    def bend_lines(self, theta: Array, at: Array) -> Array:
        """E and w expected of settings at some coordinates, shape ``(chains, 2, settings)``."""
        own = theta[:, self.parts["bend"], None]
        octaves = at[:, 0] - self.centre[0]
        slope = BEND[0] * np.sinh(own[:, 0]) + BEND[1] * own[:, 1] * octaves
        onset = self._latest + ONSET[0] * own[:, 2] + ONSET[1] * own[:, 3] * octaves
        return np.stack([slope, onset], axis=1)

    def lines(self, theta: Array) -> Array:
        """Level and coefficients of amplitude and timing, shape ``(chains, 2, 1 + columns)``."""
        mean, deviation = self.features.centre
        columns = len(mean)
        level = theta[:, self.parts["level"]] * np.array([1.5, 1.5]) + np.array([0.0, self._middle])
        # The timing has no top that is known before.
        means = np.stack([mean, np.zeros(columns)])
        slopes = means + theta[:, self.parts["lines"]].reshape(-1, 2, columns) * deviation
        return np.concatenate([level[:, :, None], slopes], axis=2)

    def cells(self, theta: Array) -> tuple[Array, Array]:
        """Amplitude and timing of the cells, ``(chains, 2, cells)``, and the logarithm of s, ``(chains, cells)``.

        They are those of no base model in particular.
        """
        return self._cells(theta, self._families.scaled(theta))

    def _cells(self, theta: Array, numbers: Scaled) -> tuple[Array, Array]:
        lines = self.lines(theta)
        line = lines[:, :, :1] + lines[:, :, 1:] @ self.features.columns.T
        both = line + numbers.values["smooth"] @ self.features.root.T + numbers.values["departure"]
        return both, self.shape(theta) + numbers.values["shapes"][:, 0]

    def of_bases(self, theta: Array) -> tuple[Array, Array]:
        """The same of the curves: amplitude and timing, ``(chains, 2, curves)``, and the logarithm of s."""
        return self._of_bases(theta, self._families.scaled(theta))

    def _of_bases(self, theta: Array, numbers: Scaled) -> tuple[Array, Array]:
        both, shapes = self._cells(theta, numbers)
        base, cell = self.curve.base, self.curve.cell
        both = both[:, :, cell]
        if "bases" in self.families:
            shifts = numbers.values["bases"].reshape(len(theta), 2, -1, len(self.runs.bases))[:, :, :, base]
            both = both + (shifts * self.tilts[cell].T).sum(axis=2) + numbers.values["own"]
        return both, shapes[:, cell]

    def curves(self, theta: Array) -> Array:
        """Fitted reward of every run at its evaluations, shape ``(chains, runs, points)``."""
        return self._forward(theta).reward

    def _forward(self, theta: Array) -> _Forward:
        own, cell, numbers = self.curve.of_run, self.runs.cell, self._families.scaled(theta)
        both, shapes = self._of_bases(theta, numbers)
        seeds, tail = numbers.values["seeds"], self.tail(theta)
        start = self.start(theta)[:, self.runs.base_of_run]
        share = (1 / (1 + np.exp(-both[:, 0])))[:, own]
        gain = (1 - start) * share * (1 + seeds[:, 0])
        shape = np.exp(shapes)[:, own]
        offset = self._log_compute - (both[:, 1][:, own] + seeds[:, 1])[:, :, None]
        position = shape[:, :, None] * offset
        made = rise(position, tail[:, :, None])
        height, when = self.step(theta)
        stepped = step_share(self._log_compute - when[:, :, None])
        slope, onset = np.moveaxis(self._bends(theta, numbers)[:, :, cell], 1, 0)
        bend = bent(made.share, slope[:, :, None], self._log_compute - onset[:, :, None], *self.falling(theta))
        reward = start[:, :, None] + height[:, :, None] * stepped.value + gain[:, :, None] * bend.value
        return _Forward(reward, made, gain, shape, position, share, start, tail, numbers, stepped, bend)

    def __call__(self, theta: Array) -> tuple[Array, Array]:
        """Logarithm of the density, shape ``(chains,)``, and its gradient, shape ``(chains, size)``."""
        p = self.parts
        forward = self._forward(theta)
        made, shape, share, numbers = forward.made, forward.shape, forward.share, forward.numbers
        excess, phi = self.excess(theta), self.autocorrelation(theta)
        noise = log_likelihood(self.runs, forward.reward, excess[:, :, None], phi[:, :, None])
        by_value = noise.by_reward * forward.gain[:, :, None]
        by_share = by_value * forward.bend.by_share
        by_position = by_share * made.by_position
        # Before training z is minus infinity and nothing depends on it.
        position = forward.position
        weighted = np.where(np.isfinite(position), by_position * np.maximum(position, -700.0), 0.0)
        run_gain = (by_value * forward.bend.value).sum(axis=2)
        run_timing = -by_position.sum(axis=2) * shape
        gradient = np.empty_like(theta)
        by_start = noise.by_reward.sum(axis=2) - run_gain / (1 - forward.start)
        start = self.start(theta)
        gradient[:, p["start"]] = 0.5 * start * (1 - start) * (by_start @ self._of_base)
        gradient[:, p["tail"]] = TAIL[1] * forward.tail * (by_share * made.by_tail).sum(axis=(1, 2))[:, None]
        self._step_gradient(theta, noise.by_reward, forward.stepped, gradient)
        by_amplitude = run_gain / (1 + numbers.values["seeds"][:, 0])
        by_numbers = {
            "seeds": np.stack([by_amplitude, run_timing], axis=1),
            "bends": self._bend_gradient(theta, by_value, forward.bend, gradient),
        }
        by_curve = np.stack([run_gain * (1 - share), run_timing], axis=1) @ self.curve.members
        by_numbers |= self._curve_gradient(theta, by_curve, weighted.sum(axis=2) @ self.curve.members, gradient)
        self._families.back(by_numbers, numbers, gradient)
        own = theta[:, p["excess"]]
        floor = 0.2 * np.exp(1.5 * own)
        by_own = 0.75 * floor / (1 + floor) if self.runs.error_is_known else 1.0
        gradient[:, p["excess"]] = by_own * noise.by_log_excess[:, None]
        gradient[:, p["autocorrelation"]] = phi * (1 - phi) * noise.by_autocorrelation[:, None]
        prior, by_prior = self._prior(theta)
        return noise.value + prior, gradient + by_prior

    def _step_gradient(self, theta: Array, by_reward: Array, stepped: Turn, gradient: Array) -> None:
        part = self.parts["step"]
        height, _ = self.step(theta)
        by_height = (by_reward * stepped.value).sum(axis=(1, 2))
        by_when = -(by_reward * stepped.by_position).sum(axis=(1, 2)) * height[:, 0]
        gradient[:, part] = np.stack([STEP[0] * by_height, STEP[1] * by_when], axis=1)

    def _bend_gradient(self, theta: Array, by_value: Array, bend: Bend, gradient: Array) -> Array:
        """Chain rule to the lines of e and w and to d; returns the gradient by e of the cells."""
        by_slope = (by_value * bend.by_slope).sum(axis=2)
        by_onset = -(by_value * bend.by_position).sum(axis=2)
        by_speed, by_fall = ((by_value * each).sum(axis=(1, 2)) for each in (bend.by_speed, bend.by_fall))
        speed, fall = (each[:, 0, 0] for each in self.falling(theta))
        by_cell = np.stack([by_slope, by_onset], axis=1) @ self._of_cell
        octaves = self.at[:, 0] - self.centre[0]
        slope, onset = by_cell[:, 0], by_cell[:, 1]
        part = self.parts["bend"]
        own = theta[:, part]
        gradient[:, part] = np.stack(
            [
                BEND[0] * np.cosh(own[:, 0]) * slope.sum(axis=1),
                BEND[1] * slope @ octaves,
                ONSET[0] * onset.sum(axis=1),
                ONSET[1] * onset @ octaves,
                FALL * speed * (1 - speed) * by_speed,
                FALL * fall * (1 - fall) * by_fall,
            ],
            axis=1,
        )
        return np.asarray(by_cell[:, :1])

    def _curve_gradient(self, theta: Array, by_curve: Array, by_shape: Array, gradient: Array) -> dict[str, Array]:
        """Chain rule from amplitude, timing and shape of curves to what they are made of; returns that by families."""
        p, described, found = self.parts, self.features, {}
        if "bases" in self.families:
            tilted = by_curve[:, :, None] * self.tilts[self.curve.cell].T
            found = {"bases": tilted @ self.curve.of_base, "own": by_curve}
            by_curve, by_shape = by_curve @ self.curve.of_cell, by_shape @ self.curve.of_cell
        gradient[:, p["level"]] = by_curve.sum(axis=2) * 1.5
        gradient[:, p["lines"]] = ((by_curve @ described.columns) * described.centre[1]).reshape(len(gradient), -1)
        steepness = STEEPNESS[1] * np.cosh(theta[:, p["shape"]])
        gradient[:, p["shape"]] = steepness * by_shape.sum(axis=1, keepdims=True)
        smooth = by_curve @ described.root
        return found | {"smooth": smooth, "departure": by_curve, "shapes": by_shape[:, None]}

    def _prior(self, theta: Array) -> tuple[Array, Array]:
        """Standard normal, but for the families; with the gradient."""
        value, gradient = -0.5 * theta**2, -theta
        value[:, self._families.numbers] = 0.0
        total = self._families.prior(theta, gradient)
        return total + value.sum(axis=1), gradient


class _Forward(NamedTuple):
    """Intermediate results of the fitted rewards, by runs, that the gradient needs."""

    reward: Array
    made: Rise
    gain: Array
    shape: Array
    position: Array
    share: Array
    start: Array
    tail: Array
    numbers: Scaled
    stepped: Turn
    bend: Bend


class Turn(NamedTuple):
    """A function of log C less that of a compute, and its derivative; shapes broadcast."""

    value: Array
    by_position: Array


def step_share(position: Array) -> Turn:
    """1 − 2^(−C/C_j), the share of the first step that is made; 0 before training."""
    grown = LOG_2 * np.exp(np.minimum(position, LARGEST))
    left = np.exp(-grown)
    return Turn(1.0 - left, grown * left)


class Bend(NamedTuple):
    """A bent rise, and its derivatives by the rise, by e, by log C less w, by d and by f; shapes broadcast."""

    value: Array
    by_share: Array
    by_slope: Array
    by_position: Array
    by_speed: Array
    by_fall: Array


def bent(share: Array, slope: Array, position: Array, speed: Array, fall: Array) -> Bend:
    """A rise that goes on beyond a compute, or falls.

    Args:
        share: The rise without a bend.
        slope: e.
        position: log C − w; minus infinity before training.
        speed: d, above 0.
        fall: f, above 0.
    """
    scaled = np.maximum(position / TURN, -700.0)
    since, turned = TURN * np.logaddexp(0.0, scaled), 1 / (1 + np.exp(-scaled))
    # Where all is lost a little more is no number.
    grown = np.expm1(np.minimum(speed * since, LARGEST))
    worn = grown / speed
    exponent = np.maximum(np.minimum(slope, 0.0) * worn / fall, -LARGEST)
    left = np.exp(exponent)
    falls = slope < 0
    rest = 1.0 - fall + fall * left
    lost = np.where(falls, slope, 0.0) * share * left
    return Bend(
        value=np.where(falls, share * rest, share + slope * since),
        by_share=np.where(falls, rest, 1.0),
        by_slope=np.where(falls, share * left * worn, since),
        by_position=np.where(falls, lost * (grown + 1.0), slope) * turned,
        by_speed=lost * ((grown + 1.0) * since - worn) / speed,
        by_fall=np.where(falls, share * (left * (1.0 - exponent) - 1.0), 0.0),
    )


LOG_2 = float(np.log(2.0))
LARGEST = 60.0
"""Logarithm of w beyond which all of the gain is made."""


class Rise(NamedTuple):
    """The share made, and its derivatives by z = s·log(C/C_half) and by q; shapes broadcast."""

    share: Array
    by_position: Array
    by_tail: Array


def rise(position: Array, tail: Array) -> Rise:
    """The share of the gain made at z = s·log(C/C_half), one family of curves for all forms.

        rise = 1 − (1 + q·w)^(−1/q),   w = w_half·(C/C_half)^s,   w_half = (2^q − 1)/q

    (Burr's twelfth distribution; half of the gain is made at C_half whatever q and s are.) ``q = 1`` is ``hill`` with
    B = s, ``q → 0`` and ``s = 1`` is ``exp``, ``s = 1`` is ``power`` with β = 1/q. So the form is a number to be
    integrated over, not a choice to be made.

    Args:
        position: z; minus infinity before training.
        tail: q, above 0.
    """
    half = np.expm1(tail * LOG_2) / tail
    w = half * np.exp(np.minimum(position, LARGEST))
    grown = tail * w
    spread = 1.0 + grown
    logarithm = np.log1p(grown)
    left = np.exp(-logarithm / tail)
    by_position = left * w / spread
    by_half = LOG_2 / (-np.expm1(-tail * LOG_2)) - 1.0 / tail
    by_tail = left * (w / (tail * spread) - logarithm / tail**2) + by_position * by_half
    return Rise(1.0 - left, by_position, by_tail)


class Likelihood(NamedTuple):
    """The log-likelihood, shape ``(chains,)``, and its derivatives; by rewards, shape ``(chains, runs, points)``."""

    value: Array
    by_reward: Array
    by_log_excess: Array
    by_autocorrelation: Array


def log_likelihood(runs: Runs, reward: Array, excess: Array, phi: Array) -> Likelihood:
    """The likelihood of the evaluations: normal, wider than their errors, autocorrelated within a run.

    A residual in units of κ·e follows that of the evaluation before by φ, with innovations of variance 1 − φ².

    Args:
        reward: Fitted, shape ``(chains, runs, points)``.
        excess: κ, shape ``(chains, 1, 1)``.
        phi: φ, likewise.
    """
    seen, width = runs.seen, excess * runs.error
    residual = np.where(seen, (runs.reward - reward) / width, 0.0)
    left = 1 - phi**2
    root = np.sqrt(left)
    shock = residual.copy()
    shock[:, :, 1:] = np.where(seen[:, 1:], (residual[:, :, 1:] - phi * residual[:, :, :-1]) / root, 0.0)
    points, later = float(seen.sum()), float(seen[:, 1:].sum())
    squares = (shock**2).sum(axis=(1, 2))
    value = -0.5 * squares - points * np.log(excess[:, 0, 0]) - 0.5 * later * np.log(left[:, 0, 0])
    by_residual = -shock
    by_residual[:, :, 1:] /= root
    by_residual[:, :, :-1] += phi / root * shock[:, :, 1:]
    by_reward = np.where(seen, -by_residual / width, 0.0)
    change = -residual[:, :, :-1] / root + shock[:, :, 1:] * phi / left
    # Where nothing was seen the shock is 0.
    turned = (shock[:, :, 1:] * change).sum(axis=(1, 2))
    return Likelihood(value, by_reward, squares - points, later * (phi / left)[:, 0, 0] - turned)


LENGTHS = (2.5, 2.5, 2.0)
"""Octaves of n, B_p and rate over which the Gaussian process forgets: correlation exp(−½) at this distance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Features of cells: columns of a line or parabola, and correlations of a Gaussian process.

    Attributes:
        columns: Shape ``(cells, columns)``; none that is constant over the cells.
        centre: Mean and deviation of each column's prior, shape ``(2, columns)``.
        root: Lower root of the correlations of the cells, shape ``(cells, cells)``.
    """

    columns: Array
    centre: Array
    root: Array


def coordinates(cells: tuple[Setting, ...]) -> Array:
    """log2 n, log2 B_p and log2 of the rate over √B (0 where no rate is known), shape ``(cells, 3)``."""
    rows = []
    for c in cells:
        n, batch = np.log2(c.rollouts_per_problem), np.log2(c.problems_per_batch)
        rate = 0.0 if c.learning_rate is None else np.log2(c.learning_rate) - (n + batch) / 2
        rows.append((n, batch, rate))
    return np.array(rows)


def features(at: Array, centre: Array, *, rates: bool) -> tuple[Array, Array]:
    """Columns of the line and the parabola, and the mean and deviation of the prior of their coefficients.

    Args:
        at: From ``coordinates``, shape ``(cells, 3)``.
        centre: What the coordinates are taken from, shape ``(3,)``.

    Returns:
        Shapes ``(cells, columns)`` and ``(2, columns)``.
    """
    n, batch, rate = (at - centre).T
    columns, prior = [n, batch], [(0.0, 0.25), (0.0, 0.25)]
    if rates:
        columns += [rate, rate**2, rate * n]
        # The reward falls on both sides of the best rate.
        prior += [(0.0, 0.7), (-0.3, 0.3), (0.0, 0.2)]
    return np.stack(columns, axis=1), np.array(prior).T


def correlations(first: Array, second: Array) -> Array:
    """Of the Gaussian process between settings, shape ``(first, second)``."""
    distance = (first[:, None] - second[None]) / np.array(LENGTHS)
    return np.asarray(np.exp(-0.5 * (distance**2).sum(axis=2)))


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
    """

    values: dict[str, Array]
    unit: Array


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

    def scaled(self, theta: Array) -> Scaled:
        """All numbers in their own unit."""
        unit = _taken(self._median * np.exp(self._powers[1] * _taken(theta, self.deviations)), self._row)
        values = unit * _taken(theta, self.numbers)
        return Scaled({name: self._rows(values, name) for name in self.families}, unit)

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations (of the Student-t ones their scale) of a family, shape ``(chains, rows)``."""
        family = self.families[name]
        return np.asarray(family.median * np.exp(family.factor * theta[:, self.parts[name + "_sd"]]))

    def back(self, by_value: dict[str, Array], scaled: Scaled, gradient: Array) -> None:
        """Write the gradient by the vector, from that by the numbers in their own unit."""
        by_all = np.empty_like(scaled.unit)
        for name, own in self.own.items():
            by_all[:, own] = by_value[name].reshape(len(gradient), -1)
            family, deviation = self.families[name], self.parts[name + "_sd"]
            gradient[:, deviation] = 0.0
            if family.centred < 1:
                turned = (by_value[name] * scaled.values[name]).sum(axis=2)
                gradient[:, deviation] = (1 - family.centred) * family.factor * turned
        gradient[:, self.numbers] = by_all * scaled.unit

    def prior(self, theta: Array, gradient: Array) -> Array:
        """Logarithm of the prior density of the numbers, shape ``(chains,)``, given their deviations.

        Args:
            gradient: By the vector; its numbers are written, and what deviations add to it is added.
        """
        scale = np.exp(self._powers[0] * _taken(theta, self.deviations))
        wide = _taken(scale, self._row)
        unit = _taken(theta, self.numbers) / wide
        density, slope = -0.5 * unit**2, -unit
        heavy, degrees = self._heavy
        far = _taken(unit, heavy)
        square = far**2
        density[:, heavy] = -0.5 * (degrees + 1) * np.log1p(square / degrees)
        slope[:, heavy] = -(degrees + 1) * far / (degrees + square)
        density -= _taken(np.log(scale), self._row)
        gradient[:, self.numbers] = slope / wide
        turned = slope * unit
        total = np.zeros(len(theta))
        for name, family in self.families.items():
            total += self._rows(density, name).sum(axis=(1, 2))
            if family.centred > 0:
                rows = self._rows(turned, name)
                power = family.centred * family.factor
                gradient[:, self.parts[name + "_sd"]] -= power * (rows.sum(axis=2) + rows.shape[2])
        return total

    def _rows(self, numbers: Array, name: str) -> Array:
        """One family of all numbers, shape ``(chains, rows, members)``."""
        return numbers[:, self.own[name]].reshape(len(numbers), len(self.families[name].median), -1)


def _places(part: slice) -> Index:
    return np.arange(part.start, part.stop)


def _taken(columns: Array, which: Index) -> Array:
    """Some columns, contiguous by rows: an index would leave them contiguous by columns, and what follows slow."""
    return np.take(columns, which, axis=1)
