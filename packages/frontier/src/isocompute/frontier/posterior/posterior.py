"""The posterior of a sweep: draws of every setting's curve, measured or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ..data.curves import Array
from .model import Model
from .priors import DEPARTURE_DEGREES, Priors
from .rise import rise
from .runs import Cell, Runs
from .sampling import mode, sample, split_r_hat
from .settings import coordinates, correlations, features

CHAINS, WARM_UP, KEPT = 48, 32, 25
AGREED = 1.1
"""Largest split R̂ at which chains agree; of so many short ones, independent draws have about 1.05."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Posterior:
    """Draws of all numbers of a sweep.

    Attributes:
        model: What they are of.
        theta: Shape ``(draws, size)``.
        spread: Largest split R̂ over the rewards of the settings at the end of the data: how well the chains agree.
        luck: What other questions would add to level and gain of each setting, shape ``(draws, 2, cells)``; None where
            the rewards are those on the questions that were asked.
    """

    model: Model
    theta: Array
    spread: float
    luck: Array | None = None

    def reward(self, compute: Array | float, *, base: int | None = None) -> Array:
        """Reward that the measured settings have at some compute, over seeds, shape ``(draws, cells, points)``.

        Args:
            compute: Shape ``(points,)``, or ``(cells, points)`` where settings differ in it.
            base: Index of a base model; else it is one that was not run, where there are several, or the only one.
        """
        both, shapes = self.model.cells(self.theta)
        reward, share = self._reward(both + self._shift(self.model.tilts, base), shapes, compute, base)
        if self.luck is None:
            return reward
        return np.asarray(reward + self.luck[:, 0, :, None] + self.luck[:, 1, :, None] * share)

    def share(self, compute: Array) -> Array:
        """Share of its gain that each measured setting has made at some compute, shape ``(draws, cells, points)``."""
        both, shapes = self.model.cells(self.theta)
        return self._reward(both, shapes, compute, None)[1]

    def of_run(self, run: int, compute: Array) -> Array:
        """Reward of one run, its own seed included, shape ``(draws, points)``.

        Args:
            compute: Shape ``(points,)``.
        """
        model, theta = self.model, self.theta
        both, shapes = model.of_bases(theta)
        curve, base = int(model.curve.of_run[run]), int(model.runs.base_of_run[run])
        seed = model.numbers(theta, "seeds")[:, :, run]
        timed = both[:, :, [curve]] + np.stack([np.zeros(len(theta)), seed[:, 1]], axis=1)[:, :, None]
        reward, _ = self._reward(timed, shapes[:, [curve]], compute, base)
        start = model.start(theta)[:, [base]]
        return np.asarray(start + (reward[:, 0] - start) * (1 + seed[:, [0]]))

    def reward_of(
        self, cells: tuple[Cell, ...], compute: Array | float, *, rng: np.random.Generator | None = None
    ) -> Array:
        """Reward of settings that need not have been run, shape ``(draws, cells, points)``.

        Args:
            compute: As of ``reward``.
            rng: Source of randomness, for how a setting departs from its neighbours; without it none does.
        """
        model, theta = self.model, self.theta
        scale = np.array([1.0, 1.0, float(model.rates)])
        at = coordinates(cells)
        columns, _ = features(at, model.centre, rates=model.rates)
        lines = model.lines(theta)
        both = lines[:, :, :1] + lines[:, :, 1:] @ columns.T
        weights = np.linalg.solve(model.features.root, correlations(model.at * scale, at * scale))
        both = both + model.numbers(theta, "smooth") @ weights + self._shift(model.tilts_at(at), None)
        shapes = np.repeat(model.shape(theta), len(cells), axis=1)
        if rng is not None:
            left = np.sqrt(np.maximum(1 - (weights**2).sum(axis=0), 0.0))
            sd, departs = model.deviation(theta, "smooth"), model.deviation(theta, "departure")
            both += left * sd[:, :, None] * rng.standard_normal(both.shape)
            both += departs[:, :, None] * rng.standard_t(DEPARTURE_DEGREES, both.shape)
            shapes = shapes + model.deviation(theta, "shapes") * rng.standard_normal(shapes.shape)
        return self._reward(both, shapes, compute, None)[0]

    def _shift(self, tilts: Array, base: int | None) -> Array | float:
        """What a base model adds to amplitude and timing, shape ``(draws, 2, cells)``.

        Args:
            tilts: As of the model.
            base: As of ``reward``. What one that was not run adds is the same at every call.
        """
        model, theta = self.model, self.theta
        if "bases" not in model.families:
            return 0.0
        if base is not None:
            shifts = model.numbers(theta, "bases").reshape(len(theta), 2, -1, len(model.runs.bases))[:, :, :, base]
            own = np.zeros((len(theta), 2, len(model.runs.cells)))
            where = model.curve.base == base
            own[:, :, model.curve.cell[where]] = model.numbers(theta, "own")[:, :, where]
            return np.asarray(shifts @ tilts.T + own)
        rng = np.random.default_rng(len(theta))
        shifts = model.deviation(theta, "bases") * rng.standard_normal((len(theta), 2 * tilts.shape[1]))
        own = rng.standard_normal((len(theta), 2, len(tilts)))
        return np.asarray(shifts.reshape(len(theta), 2, -1) @ tilts.T + model.deviation(theta, "own")[:, :, None] * own)

    def _reward(
        self, both: Array, shapes: Array, compute: Array | float, base: int | None
    ) -> tuple[Array, Array]:  # fmt: skip
        """Rewards and shares of the gain, each of shape ``(draws, settings, points)``."""
        starts, tail = self.model.start(self.theta), self.model.tail(self.theta)
        draws = np.arange(len(starts))
        # One that was not run starts like one of those that were.
        start = starts[draws, draws % starts.shape[1] if base is None else base][:, None]
        with np.errstate(divide="ignore"):
            offset = np.log(np.atleast_1d(np.asarray(compute, dtype=np.float64))) - both[:, 1][:, :, None]
        gain = (1 - start) / (1 + np.exp(-both[:, 0]))
        share = rise(np.exp(shapes)[:, :, None] * offset, tail[:, :, None]).share
        return np.asarray(start[:, :, None] + gain[:, :, None] * share), share


def posterior(
    runs: Runs, *, priors: Priors | None = None, seed: int = 0, size: tuple[int, int, int] = (CHAINS, WARM_UP, KEPT)
) -> Posterior:
    """Fit all runs together."""
    # Of matrices as small as these threads only wait for each other.
    with threadpool_limits(1):
        return _drawn(Model(runs=runs, priors=priors or Priors()), seed, size)


def _drawn(model: Model, seed: int, size: tuple[int, int, int]) -> Posterior:
    runs = model.runs
    begin = np.zeros(model.size)
    if runs.trials is not None:
        # A binomial error depends on the reward: on the fitted one, since a share of 0 has no error.
        with np.errstate(all="ignore"):
            begin = mode(model, begin, model.free)
        model = Model(runs=runs.with_errors_at(model.curves(begin[None])[0]), priors=model.priors)
    last = float(runs.last.max())

    def spread(chains: Array) -> float:
        flat = chains.reshape(-1, chains.shape[2])
        ends = Posterior(model=model, theta=flat, spread=np.inf)
        # Of each base model that was run: what one that was not would add is drawn, and agrees by itself.
        rewards = np.concatenate([ends.reward(last, base=k)[:, :, 0] for k in range(len(runs.bases))], axis=1)
        return float(split_r_hat(rewards.reshape(*chains.shape[:2], -1)).max())

    drawn = sample(
        model, begin, model.free, chains=size[0], warm_up=size[1], kept=size[2], rng=np.random.default_rng(seed),
        agreed=lambda chains: spread(chains) < AGREED,
    )  # fmt: skip
    # Chains that took longer to agree are thinned, so that every fit has as many draws.
    thinned = drawn.chains[:: len(drawn.chains) // size[2]]
    return Posterior(model=model, theta=thinned.reshape(-1, model.size), spread=spread(drawn.chains))
