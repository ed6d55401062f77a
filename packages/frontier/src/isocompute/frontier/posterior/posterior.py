"""The posterior of a sweep: draws of every setting's curve, measured or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from .model import Model
from .priors import DEPARTURE_DEGREES, Priors
from .rise import rise
from .runs import Cell, Runs
from .sampling import mode, sample, split_r_hat
from .settings import coordinates, correlations, features

CHAINS, WARM_UP, KEPT = 48, 32, 25
AGREED = 1.3
"""Split R̂ of so many short chains; that of independent draws is about 1.05."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Posterior:
    """Draws of all numbers of a sweep.

    Attributes:
        model: What they are of.
        theta: Shape ``(draws, size)``.
        spread: Largest split R̂ over the rewards of the settings at the end of the data: how well the chains agree.
    """

    model: Model
    theta: Array
    spread: float

    def reward(self, compute: Array | float) -> Array:
        """Reward that the measured settings have at some compute, over seeds, shape ``(draws, cells, points)``."""
        both, shapes = self.model.cells(self.theta)
        return self._reward(both, shapes, np.atleast_1d(np.asarray(compute, dtype=np.float64)))

    def reward_of(self, cells: tuple[Cell, ...], compute: Array | float, *, rng: np.random.Generator) -> Array:
        """Reward of settings that need not have been run, shape ``(draws, cells, points)``.

        Args:
            rng: Source of randomness, for how a setting departs from its neighbours.
        """
        model, theta = self.model, self.theta
        scale = np.array([1.0, 1.0, float(model.rates)])
        at = coordinates(cells)
        columns, _ = features(at, model.centre, rates=model.rates)
        lines = model.lines(theta)
        both = lines[:, :, :1] + lines[:, :, 1:] @ columns.T
        weights = np.linalg.solve(model.features.root, correlations(model.at * scale, at * scale))
        left = np.sqrt(np.maximum(1 - (weights**2).sum(axis=0), 0.0))
        smooth = model.numbers(theta, "smooth") @ weights
        sd, departs = model.deviation(theta, "smooth"), model.deviation(theta, "departure")
        shape = (len(theta), 2, len(cells))
        both += smooth + left * sd[:, :, None] * rng.standard_normal(shape)
        both += departs[:, :, None] * rng.standard_t(DEPARTURE_DEGREES, shape)
        own = model.deviation(theta, "shapes") * rng.standard_normal((len(theta), len(cells)))
        return self._reward(both, model.shape(theta) + own, np.atleast_1d(np.asarray(compute, dtype=np.float64)))

    def _reward(self, both: Array, shapes: Array, compute: Array) -> Array:
        start, tail = self.model.start(self.theta), self.model.tail(self.theta)
        with np.errstate(divide="ignore"):
            position = np.exp(shapes)[:, :, None] * (np.log(compute) - both[:, 1][:, :, None])
        gain = (1 - start) / (1 + np.exp(-both[:, 0]))
        return np.asarray(start[:, :, None] + gain[:, :, None] * rise(position, tail[:, :, None]).share)


def posterior(runs: Runs, *, priors: Priors | None = None, seed: int = 0) -> Posterior:
    """Fit all runs together.

    Args:
        priors: What is expected before the data.
        seed: Fixes the draws.
    """
    model = Model(runs=runs, priors=priors or Priors())
    begin = np.zeros(model.size)
    if runs.trials is not None:
        # A binomial error depends on the reward: on the fitted one, since a share of 0 has no error.
        begin = mode(model, begin, model.free)
        model = Model(runs=runs.with_errors_at(model.curves(begin[None])[0]), priors=model.priors)
    last = float(runs.last.max())

    def spread(chains: Array) -> float:
        flat = chains.reshape(-1, chains.shape[2])
        ends = Posterior(model=model, theta=flat, spread=np.inf).reward(last)[:, :, 0]
        return float(split_r_hat(ends.reshape(*chains.shape[:2], -1)).max())

    drawn = sample(
        model, begin, model.free, chains=CHAINS, warm_up=WARM_UP, kept=KEPT, rng=np.random.default_rng(seed),
        agreed=lambda chains: spread(chains) < AGREED,
    )  # fmt: skip
    return Posterior(model=model, theta=drawn.theta, spread=spread(drawn.chains))
