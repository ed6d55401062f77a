"""The posterior of a sweep: draws of every setting's curve, measured or not.

Chains are as long as it takes them to agree, and to say of the decision as much as so many independent draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ..data.curves import Array
from .density import bent, rise, step_share
from .families import DEPARTURE_DEGREES, Priors
from .model import Model, coordinates, correlations, features
from .runs import Runs, Setting
from .sampling import effective_size, mode, sample, split_r_hat

CHAINS, WARM_UP, KEPT = 16, 40, 75
AGREED = 1.1
"""Largest split R̂ at which chains agree; of so many short ones, independent draws have about 1.02."""
ENOUGH = 0.2
"""Independent draws of the decision, as a share of those kept: of 240 P(best) is known to 3 points."""
COULD_WIN = 0.02
"""P(best) from which on a setting could be the best, and the decision depends on it."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Posterior:
    """Draws of all numbers of a sweep.

    Attributes:
        theta: Shape ``(draws, size)``.
        split_r_hat: Largest over the rewards of the settings at the end of the data: how well the chains agree.
        luck: What other questions would add to level and gain of each setting, shape ``(draws, 2, cells)``; None where
            the rewards are those on the questions that were asked.
    """

    model: Model
    theta: Array
    split_r_hat: float
    luck: Array | None = None

    def reward(self, compute: Array | float, *, base: int | None = None) -> Array:
        """Reward that the measured settings have at some compute, over seeds, shape ``(draws, cells, points)``.

        Args:
            compute: Shape ``(points,)``, or ``(cells, points)`` where settings differ in it.
            base: Index of a base model; else it is one that was not run, where there are several, or the only one.
        """
        both, shapes = self.model.cells(self.theta)
        bends = self.model.bends(self.theta)
        reward, share = self._reward(both + self._shift(self.model.tilts, base), shapes, bends, compute, base)
        if self.luck is None:
            return reward
        return np.asarray(reward + self.luck[:, 0, :, None] + self.luck[:, 1, :, None] * share)

    def share(self, compute: Array) -> Array:
        """Share of its gain that each measured setting has made at some compute, shape ``(draws, cells, points)``."""
        both, shapes = self.model.cells(self.theta)
        return self._reward(both, shapes, self.model.bends(self.theta), compute, None)[1]

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
        bends = model.bends(theta)[:, :, [int(model.runs.cell[run])]]
        reward, _ = self._reward(timed, shapes[:, [curve]], bends, compute, base, factor=1 + seed[:, [0]])
        return np.asarray(reward[:, 0])

    def reward_of(
        self, cells: tuple[Setting, ...], compute: Array | float, *, rng: np.random.Generator | None = None
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
        bends = model.bend_lines(theta, at)
        if rng is not None:
            left = np.sqrt(np.maximum(1 - (weights**2).sum(axis=0), 0.0))
            sd, departs = model.deviation(theta, "smooth"), model.deviation(theta, "departure")
            both += left * sd[:, :, None] * rng.standard_normal(both.shape)
            both += departs[:, :, None] * rng.standard_t(DEPARTURE_DEGREES, both.shape)
            shapes = shapes + model.deviation(theta, "shapes") * rng.standard_normal(shapes.shape)
            bends[:, 0] += model.deviation(theta, "bends") * rng.standard_normal(shapes.shape)
        return self._reward(both, shapes, bends, compute, None)[0]

    def _shift(self, tilts: Array, base: int | None) -> Array | float:
        """Shift of amplitude and timing by a base model, shape ``(draws, 2, cells)``.

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
        self,
        both: Array,
        shapes: Array,
        bends: Array,
        compute: Array | float,
        base: int | None,
        *,
        factor: Array | float = 1.0,
    ) -> tuple[Array, Array]:
        """Rewards and shares of the gain, each of shape ``(draws, settings, points)``.

        Args:
            factor: Of the gain.
        """
        starts, tail = self.model.start(self.theta), self.model.tail(self.theta)
        draws = np.arange(len(starts))
        # One that was not run starts like one of those that were.
        start = starts[draws, draws % starts.shape[1] if base is None else base][:, None]
        with np.errstate(divide="ignore"):
            log_compute = np.log(np.atleast_1d(np.asarray(compute, dtype=np.float64)))
        gain = (1 - start) / (1 + np.exp(-both[:, 0])) * factor
        offset = log_compute - both[:, 1][:, :, None]
        share = rise(np.exp(shapes)[:, :, None] * offset, tail[:, :, None])
        slope, onset = bends[:, 0][:, :, None], bends[:, 1][:, :, None]
        share = bent(share, slope, log_compute - onset, *self.model.falling(self.theta))
        height, when = self.model.step(self.theta)
        first = height[:, :, None] * step_share(log_compute - when[:, :, None])
        # Beyond the data a bend may lead out of what a share of successes can be.
        return np.clip(start[:, :, None] + first + gain[:, :, None] * share, 0.0, 1.0), share


def posterior(
    runs: Runs, *, priors: Priors | None = None, seed: int = 0, size: tuple[int, int, int] = (CHAINS, WARM_UP, KEPT)
) -> Posterior:
    """Fit all runs together.

    Args:
        size: Chains, steps of each before the first draw, and draws of each.
    """
    # Of matrices as small as these threads only wait for each other.
    with threadpool_limits(1):
        return _drawn(Model(runs=runs, priors=priors or Priors()), seed, size)


def _drawn(model: Model, seed: int, size: tuple[int, int, int]) -> Posterior:
    runs, (chains, warm_up, kept) = model.runs, size
    begin = np.zeros(model.size)
    if runs.trials is not None:
        # A binomial error depends on the reward: on the fitted one, since a share of 0 has no error.
        with np.errstate(all="ignore"):
            begin = mode(model, begin, model.free)
        model = Model(runs=runs.with_errors_at(model.curves(begin[None])[0]), priors=model.priors)
    last = float(runs.last.max())

    def rewards(drawn: Array) -> Array:
        """Rewards of the settings at the end of the data, shape ``(steps, chains, settings)``."""
        ends = Posterior(model=model, theta=drawn.reshape(-1, model.size), split_r_hat=np.inf)
        # Of each base model that was run: what one that was not would add is drawn, and agrees by itself.
        found = np.concatenate([ends.reward(last, base=k)[:, :, 0] for k in range(len(runs.bases))], axis=1)
        return found.reshape(*drawn.shape[:2], -1)

    def agreed(drawn: Array) -> bool:
        own = rewards(drawn)
        alike = bool(split_r_hat(own).max() < AGREED)
        return alike and float(effective_size(decided(own)).min()) >= ENOUGH * chains * kept

    found = sample(
        model,
        begin,
        model.free,
        chains=chains,
        warm_up=warm_up,
        kept=kept,
        rng=np.random.default_rng(seed),
        agreed=agreed,
        apart=model.apart,
    ).chains
    # Chains that took longer are thinned, so that every fit has as many draws.
    thinned = found[np.linspace(0, len(found) - 1, kept).round().astype(int)]
    agreement = float(split_r_hat(rewards(found)).max())
    return Posterior(model=model, theta=thinned.reshape(-1, model.size), split_r_hat=agreement)


def decided(rewards: Array) -> Array:
    """What a decision depends on: the highest of the rewards on average, and what each other that may be best lacks.

    Args:
        rewards: Shape ``(steps, chains, settings)``.
    """
    best = int(rewards.mean(axis=(0, 1)).argmax())
    lacks = rewards[:, :, [best]] - rewards
    near = (lacks < 0).mean(axis=(0, 1)) >= COULD_WIN
    return np.concatenate([rewards[:, :, [best]], lacks[:, :, near]], axis=2)
