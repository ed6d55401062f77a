"""The joint density of all runs of a sweep: curves that vary smoothly over settings, and seeds about them.

For run r of cell c (one n, B_p and learning rate) from base model b, evaluated at compute C with standard error e:

    reward = R0_b + j·(1 − 2^(−C/C_j)) + (1 − R0_b)·σ(a_bc)·(1 + α_r)·bent(rise(s_c·(log C − t_bc − δ_r), q)) + noise
    bent(rise) = rise + e_c·v  where e_c > 0,  rise·(1 − f + f·exp(e_c/f·(exp(d·v) − 1)/d))  where e_c < 0
    v = h·log(1 + exp((log C − w_c)/h)), the e-folds of compute since exp(w_c)

* ``a`` (amplitude) and ``t`` (logarithm of the compute of half the gain) each have four parts: a line in log2 n and
  log2 B_p, a parabola in log2 of the learning rate over √B whose top may move with n, a Gaussian process over all
  three, and a departure of the single cell, Student-t with 4 degrees of freedom.
* ``j`` is a step that all runs take first, such as learning the answer's format; the rise may come late and suddenly
  (large s).
* Around a compute of exp(w) the curve bends. It gains a share e with every e-fold of compute (growth without end, a
  second rise), or falls (overfitting) to 1 − f of the rise. It falls at first by a share −e: with every e-fold if d →
  0, with every exp(w) of compute if d is 1. If w lies beyond the data, only the prior of e is known, and intervals grow
  with the distance. ``e`` and ``w`` are each a line in log2 n; single cells depart in e.
* If there are several base models (or draws of a problem set), each shifts and tilts both ``a`` and ``t``, and departs
  from that at single cells: normal, with learned deviations.
* ``α`` and ``δ`` are the seeds: Student-t with 6 degrees of freedom, in amplitude (a share of the gain) and timing.
* noise has the standard deviation κ·e and the autocorrelation φ between consecutive evaluations of a run.

All numbers are standard normal or Student-t before the data (non-centred), so a sampler needs no constraints. Every
function takes a stack of such vectors, with the chains as the first axis. A step costs mostly the overhead of numpy
calls, which chains and families of numbers therefore share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ..data.curves import Array, Mask
from .density import Families, Family, Likelihood, Numbers, Priors, Scaled, bent, families, rise, step_share
from .runs import Curves, Runs, Setting, members

TAIL = (-2.0, 1.5)
"""Mean and standard deviation of log q: a curve may be an exponential, with q = 0, or a power."""
STEEPNESS = (0.1, 0.4)
"""Mean and deviation in log s = mean + deviation·sinh(x), x standard normal: most curves rise over decades, a few
within a doubling."""
STEP = (0.02, 0.7)
"""Standard deviations of j, and of the logarithm of C_j about that of the first evaluation."""
BEND = (0.03, 0.004)
"""Scale in e = scale·sinh(x) at the middle n, x standard normal; and standard deviation of the change per octave of
n."""
RARE = (1.3, 0.15)
"""Standard deviations of e beyond which the one curve in ten that falls lies, or the one that grows fast; and how
sharply that sets in."""
ONSET = (1.2, 0.2)
"""Standard deviations of w about the logarithm of the largest compute measured, and of its change per octave of n."""
FALL = 1.5
"""Standard deviation of the logits of d and f, whose medians are ½."""
LENGTHS = (2.5, 2.5, 2.0)
"""Length scales of the Gaussian process in octaves of n, B_p and rate: correlation exp(−½) at this distance."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The density of the numbers that describe a sweep.

    Attributes:
        runs: The data.
        priors: Expectations before the data.
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
        """Return whether some n and B_p was run at several rates; otherwise rate and n are one axis."""
        settings = [(c.rollouts_per_problem, c.problems_per_batch) for c in self.runs.cells if c.learning_rate]
        return len(set(settings)) < len(settings)

    @cached_property
    def features(self) -> tuple[Array, Array]:
        """``features_at`` for the cells."""
        return self.features_at(self.at)

    def features_at(self, at: Array) -> tuple[Array, Array]:
        """Columns of the line and the parabola, and prior mean and deviation of their coefficients.

        Args:
            at: Coordinates of settings, shape ``(settings, 3)``.

        Returns:
            Shapes ``(settings, columns)`` and ``(2, columns)``.
        """
        n, batch, rate = (at - self.centre).T
        columns, prior = [n, batch], [(0.0, 0.25), (0.0, 0.25)]
        if self.rates:
            columns += [rate, rate**2, rate * n]
            # The reward falls on both sides of the best rate.
            prior += [(0.0, 0.7), (-0.3, 0.3), (0.0, 0.2)]
        return np.stack(columns, axis=1), np.array(prior).T

    @cached_property
    def root(self) -> Array:
        """Lower Cholesky root of the cells' correlations, shape ``(cells, cells)``."""
        return np.asarray(np.linalg.cholesky(self.correlations(self.at) + 1e-6 * np.eye(len(self.at))))

    def correlations(self, at: Array) -> Array:
        """Correlations of the Gaussian process between the cells and other settings, shape ``(cells, settings)``."""
        used = np.array([1.0, 1.0, float(self.rates)])
        distance = ((self.at * used)[:, None] - (at * used)[None]) / np.array(LENGTHS)
        return np.asarray(np.exp(-0.5 * (distance**2).sum(axis=2)))

    @cached_property
    def curve(self) -> Curves:
        """The curves: one for each cell of each base model."""
        return Curves.of(self.runs)

    @cached_property
    def tilts(self) -> Array:
        """``tilts_at`` for the cells."""
        return self.tilts_at(self.at)

    def tilts_at(self, at: Array) -> Array:
        """Factors of a base model's shift and tilts: a column of ones, and each axis, shape ``(cells, 1 + axes)``."""
        varied = np.ptp(self.at, axis=0) > 0
        varied[2] &= self.rates
        return np.concatenate([np.ones((len(at), 1)), (at - self.centre)[:, varied]], axis=1)

    @cached_property
    def parts(self) -> dict[str, slice]:
        """Part of the vector for each kind of number."""
        cells, bases, columns = len(self.runs.cells), len(self.runs.bases), self.features[0].shape[1]
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
        """Length of a vector."""
        return max(int(part.stop) for part in self.parts.values())

    @cached_property
    def free(self) -> Mask:
        """Mask of all numbers except the deviations, shape ``(size,)``."""
        found = np.ones(self.size, dtype=np.bool_)
        found[self._families.deviations] = False
        return found

    @cached_property
    def apart(self) -> NDArray[np.int64]:
        """Indices of each run's seed amplitude and timing, independent given all else, shape ``(runs, 2)``."""
        part = self.parts["seeds"]
        return np.arange(part.start, part.stop).reshape(2, -1).T

    @cached_property
    def middle(self) -> float:
        """Logarithm of a plausible compute for half of the gain, before the data are seen."""
        return float(np.log(self._positive).mean())

    @cached_property
    def _positive(self) -> Array:
        """Compute of all evaluations after the start."""
        return self.runs.compute[self.runs.seen & (self.runs.compute > 0)]

    @cached_property
    def _first(self) -> Array:
        """A reward near the start of each base model's runs, shape ``(bases,)``."""
        first = self.runs.reward[:, 0] @ self._of_base / self._of_base.sum(axis=0)
        return np.asarray(np.clip(first, 0.002, 0.95))

    @cached_property
    def _of_base(self) -> Array:
        """Membership of runs in base models, as ones and zeros, shape ``(runs, bases)``."""
        return members(self.runs.base, len(self.runs.bases))

    @cached_property
    def families(self) -> dict[str, Family]:
        """The numbers with a learned deviation."""
        return families(self.priors, slopes=self.tilts.shape[1] - 1, bases=len(self.runs.bases) > 1)

    @cached_property
    def _families(self) -> Families:
        return Families(families=self.families, parts=self.parts)

    def numbers(self, theta: Array, name: str) -> Array:
        """Numbers of a family in their own unit, shape ``(chains, rows, members)``."""
        return self._families.scaled(theta).values[name]

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations of a family (scales for Student's t), shape ``(chains, rows)``."""
        return self._families.deviation(theta, name)

    def excess(self, theta: Array) -> Array:
        """κ, at least 1 if the error of sampling responses is known, shape ``(chains, 1)``."""
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
        """Logarithm of s common to all cells, shape ``(chains, 1)``."""
        return np.asarray(STEEPNESS[0] + STEEPNESS[1] * np.sinh(theta[:, self.parts["shape"]]))

    def step(self, theta: Array) -> tuple[Array, Array]:
        """J and the logarithm of C_j, each of shape ``(chains, 1)``."""
        own = theta[:, self.parts["step"]]
        return STEP[0] * own[:, :1], float(np.log(self._positive.min())) + STEP[1] * own[:, 1:]

    def bends(self, theta: Array, numbers: Scaled | None = None) -> Array:
        """Slope e and onset w of the cells, shape ``(chains, 2, cells)``; ``numbers`` are ``theta``'s, if known."""
        found = self.bend_lines(theta, self.at)
        found[:, 0] += (numbers or self._families.scaled(theta)).values["bends"][:, 0]
        return found

    def falling(self, theta: Array) -> tuple[Array, Array]:
        """Speed d and share f of a fall, each of shape ``(chains, 1, 1)``."""
        own = 1 / (1 + np.exp(-FALL * theta[:, self.parts["bend"]][:, 4:]))
        return own[:, :1, None], own[:, 1:, None]

    def bend_lines(self, theta: Array, at: Array) -> Array:
        """Expected e and w of settings at the given coordinates, shape ``(chains, 2, settings)``."""
        own = theta[:, self.parts["bend"], None]
        octaves = at[:, 0] - self.centre[0]
        slope = self._bend(own[:, 0])[0] + BEND[1] * own[:, 1] * octaves
        onset = float(np.log(self._positive.max())) + ONSET[0] * own[:, 2] + ONSET[1] * own[:, 3] * octaves
        return np.stack([slope, onset], axis=1)

    def _bend(self, own: Array) -> tuple[Array, Array]:
        """Slope e at the middle n, and its derivative."""
        (first, sharp), priors = RARE, self.priors
        up, down = (own - first) / sharp, (-own - first) / sharp
        beyond = priors.rising * np.logaddexp(0.0, up) - priors.falling * np.logaddexp(0.0, down)
        slope = priors.growth + BEND[0] * np.sinh(own) + sharp * beyond
        return slope, BEND[0] * np.cosh(own) + priors.rising * expit(up) + priors.falling * expit(down)

    def lines(self, theta: Array) -> Array:
        """Level and coefficients of amplitude and timing, shape ``(chains, 2, 1 + columns)``."""
        mean, deviation = self.features[1]
        columns = len(mean)
        level = theta[:, self.parts["level"]] * np.array([1.5, 1.5]) + np.array([0.0, self.middle])
        # Nothing is known in advance about a maximum of the timing.
        means = np.stack([mean, np.zeros(columns)])
        slopes = means + theta[:, self.parts["lines"]].reshape(-1, 2, columns) * deviation
        return np.concatenate([level[:, :, None], slopes], axis=2)

    def cells(self, theta: Array, numbers: Scaled | None = None) -> tuple[Array, Array]:
        """Amplitude and timing of the cells, ``(chains, 2, cells)``, and the logarithm of s, ``(chains, cells)``.

        They do not belong to a particular base model.
        """
        numbers = numbers or self._families.scaled(theta)
        lines = self.lines(theta)
        line = lines[:, :, :1] + lines[:, :, 1:] @ self.features[0].T
        both = line + numbers.values["smooth"] @ self.root.T + numbers.values["departure"]
        return both, self.shape(theta) + numbers.values["shapes"][:, 0]

    def of_bases(self, theta: Array, numbers: Scaled | None = None) -> tuple[Array, Array]:
        """The same for the curves: amplitude and timing, ``(chains, 2, curves)``, and the logarithm of s."""
        numbers = numbers or self._families.scaled(theta)
        both, shapes = self.cells(theta, numbers)
        base, cell = self.curve.base, self.curve.cell
        both = both[:, :, cell]
        if "bases" in self.families:
            shifts = numbers.values["bases"].reshape(len(theta), 2, -1, len(self.runs.bases))[:, :, :, base]
            both = both + (shifts * self.tilts[cell].T).sum(axis=2) + numbers.values["own"]
        return both, shapes[:, cell]

    def curves(self, theta: Array) -> Array:
        """Fitted reward of every run at its evaluations, shape ``(chains, runs, points)``."""
        made, log_compute = self._made_of(theta)[0], self._likelihood.log_compute
        start, gain, shape, timing = (each[:, :, None] for each in made[:4])
        slope, onset = (each[:, self.runs.cell, None] for each in made[4:6])
        tail, height, when, speed, fall = (each[:, None, None] for each in made[6:11])
        share = rise(shape * (log_compute - timing), tail)
        risen = bent(share, slope, log_compute - onset, speed, fall)
        return np.asarray(start + height * step_share(log_compute - when) + gain * risen)

    @cached_property
    def _likelihood(self) -> Likelihood:
        return Likelihood.of(self.runs)

    def _made_of(self, theta: Array) -> tuple[Numbers, Scaled, Array]:
        """Parameters of the runs' curves, the numbers of families, and the amplitude's share by run."""
        own, numbers = self.curve.of_run, self._families.scaled(theta)
        both, shapes = self.of_bases(theta, numbers)
        seeds, bends = numbers.values["seeds"], self.bends(theta, numbers)
        start = self.start(theta)[:, self.runs.base]
        share = (1 / (1 + np.exp(-both[:, 0])))[:, own]
        height, when = self.step(theta)
        speed, fall = self.falling(theta)
        made = Numbers(
            start=start,
            gain=(1 - start) * share * (1 + seeds[:, 0]),
            shape=np.exp(shapes)[:, own],
            timing=both[:, 1][:, own] + seeds[:, 1],
            slope=bends[:, 0],
            onset=bends[:, 1],
            tail=self.tail(theta)[:, 0],
            height=height[:, 0],
            when=when[:, 0],
            speed=speed[:, 0, 0],
            fall=fall[:, 0, 0],
            excess=self.excess(theta)[:, 0],
            phi=self.autocorrelation(theta)[:, 0],
        )
        return made, numbers, share

    def __call__(self, theta: Array) -> tuple[Array, Array]:
        """Log density, shape ``(chains,)``, and its gradient, shape ``(chains, size)``."""
        p = self.parts
        made, numbers, share = self._made_of(theta)
        value, by = self._likelihood(made)
        gradient = np.empty_like(theta)
        run_gain = by.gain * made.gain
        by_start = by.start - run_gain / (1 - made.start)
        start = self.start(theta)
        gradient[:, p["start"]] = 0.5 * start * (1 - start) * (by_start @ self._of_base)
        gradient[:, p["tail"]] = (TAIL[1] * made.tail * by.tail)[:, None]
        gradient[:, p["step"]] = np.stack([STEP[0] * by.height, STEP[1] * by.when], axis=1)
        by_amplitude = run_gain / (1 + numbers.values["seeds"][:, 0])
        by_numbers = {
            "seeds": np.stack([by_amplitude, by.timing], axis=1),
            "bends": self._bend_gradient(theta, made, by, gradient),
        }
        by_curve = np.stack([run_gain * (1 - share), by.timing], axis=1) @ self.curve.members
        by_numbers |= self._curve_gradient(theta, by_curve, (by.shape * made.shape) @ self.curve.members, gradient)
        self._families.back(by_numbers, numbers, gradient)
        own = theta[:, p["excess"]]
        floor = 0.2 * np.exp(1.5 * own)
        by_own = 0.75 * floor / (1 + floor) if self.runs.error_is_known else 1.0
        gradient[:, p["excess"]] = by_own * (by.excess * made.excess)[:, None]
        gradient[:, p["autocorrelation"]] = (made.phi * (1 - made.phi) * by.phi)[:, None]
        prior, by_prior = self._prior(theta)
        return value + prior, gradient + by_prior

    def tempered(self, power: float) -> Callable[[Array], tuple[Array, Array]]:
        """The density with the likelihood raised to a power."""

        def density(theta: Array) -> tuple[Array, Array]:
            (value, gradient), (prior, by_prior) = self(theta), self._prior(theta)
            return power * value + (1 - power) * prior, power * gradient + (1 - power) * by_prior

        return density

    def _bend_gradient(self, theta: Array, made: Numbers, by: Numbers, gradient: Array) -> Array:
        """Write the gradient by the lines of e and w and by d and f; return the gradient by the cells' e."""
        octaves, slope, onset = self.at[:, 0] - self.centre[0], by.slope, by.onset
        part = self.parts["bend"]
        own = theta[:, part]
        gradient[:, part] = np.stack(
            [
                self._bend(own[:, 0])[1] * slope.sum(axis=1),
                BEND[1] * slope @ octaves,
                ONSET[0] * onset.sum(axis=1),
                ONSET[1] * onset @ octaves,
                FALL * made.speed * (1 - made.speed) * by.speed,
                FALL * made.fall * (1 - made.fall) * by.fall,
            ],
            axis=1,
        )
        return slope[:, None]

    def _curve_gradient(self, theta: Array, by_curve: Array, by_shape: Array, gradient: Array) -> dict[str, Array]:
        """Apply the chain rule to the parts of the curves' amplitude, timing and shape; return that by families."""
        p, (columns, prior), found = self.parts, self.features, {}
        if "bases" in self.families:
            tilted = by_curve[:, :, None] * self.tilts[self.curve.cell].T
            found = {"bases": tilted @ self.curve.of_base, "own": by_curve}
            by_curve, by_shape = by_curve @ self.curve.of_cell, by_shape @ self.curve.of_cell
        gradient[:, p["level"]] = by_curve.sum(axis=2) * 1.5
        gradient[:, p["lines"]] = ((by_curve @ columns) * prior[1]).reshape(len(gradient), -1)
        steepness = STEEPNESS[1] * np.cosh(theta[:, p["shape"]])
        gradient[:, p["shape"]] = steepness * by_shape.sum(axis=1, keepdims=True)
        smooth = by_curve @ self.root
        return found | {"smooth": smooth, "departure": by_curve, "shapes": by_shape[:, None]}

    def _prior(self, theta: Array) -> tuple[Array, Array]:
        """Log prior and its gradient: standard normal, except for the families."""
        value, gradient = -0.5 * theta**2, -theta
        value[:, self._families.numbers] = 0.0
        total = self._families.prior(theta, gradient)
        return total + value.sum(axis=1), gradient


def coordinates(cells: tuple[Setting, ...]) -> Array:
    """log2 n, log2 B_p and log2 of the rate over √B (0 if no rate is known), shape ``(cells, 3)``."""
    rows = []
    for c in cells:
        n, batch = np.log2(c.rollouts_per_problem), np.log2(c.problems_per_batch)
        rate = 0.0 if c.learning_rate is None else np.log2(c.learning_rate) - (n + batch) / 2
        rows.append((n, batch, rate))
    return np.array(rows)
