"""The posterior of a sweep: draws of every setting's curve, measured or not.

They come from many chains of Hamiltonian Monte Carlo, begun about the mode and moved together as one array. Their mass
is the curvature at the mode, then the covariance of the chains themselves (Hoffman and Gelman, 2014, for the step;
Betancourt, 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from ..data.curves import Array, Mask
from .families import DEPARTURE_DEGREES, Priors
from .model import Model, coordinates, correlations, features
from .runs import Runs, Setting
from .shapes import bent, rise, step_share

Density = Callable[[Array], tuple[Array, Array]]
"""Vectors of shape ``(chains, size)`` to the logarithm of the density and its gradient."""
CHAINS, WARM_UP, KEPT = 48, 32, 25
AGREED = 1.1
"""Largest split R̂ at which chains agree; of so many short ones, independent draws have about 1.05."""
ACCEPTED = 0.8
LEAPS = (10, 20)


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
        share = rise(np.exp(shapes)[:, :, None] * offset, tail[:, :, None]).share
        slope, onset = bends[:, 0][:, :, None], bends[:, 1][:, :, None]
        share = bent(share, slope, log_compute - onset, *self.model.falling(self.theta)).value
        height, when = self.model.step(self.theta)
        first = height[:, :, None] * step_share(log_compute - when[:, :, None]).value
        # Beyond the data a bend may lead out of what a share of successes can be.
        return np.clip(start[:, :, None] + first + gain[:, :, None] * share, 0.0, 1.0), share


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

    def split_r_hat_of(chains: Array) -> float:
        flat = chains.reshape(-1, chains.shape[2])
        ends = Posterior(model=model, theta=flat, split_r_hat=np.inf)
        # Of each base model that was run: what one that was not would add is drawn, and agrees by itself.
        rewards = np.concatenate([ends.reward(last, base=k)[:, :, 0] for k in range(len(runs.bases))], axis=1)
        return float(split_r_hat(rewards.reshape(*chains.shape[:2], -1)).max())

    drawn = sample(
        model,
        begin,
        model.free,
        chains=size[0],
        warm_up=size[1],
        kept=size[2],
        rng=np.random.default_rng(seed),
        agreed=lambda chains: split_r_hat_of(chains) < AGREED,
    )
    # Chains that took longer to agree are thinned, so that every fit has as many draws.
    thinned = drawn.chains[:: len(drawn.chains) // size[2]]
    return Posterior(model=model, theta=thinned.reshape(-1, model.size), split_r_hat=split_r_hat_of(drawn.chains))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws of the chains.

    Attributes:
        chains: Shape ``(steps, chains, size)``.
        accepted: Mean probability of acceptance.
    """

    chains: Array
    accepted: float

    @property
    def theta(self) -> Array:
        """All draws, shape ``(steps · chains, size)``."""
        return self.chains.reshape(-1, self.chains.shape[2])


def sample(
    density: Density,
    begin: Array,
    free: Mask,
    *,
    chains: int,
    warm_up: int,
    kept: int,
    rng: np.random.Generator,
    agreed: Callable[[Array], bool] = lambda _: True,
    rounds: int = 5,
) -> Draws:
    """Draws of a density.

    Args:
        begin: Where its mode is sought from, shape ``(size,)``.
        warm_up: Steps of each chain that are thrown away; the mass is learned in them.
        agreed: Whether chains of shape ``(steps, chains, size)`` agree; those that do not become a longer warm-up.
        rounds: How often they may not; each round has twice the steps.
    """
    with np.errstate(all="ignore"):
        # A leap too far overflows and is refused.
        top = mode(density, begin, free)
        walk = _Walk(density=density, rng=rng, root=curvature_root(density, top), pace=1.2 * len(top) ** -0.25)
        walk.begin(top + 0.2 * rng.standard_normal((chains, len(top))) @ walk.root.T)
        for steps in (warm_up // 2, warm_up // 4, warm_up - warm_up // 2 - warm_up // 4):
            walk.learn(walk.run(steps, adapting=True))
        for k in range(rounds):
            drawn = walk.run(kept * 2**k)
            if agreed(drawn) or k == rounds - 1:
                break
            walk.learn(drawn)
            # The pace was that of another mass.
            walk.run(warm_up, adapting=True)
    return Draws(chains=drawn, accepted=walk.accepted)


def mode(density: Density, begin: Array, free: Mask) -> Array:
    """The mode of the density over the numbers that are free, by L-BFGS from ``begin``, shape ``(size,)``.

    A deviation must not be free: the density is highest, and unbounded, where one is 0.
    """

    def negative(x: Array) -> tuple[float, Array]:
        value, gradient = density(x[None])
        return -float(value[0]), np.where(free, -gradient[0], 0.0)

    return np.asarray(minimize(negative, begin, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x)


def curvature_root(density: Density, at: Array) -> Array:
    """Lower root of the inverse curvature, by differences of the gradient, shape ``(size, size)``."""
    step = 1e-4
    shifts = step * np.eye(len(at))
    hessian = -(density(at + shifts)[1] - density(at - shifts)[1]) / (2 * step)
    value, vector = np.linalg.eigh((hessian + hessian.T) / 2)
    covariance = (vector / np.clip(value, 0.3, None)) @ vector.T
    return np.asarray(np.linalg.cholesky(covariance))


@dataclass(kw_only=True)
class _Walk:
    """All chains on their way.

    Attributes:
        root: Root of the inverse mass, shape ``(size, size)``.
        pace: Length of a leap.
        accepted: Mean probability of acceptance of the last run.
    """

    density: Density
    rng: np.random.Generator
    root: Array
    pace: float
    accepted: float = 0.0
    steps: int = 0

    def begin(self, theta: Array) -> None:
        """Put the chains somewhere."""
        self.theta = theta
        self.value, self.gradient = self.density(theta)

    def run(self, steps: int, *, adapting: bool = False) -> Array:
        """Steps of all chains, shape ``(steps, chains, size)``.

        Args:
            adapting: Bring the pace to the best rate of acceptance.
        """
        found, rates = [], []
        for _ in range(steps):
            self.theta, self.value, self.gradient, rate = _leap(
                self.density, self.theta, self.value, self.gradient, self.root, self.pace, self.rng
            )
            self.steps += 1
            if adapting:
                self.pace *= float(np.exp((rate - ACCEPTED) / np.sqrt(self.steps)))
            found.append(self.theta)
            rates.append(rate)
        self.accepted = float(np.mean(rates))
        return np.stack(found)

    def learn(self, drawn: Array) -> None:
        """Take the mass from the later two thirds of what was drawn."""
        self.root = _learned(drawn[len(drawn) // 3 :].reshape(-1, drawn.shape[2]), self.root)


def _leap(
    density: Density, theta: Array, value: Array, gradient: Array, root: Array, pace: float, rng: np.random.Generator
) -> tuple[Array, Array, Array, float]:
    """Step all chains: a number of leaps, then each is accepted or not."""
    momentum = rng.standard_normal(theta.shape)
    energy = value - 0.5 * (momentum**2).sum(axis=1)
    # Steps of random length, so that no chain turns in a circle, or stays where the pace is too long for it.
    length = pace * rng.uniform(0.7, 1.15, (len(theta), 1))
    new, slope = theta, gradient
    moved, level = momentum + 0.5 * length * slope @ root, value
    leaps = int(rng.integers(*LEAPS))
    for k in range(leaps):
        new = new + length * moved @ root.T
        level, slope = density(new)
        moved = moved + (1.0 if k < leaps - 1 else 0.5) * length * slope @ root
    ratio = np.nan_to_num(np.exp(np.minimum(level - 0.5 * (moved**2).sum(axis=1) - energy, 0.0)))
    taken = rng.random(len(theta)) < ratio
    return (
        np.where(taken[:, None], new, theta),
        np.where(taken, level, value),
        np.where(taken[:, None], slope, gradient),
        float(ratio.mean()),
    )


def _learned(drawn: Array, root: Array) -> Array:
    """The root of the covariance of the draws, shrunk towards the previous covariance where draws are few."""
    centred = drawn - drawn.mean(axis=0)
    weight = len(drawn) / (len(drawn) + 5.0 * drawn.shape[1])
    covariance = weight * (centred.T @ centred) / len(drawn) + (1 - weight) * (root @ root.T)
    return np.asarray(np.linalg.cholesky(covariance))


def split_r_hat(drawn: Array) -> Array:
    """Split R̂ of each number (Bayesian Data Analysis, section 11.4); near 1 when the chains agree.

    Args:
        drawn: Shape ``(steps, chains, size)``.
    """
    half = len(drawn) // 2
    parts = np.concatenate([drawn[:half], drawn[half : 2 * half]], axis=1)
    within = parts.var(axis=0, ddof=1).mean(axis=0)
    between = parts.mean(axis=0).var(axis=0, ddof=1)
    return np.asarray(np.sqrt((half - 1) / half + between / within))
