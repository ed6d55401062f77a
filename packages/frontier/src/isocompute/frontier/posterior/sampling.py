"""Draws from a smooth density: many chains of Hamiltonian Monte Carlo at once, begun about its mode.

All chains move together as one array, so that the cost of numpy's calls is shared. Their mass is the curvature at the
mode, then the covariance of the chains themselves (Hoffman and Gelman, 2014, for the step; Betancourt, 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from ..data.curves import Array, Mask

Density = Callable[[Array], tuple[Array, Array]]
"""Vectors of shape ``(chains, size)`` to the logarithm of the density and its gradient."""
ACCEPTED = 0.8
LEAPS = (5, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What the chains drew.

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


def mode(density: Density, begin: Array, free: Mask) -> Array:
    """Where the density is highest among the numbers that are free, by L-BFGS from ``begin``, shape ``(size,)``.

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


def sample(
    density: Density, begin: Array, free: Mask, *, chains: int, warm_up: int, kept: int, rng: np.random.Generator,
    agreed: Callable[[Array], bool] = lambda _: True, rounds: int = 5,
) -> Draws:  # fmt: skip
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
            adapting: Whether the pace is brought to the rate of acceptance that is best.
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
    """One step of all chains: a number of leaps, then each is accepted or not."""
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
        np.where(taken[:, None], new, theta), np.where(taken, level, value),
        np.where(taken[:, None], slope, gradient), float(ratio.mean()),
    )  # fmt: skip


def _learned(drawn: Array, root: Array) -> Array:
    """The root of the covariance of the draws, drawn towards the one before as far as there are few of them."""
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
