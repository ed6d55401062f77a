"""The joint density of all runs of a sweep: curves that vary smoothly over settings, and seeds about them.

For run r of cell c (one n, B_p and learning rate) from base model b, evaluated at compute C with standard error e:

    reward = R0_b + (1 − R0_b)·σ(a_bc)·(1 + α_r)·rise(s_c·(log C − t_bc − δ_r), q) + noise

* ``a`` (amplitude) and ``t`` (logarithm of the compute of half the gain) are each a line in log2 n and log2 B_p, a
  parabola in log2 of the learning rate over √B whose top may move with n, a Gaussian process over all three, and a
  departure of the single cell, Student-t with 4 degrees of freedom.
* Where there are several base models (or draws of a problem set), each shifts and tilts both, and departs from that at
  single cells: normal, with deviations that are learned.
* ``α`` and ``δ`` are the seeds: Student-t with 6 degrees of freedom, in amplitude (a share of the gain) and timing.
* noise has the standard deviation κ·e and the autocorrelation φ from one evaluation of a run to the next.

All is written in numbers that are standard normal or Student-t before the data are seen (non-centred), so a sampler
needs no constraint. Every function takes a stack of such vectors: the first axis is that of the chains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..data.curves import Array, Mask
from .families import Families, Scaled
from .likelihood import log_likelihood
from .priors import Family, Priors, families
from .rise import Rise, rise
from .runs import Curves, Runs, members
from .settings import Features, coordinates, correlations, features

TAIL = (-2.0, 1.5)
"""Mean and standard deviation of log q: a curve may be an exponential, where q is 0, as well as a power."""


class _Forward(NamedTuple):
    """What a gradient needs of the fitted rewards; by runs."""

    reward: Array
    made: Rise
    gain: Array
    shape: Array
    position: Array
    share: Array
    start: Array
    tail: Array
    numbers: Scaled


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
        """Whether some n and B_p was run at several rates; else rate and n are one axis."""
        settings = [(c.rollouts_per_problem, c.problems_per_batch) for c in self.runs.cells if c.learning_rate]
        return len(set(settings)) < len(settings)

    @cached_property
    def features(self) -> Features:
        """What describes the cells."""
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
        """What a base model's shift and tilts act on: a column of ones, and each axis, shape ``(cells, 1 + axes)``."""
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
        """Where each number stands in a vector."""
        cells, bases, columns = len(self.runs.cells), len(self.runs.bases), self.features.columns.shape[1]
        members = {
            "smooth": cells, "departure": cells, "shapes": cells, "seeds": len(self.runs.cell), "bases": bases,
            "own": len(self.curve.cell),
        }  # fmt: skip
        sizes = {"start": bases, "tail": 1, "shape": 1, "level": 2, "lines": 2 * columns, "excess": 1,
                 "autocorrelation": 1}  # fmt: skip
        for name, family in self.families.items():
            sizes[name + "_sd"] = len(family.median)
            sizes[name] = len(family.median) * members[name]
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @cached_property
    def size(self) -> int:
        """How many numbers there are."""
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
    def _first(self) -> Array:
        """A reward that the runs of each base model begin near, shape ``(bases,)``."""
        first = self.runs.reward[:, 0] @ self._of_base / self._of_base.sum(axis=0)
        return np.asarray(np.clip(first, 0.002, 0.95))

    @cached_property
    def _of_base(self) -> Array:
        """Which base model each run is of, shape ``(runs, bases)``."""
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
        return np.asarray(0.1 + 0.4 * theta[:, self.parts["shape"]])

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
        own, numbers = self.curve.of_run, self._families.scaled(theta)
        both, shapes = self._of_bases(theta, numbers)
        seeds, tail = numbers.values["seeds"], self.tail(theta)
        start = self.start(theta)[:, self.runs.base_of_run]
        share = (1 / (1 + np.exp(-both[:, 0])))[:, own]
        gain = (1 - start) * share * (1 + seeds[:, 0])
        shape = np.exp(shapes)[:, own]
        offset = self._log_compute - (both[:, 1][:, own] + seeds[:, 1])[:, :, None]
        position = shape[:, :, None] * offset
        made = rise(position, tail[:, :, None])
        reward = start[:, :, None] + gain[:, :, None] * made.share
        return _Forward(reward, made, gain, shape, position, share, start, tail, numbers)

    def __call__(self, theta: Array) -> tuple[Array, Array]:
        """Logarithm of the density, shape ``(chains,)``, and its gradient, shape ``(chains, size)``."""
        p = self.parts
        reward, made, gain, shape, position, share, start, tail, numbers = self._forward(theta)
        excess, phi = self.excess(theta), self.autocorrelation(theta)
        noise = log_likelihood(self.runs, reward, excess[:, :, None], phi[:, :, None])
        by_share = noise.by_reward * gain[:, :, None]
        by_position = by_share * made.by_position
        # Before training z is minus infinity and nothing depends on it.
        weighted = np.where(np.isfinite(position), by_position * np.maximum(position, -700.0), 0.0)
        run_gain = (by_share * made.share).sum(axis=2)
        run_timing = -by_position.sum(axis=2) * shape
        gradient = np.empty_like(theta)
        by_start = noise.by_reward.sum(axis=2) - run_gain / (1 - start)
        gradient[:, p["start"]] = (0.5 * start * (1 - start) * by_start) @ self._of_base
        gradient[:, p["tail"]] = TAIL[1] * tail * (by_share * made.by_tail).sum(axis=(1, 2))[:, None]
        by_amplitude = run_gain / (1 + numbers.values["seeds"][:, 0])
        by_numbers = {"seeds": np.stack([by_amplitude, run_timing], axis=1)}
        by_curve = np.stack([run_gain * (1 - share), run_timing], axis=1) @ self.curve.members
        by_numbers |= self._curve_gradient(by_curve, weighted.sum(axis=2) @ self.curve.members, gradient)
        self._families.back(by_numbers, numbers, gradient)
        own = theta[:, p["excess"]]
        floor = 0.2 * np.exp(1.5 * own)
        by_own = 0.75 * floor / (1 + floor) if self.runs.error_is_known else 1.0
        gradient[:, p["excess"]] = by_own * noise.by_log_excess[:, None]
        gradient[:, p["autocorrelation"]] = phi * (1 - phi) * noise.by_autocorrelation[:, None]
        prior, by_prior = self._prior(theta)
        return noise.value + prior, gradient + by_prior

    def _curve_gradient(self, by_curve: Array, by_shape: Array, gradient: Array) -> dict[str, Array]:
        """Chain rule from amplitude, timing and shape of curves to what they are made of; returns that by families."""
        p, described, found = self.parts, self.features, {}
        if "bases" in self.families:
            tilted = by_curve[:, :, None] * self.tilts[self.curve.cell].T
            found = {"bases": tilted @ self.curve.of_base, "own": by_curve}
            by_curve, by_shape = by_curve @ self.curve.of_cell, by_shape @ self.curve.of_cell
        gradient[:, p["level"]] = by_curve.sum(axis=2) * 1.5
        gradient[:, p["lines"]] = ((by_curve @ described.columns) * described.centre[1]).reshape(len(gradient), -1)
        gradient[:, p["shape"]] = 0.4 * by_shape.sum(axis=1, keepdims=True)
        smooth = by_curve @ described.root
        return found | {"smooth": smooth, "departure": by_curve, "shapes": by_shape[:, None]}

    def _prior(self, theta: Array) -> tuple[Array, Array]:
        """Standard normal, but for the families; with the gradient."""
        value, gradient = -0.5 * theta**2, -theta
        value[:, self._families.numbers] = 0.0
        total = self._families.prior(theta, gradient)
        return total + value.sum(axis=1), gradient
