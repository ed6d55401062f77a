"""The joint density of all runs of a sweep: curves that vary smoothly over settings, and seeds about them.

For run r of cell c (one n, B_p and learning rate), evaluated at compute C with standard error e:

    reward = R0 + (1 − R0)·σ(a_c)·(1 + α_r)·rise(s_c·(log C − t_c − δ_r), q) + noise

* ``a`` (amplitude) and ``t`` (logarithm of the compute of half the gain) are each a line in log2 n and log2 B_p, a
  parabola in log2 of the learning rate over √B whose top may move with n, a Gaussian process over all three, and a
  departure of the single cell, Student-t with 4 degrees of freedom.
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
from .priors import Family, Priors, families
from .rise import Rise, rise
from .runs import Runs
from .settings import Features, coordinates, correlations, features


class _Forward(NamedTuple):
    """What a gradient needs of the fitted rewards; by runs, but ``share``, which is by cells."""

    reward: Array
    made: Rise
    gain: Array
    shape: Array
    position: Array
    share: Array
    seeds: Array
    start: Array


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
    def parts(self) -> dict[str, slice]:
        """Where each number stands in a vector."""
        cells, runs = len(self.runs.cells), len(self.runs.cell)
        columns = self.features.columns.shape[1]
        sizes = {
            "start": 1, "tail": 1, "shape": 1, "level": 2, "lines": 2 * columns,
            "smooth_sd": 2, "departure_sd": 2, "seeds_sd": 2, "shapes_sd": 1, "excess": 1, "autocorrelation": 1,
            "smooth": 2 * cells, "departure": 2 * cells, "shapes": cells, "seeds": 2 * runs,
        }  # fmt: skip
        found, begin = {}, 0
        for name, size in sizes.items():
            found[name] = slice(begin, begin + size)
            begin += size
        return found

    @cached_property
    def size(self) -> int:
        """How many numbers there are."""
        return int(self.parts["seeds"].stop)

    @cached_property
    def free(self) -> Mask:
        """All but the deviations, shape ``(size,)``."""
        found = np.ones(self.size, dtype=np.bool_)
        for name in self.families:
            found[self.parts[name + "_sd"]] = False
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
    def _first(self) -> float:
        """A reward that the runs begin near."""
        return float(np.clip(self.runs.reward[:, 0].mean(), 0.002, 0.95))

    @cached_property
    def _member(self) -> Array:
        """Which cell each run is of, shape ``(runs, cells)``."""
        return np.asarray((self.runs.cell[:, None] == np.arange(len(self.runs.cells))).astype(np.float64))

    @cached_property
    def families(self) -> dict[str, Family]:
        """The numbers whose deviation is learned."""
        return families(self.priors)

    def numbers(self, theta: Array, name: str) -> Array:
        """Numbers of a family in their own unit, shape ``(chains, rows, members)``."""
        family = self.families[name]
        size = family.size(theta[:, self.parts[name + "_sd"]], 1 - family.centred)
        own = theta[:, self.parts[name]].reshape(*size.shape, -1)
        return np.asarray(np.array(family.median)[:, None] * size[:, :, None] * own)

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations (of the Student-t ones their scale) of a family, shape ``(chains, rows)``."""
        family = self.families[name]
        return np.asarray(np.array(family.median) * family.size(theta[:, self.parts[name + "_sd"]], 1.0))

    def excess(self, theta: Array) -> Array:
        """κ, at least 1 where the error of sampling responses is known, shape ``(chains, 1)``."""
        own = theta[:, self.parts["excess"]]
        return np.asarray(np.sqrt(1 + 0.2 * np.exp(1.5 * own)) if self.runs.error_is_known else np.exp(own))

    def autocorrelation(self, theta: Array) -> Array:
        """φ, shape ``(chains, 1)``."""
        return np.asarray(1 / (1 + np.exp(1.5 - theta[:, self.parts["autocorrelation"]])))

    def start(self, theta: Array) -> Array:
        """R0, shape ``(chains, 1)``."""
        logit = np.log(self._first / (1 - self._first))
        return np.asarray(1 / (1 + np.exp(-(logit + 0.5 * theta[:, self.parts["start"]]))))

    def tail(self, theta: Array) -> Array:
        """q, shape ``(chains, 1)``."""
        return np.asarray(np.exp(-0.5 + 0.7 * theta[:, self.parts["tail"]]))

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
        """Amplitude and timing of the cells, ``(chains, 2, cells)``, and the logarithm of s, ``(chains, cells)``."""
        lines = self.lines(theta)
        line = lines[:, :, :1] + lines[:, :, 1:] @ self.features.columns.T
        both = line + self.numbers(theta, "smooth") @ self.features.root.T + self.numbers(theta, "departure")
        return both, self.shape(theta) + self.numbers(theta, "shapes")[:, 0]

    def curves(self, theta: Array) -> Array:
        """Fitted reward of every run at its evaluations, shape ``(chains, runs, points)``."""
        return self._forward(theta).reward

    def _forward(self, theta: Array) -> _Forward:
        own = self.runs.cell
        both, shapes = self.cells(theta)
        seeds = self.numbers(theta, "seeds")
        start = self.start(theta)
        share = 1 / (1 + np.exp(-both[:, 0]))
        gain = (1 - start) * share[:, own] * (1 + seeds[:, 0])
        shape = np.exp(shapes)[:, own]
        offset = self._log_compute - (both[:, 1][:, own] + seeds[:, 1])[:, :, None]
        position = shape[:, :, None] * offset
        made = rise(position, self.tail(theta)[:, :, None])
        reward = start[:, :, None] + gain[:, :, None] * made.share
        return _Forward(reward, made, gain, shape, position, share, seeds, start)

    def __call__(self, theta: Array) -> tuple[Array, Array]:
        """Logarithm of the density, shape ``(chains,)``, and its gradient, shape ``(chains, size)``."""
        p, own, seen = self.parts, self.runs.cell, self.runs.seen
        reward, made, gain, shape, position, share, seeds, start = self._forward(theta)
        value, by_reward, by_excess, by_autocorrelation = self._noise(theta, reward)
        by_reward = np.where(seen, by_reward, 0.0)
        by_share = by_reward * gain[:, :, None]
        by_position = by_share * made.by_position
        # Before training z is minus infinity and nothing depends on it.
        weighted = np.where(np.isfinite(position), by_position * np.maximum(position, -700.0), 0.0)
        run_gain = (by_reward * made.share).sum(axis=2) * gain
        run_timing = -by_position.sum(axis=2) * shape
        run_shape = weighted.sum(axis=2)
        factor = 1 + seeds[:, 0]
        gradient = np.empty_like(theta)
        fall = (1 - share)[:, own]
        by_cell = np.stack([run_gain * fall, run_timing], axis=1) @ self._member
        slope = start * (1 - start) * 0.5
        gradient[:, p["start"]] = slope * (
            by_reward.sum(axis=(1, 2))[:, None] - (run_gain.sum(axis=1)[:, None]) / (1 - start)
        )
        tail = self.tail(theta)
        gradient[:, p["tail"]] = 0.7 * tail * (by_share * made.by_tail).sum(axis=(1, 2))[:, None]
        self._back(theta, "seeds", np.stack([run_gain / factor, run_timing], axis=1), gradient)
        self._cell_gradient(theta, by_cell, run_shape @ self._member, gradient)
        gradient[:, p["excess"]], gradient[:, p["autocorrelation"]] = by_excess, by_autocorrelation
        prior, by_prior = self._prior(theta)
        return value + prior, gradient + by_prior

    def _cell_gradient(self, theta: Array, by_cell: Array, by_shape: Array, gradient: Array) -> None:
        """Chain rule from amplitude, timing and shape of cells to what they are made of."""
        p, described = self.parts, self.features
        gradient[:, p["level"]] = by_cell.sum(axis=2) * 1.5
        gradient[:, p["lines"]] = ((by_cell @ described.columns) * described.centre[1]).reshape(len(theta), -1)
        gradient[:, p["shape"]] = 0.4 * by_shape.sum(axis=1, keepdims=True)
        self._back(theta, "smooth", by_cell @ described.root, gradient)
        self._back(theta, "departure", by_cell, gradient)
        self._back(theta, "shapes", by_shape[:, None], gradient)

    def _back(self, theta: Array, name: str, by_value: Array, gradient: Array) -> None:
        """Chain rule from the numbers of a family to what is sampled of it."""
        family, p = self.families[name], self.parts
        values = self.numbers(theta, name)
        size = family.size(theta[:, p[name + "_sd"]], 1 - family.centred) * np.array(family.median)
        gradient[:, p[name]] = (by_value * size[:, :, None]).reshape(len(theta), -1)
        gradient[:, p[name + "_sd"]] = (1 - family.centred) * np.array(family.factor) * (by_value * values).sum(axis=2)

    def _noise(self, theta: Array, reward: Array) -> tuple[Array, Array, Array, Array]:
        """Log-likelihood of the evaluations, and its derivatives by the fitted rewards, κ's and φ's numbers."""
        seen = self.runs.seen
        excess, phi = self.excess(theta)[:, :, None], self.autocorrelation(theta)[:, :, None]
        error = self.runs.error
        residual = np.where(seen, (self.runs.reward - reward) / (excess * error), 0.0)
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
        by_reward = -by_residual / (excess * error)
        by_log_excess = squares - points
        if self.runs.error_is_known:
            own = 0.2 * np.exp(1.5 * theta[:, self.parts["excess"]][:, 0])
            by_excess = by_log_excess * 0.75 * own / (1 + own)
        else:
            by_excess = by_log_excess
        change = -residual[:, :, :-1] / root + shock[:, :, 1:] * phi / left
        turned = (shock[:, :, 1:] * np.where(seen[:, 1:], change, 0.0)).sum(axis=(1, 2))
        by_phi = later * (phi / left)[:, 0, 0] - turned
        flat = phi[:, 0, 0]
        return value, by_reward, by_excess[:, None], (by_phi * flat * (1 - flat))[:, None]

    def _prior(self, theta: Array) -> tuple[Array, Array]:
        """Standard normal, but for the families; with the gradient."""
        value, gradient = -0.5 * theta**2, -theta
        total = np.zeros(len(theta))
        for name, family in self.families.items():
            own, deviation = self.parts[name], self.parts[name + "_sd"]
            values = theta[:, own].reshape(len(theta), len(family.median), -1)
            density, by_value, by_h = family.prior(values, theta[:, deviation])
            value[:, own] = 0.0
            total += density
            gradient[:, own] = by_value.reshape(len(theta), -1)
            gradient[:, deviation] += by_h
        return total + value.sum(axis=1), gradient
