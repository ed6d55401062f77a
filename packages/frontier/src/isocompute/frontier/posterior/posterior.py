"""The posterior of a sweep: draws of every setting's curve, measured or not, and the sampler that makes them.

Many chains of Hamiltonian Monte Carlo begin around the mode, and first walk under a tempered likelihood. They are moved
together as one array until they agree and hold enough independent draws for the decision. Their mass is the curvature
at the mode, and later an estimate from the chains' draws and gradients (Hoffman and Gelman, 2014, for the step;
Betancourt, 2017; Seyboldt, Carlson and Carpenter, 2024, for the mass).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from ..data.curves import Array, Mask
from .density import DEPARTURE_DEGREES, Priors, bent, rise, step_share
from .model import Model, coordinates
from .runs import Runs, Setting

CHAINS, WARM_UP, KEPT = 16, 24, 40
TEMPERED, POWER = 8, 0.1
"""Tempered steps of each chain before these, and the power of the likelihood in them."""
AGREED = 1.1
"""Largest split R̂ at which chains agree; with chains as many and as short as these, independent draws have about
1.02."""
ENOUGH = 0.375
"""Independent draws needed for the decision, as a share of the first round: 240 determine P(best) to 3 points."""
COULD_WIN = 0.02
"""P(best) from which on a setting could be best, so that the decision depends on it."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Posterior:
    """Draws of all numbers of a sweep.

    Attributes:
        theta: Shape ``(draws, size)``.
        split_r_hat: How well the chains agree: the largest over the settings' rewards at the end of the data.
        luck: Change in each setting's level and gain with other questions, shape ``(draws, 2, cells)``; None if the
            rewards are those for the questions that were asked.
    """

    model: Model
    theta: Array
    split_r_hat: float
    luck: Array | None = None

    def reward(self, compute: Array | float, *, base: int | None = None) -> Array:
        """Reward of the measured settings at the given compute, over seeds, shape ``(draws, cells, points)``.

        Args:
            compute: Shape ``(points,)``, or ``(cells, points)`` if it differs between settings.
            base: Index of a base model. By default one that was not run, if there are several, or the only one.
        """
        both, shapes = self.model.cells(self.theta)
        shifted = both + self._shift(self.model.tilts, base)
        reward, share = self._reward(shifted, shapes, self.model.bends(self.theta), compute, base)
        if self.luck is None:
            return reward
        return np.asarray(reward + self.luck[:, 0, :, None] + self.luck[:, 1, :, None] * share)

    def share(self, compute: Array) -> Array:
        """Share of its gain that each measured setting has made at some compute, shape ``(draws, cells, points)``."""
        both, shapes = self.model.cells(self.theta)
        return self._reward(both, shapes, self.model.bends(self.theta), compute, None)[1]

    def of_run(self, run: int, compute: Array) -> Array:
        """Reward of one run at ``(points,)``, including its seed, shape ``(draws, points)``."""
        model, theta = self.model, self.theta
        both, shapes = model.of_bases(theta)
        curve, base = int(model.curve.of_run[run]), int(model.runs.base[run])
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
            compute: As for ``reward``.
            rng: Source of randomness for a setting's departure from its neighbours; without it there is none.
        """
        model, theta = self.model, self.theta
        at = coordinates(cells)
        columns, _ = model.features_at(at)
        lines = model.lines(theta)
        both = lines[:, :, :1] + lines[:, :, 1:] @ columns.T
        weights = np.linalg.solve(model.root, model.correlations(at))
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
        """Shift of amplitude and timing by a base model, shape ``(draws, 2, cells)``; identical in every call."""
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
        """Rewards and shares of the gain, each of shape ``(draws, settings, points)``."""
        starts, tail = self.model.start(self.theta), self.model.tail(self.theta)
        draws = np.arange(len(starts))
        # A base model that was not run starts like one of those that were.
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
        # Beyond the data, a bend may lead outside the range of a success share.
        return np.clip(start[:, :, None] + first + gain[:, :, None] * share, 0.0, 1.0), share


def posterior(
    runs: Runs, *, priors: Priors | None = None, seed: int = 0, size: tuple[int, int, int] = (CHAINS, WARM_UP, KEPT)
) -> Posterior:
    """Fit all runs together.

    Args:
        size: Chains, steps of each before the first draw, and draws of each in the first round; at most twice as many
            are kept.
    """
    # Threads only wait for each other with matrices this small.
    with threadpool_limits(1):
        return _drawn(Model(runs=runs, priors=priors or Priors()), seed, size)


def _drawn(model: Model, seed: int, size: tuple[int, int, int]) -> Posterior:
    runs, (chains, warm_up, kept) = model.runs, size
    begin = np.zeros(model.size)
    if runs.trials is not None:
        # A binomial error depends on the reward. Use the fitted one, since a share of 0 would have no error.
        with np.errstate(all="ignore"):
            begin = mode(model, begin, model.free)
        model = Model(runs=runs.with_errors_at(model.curves(begin[None])[0]), priors=model.priors)
    last = float(runs.last.max())

    def rewards(drawn: Array) -> Array:
        """Rewards of the settings at the end of the data, shape ``(steps, chains, settings)``."""
        ends = Posterior(model=model, theta=drawn.reshape(-1, model.size), split_r_hat=np.inf)
        # Only base models that were run: the part of an unseen one is drawn independently, and agrees by itself.
        found = np.concatenate([ends.reward(last, base=k)[:, :, 0] for k in range(len(runs.bases))], axis=1)
        return found.reshape(*drawn.shape[:2], -1)

    def agreed(drawn: Array) -> bool:
        own = rewards(drawn)
        return bool(split_r_hat(own).max() < AGREED and effective_size(decided(own)).min() >= ENOUGH * chains * kept)

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
        tempered=model.tempered(POWER),
    )
    # Neighbouring draws of longer chains are nearly redundant.
    thinned = found[np.linspace(0, len(found) - 1, min(len(found), 2 * kept)).round().astype(int)]
    agreement = float(split_r_hat(rewards(found)).max())
    return Posterior(model=model, theta=thinned.reshape(-1, model.size), split_r_hat=agreement)


def decided(rewards: Array) -> Array:
    """What decides, from rewards ``(steps, chains, settings)``: the highest on average, and its lead over near ones."""
    best = int(rewards.mean(axis=(0, 1)).argmax())
    lacks = rewards[:, :, [best]] - rewards
    near = (lacks < 0).mean(axis=(0, 1)) >= COULD_WIN
    return np.concatenate([rewards[:, :, [best]], lacks[:, :, near]], axis=2)


Density = Callable[[Array], tuple[Array, Array]]
"""Maps vectors of shape ``(chains, size)`` to the log density and its gradient."""
Index = NDArray[np.int64]
ACCEPTED = 0.85
TURN = 2.0
"""Mean length of a trajectory, in the unit of the mass: a normal distribution forgets its start after π/2."""
SHORT = (0.05, 0.3)
"""Share of trajectories with short leaps, and the factor by which these are shorter."""
LEAPS = (1, 24)
"""Fewest and most leaps (leapfrog steps) per trajectory."""


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
    rounds: int = 11,
    apart: Index | None = None,
    tempered: Density | None = None,
) -> Array:
    """Draws of a density, shape ``(steps, chains, size)``.

    Args:
        begin: Start of the search for the mode, shape ``(size,)``.
        warm_up: Discarded steps of each chain, in which the mass is learned.
        kept: Steps of the first round; each further round adds half of the steps so far.
        agreed: Whether chains of shape ``(steps, chains, size)`` agree and are long enough. It is asked about all
            steps, then about their later half, in case the chains had not forgotten their start.
        rounds: Most rounds of drawing.
        apart: Indices of numbers in groups that are independent given all other numbers, shape ``(groups, members)``.
        tempered: A wider density of the same numbers in which chains walk first, so that they reach regions apart from
            the mode in the right proportions.
    """
    apart = np.zeros((0, 1), dtype=np.int64) if apart is None else apart
    with np.errstate(all="ignore"):
        # A leap that is too long overflows and is rejected.
        top = mode(density, begin, free)
        walk = _Walk(rng=rng, mass=curvature(density, top, apart), pace=1.2 * len(top) ** -0.25)
        begin = top + 0.2 * walk.mass.scaled(rng.standard_normal((chains, len(top))))
        if tempered is not None:
            walk.begin(tempered, begin)
            walk.run(TEMPERED)
            begin = walk.theta
        walk.begin(density, begin)
        # The first mass is so inaccurate that its steps are short, so it is replaced soon.
        for steps in (warm_up // 5, warm_up * 3 // 10, warm_up - warm_up // 5 - warm_up * 3 // 10):
            walk.learn(*walk.run(steps))
        drawn, gradient = walk.run(kept)
        for _ in range(rounds - 1):
            half = len(drawn) // 2
            if agreed(drawn):
                break
            if len(drawn) > kept and agreed(drawn[half:]):
                drawn = drawn[half:]
                break
            walk.learn(drawn[-len(gradient) :], gradient)
            more, gradient = walk.run(half)
            drawn = np.concatenate([drawn, more])
    return drawn


def mode(density: Density, begin: Array, free: Mask) -> Array:
    """The mode of the density over the free numbers, by L-BFGS from ``begin``, shape ``(size,)``.

    A deviation must not be free: the density is unbounded as it approaches 0.
    """

    def negative(x: Array) -> tuple[float, Array]:
        value, gradient = density(x[None])
        return -float(value[0]), np.where(free, -gradient[0], 0.0)

    # Chains begin around the mode, so a density within 1e-6 of the highest is close enough.
    options = {"maxiter": 300, "maxcor": 25, "ftol": 1e-6}
    return np.asarray(minimize(negative, begin, jac=True, method="L-BFGS-B", options=options).x)


@dataclass(frozen=True, kw_only=True)
class Mass:
    """A root of a covariance; some of its numbers form groups that are independent given the others.

    Attributes:
        together: Indices of the others, shape ``(others,)``.
        apart: Indices of the groups, shape ``(groups, members)``.
        root: Lower root of the others' covariance, shape ``(others, others)``.
        slope: Regression of the groups on the others, shape ``(groups · members, others)``.
        roots: Lower root of each group's covariance given the others, shape ``(groups, members, members)``.
    """

    together: Index
    apart: Index
    root: Array
    slope: Array
    roots: Array

    def scaled(self, unit: Array) -> Array:
        """The root times vectors, shape ``(vectors, size)``."""
        found = np.empty_like(unit)
        others = unit[:, self.together] @ self.root.T
        found[:, self.together] = others
        own = (self.roots @ unit[:, self.apart][..., None])[..., 0]
        found[:, self.apart] = own + (others @ self.slope.T).reshape(own.shape)
        return found

    def turned(self, gradient: Array) -> Array:
        """The transposed root times vectors, shape ``(vectors, size)``."""
        found = np.empty_like(gradient)
        own = gradient[:, self.apart]
        others = gradient[:, self.together] + own.reshape(len(own), self.apart.size) @ self.slope
        found[:, self.together] = others @ self.root
        found[:, self.apart] = (self.roots.swapaxes(1, 2) @ own[..., None])[..., 0]
        return found

    def units(self, off: Array) -> Array:
        """The inverse of ``scaled``."""
        found = np.empty_like(off)
        others = off[:, self.together]
        found[:, self.together] = np.linalg.solve(self.root, others.T).T
        own = off[:, self.apart] - (others @ self.slope.T).reshape(len(off), *self.apart.shape)
        found[:, self.apart] = np.linalg.solve(self.roots, own[..., None])[..., 0]
        return found

    def learned(self, theta: Array, gradient: Array) -> Mass:
        """The mass that draws and gradients agree on, shrunk towards this one if there are few of them.

        In units of this mass, the mass of the others is the geometric mean of two matrices: the covariance of the
        draws, and the inverse of their gradients' covariance. Both are equal for a normal distribution: gradients
        reveal the narrow directions, draws the wide ones.
        """
        unit, slope = self.units(theta - theta.mean(axis=0)), self.turned(gradient - gradient.mean(axis=0))
        one, other = unit[:, self.together], slope[:, self.together]
        weight = len(one) / (len(one) + one.shape[1])
        left = (1 - weight) * np.eye(one.shape[1])
        wide, narrow = (weight * (x.T @ x) / len(x) + left for x in (one, other))
        half = _power(narrow, 0.5)
        inverse = np.linalg.inv(half)
        found = inverse @ _power(half @ wide @ half, 0.5) @ inverse
        # Correct the groups' slopes on the others, and find the variance that this leaves for each number.
        own, steep = (x[:, self.apart].reshape(len(x), self.apart.size) for x in (unit, slope))
        follow = np.linalg.solve(wide, weight * (one.T @ own) / len(own))
        # A step of the others moves all groups at once, so the errors of all slopes add up.
        follow *= len(own) / (len(own) + self.apart.size)
        rest = own - one @ follow
        weight = len(own) / (len(own) + 10.0)
        ratio = ((1 - weight) + weight * (rest**2).mean(axis=0)) / ((1 - weight) + weight * (steep**2).mean(axis=0))
        each = (self.roots @ follow.T.reshape(*self.apart.shape, len(self.together))).reshape(self.slope.shape)
        return Mass(
            together=self.together,
            apart=self.apart,
            root=self.root @ np.linalg.cholesky((found + found.T) / 2),
            slope=self.slope + np.linalg.solve(self.root.T, each.T).T,
            roots=self.roots * ratio.reshape(len(self.apart), 1, self.apart.shape[1]) ** 0.25,
        )


def _power(matrix: Array, exponent: float) -> Array:
    """A power of a symmetric matrix, made positive."""
    value, vector = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vector * np.maximum(value, 1e-10) ** exponent) @ vector.T)


LEAST = 0.3
"""Directions with a curvature below this count as determined by the prior or less."""


def curvature(density: Density, at: Array, apart: Index) -> Mass:
    """The mass from the curvature at a point, by differences of the gradient; all groups are shifted at once."""
    step, (groups, members) = 1e-4, apart.shape
    together = np.setdiff1d(np.arange(len(at)), apart)
    shifts = np.zeros((len(together) + members, len(at)))
    shifts[np.arange(len(together)), together] = step
    shifts[len(together) + np.arange(members)[None], apart] = step
    hessian = -(density(at + shifts)[1] - density(at - shifts)[1]) / (2 * step)
    whole = hessian[: len(together), together]
    across = hessian[: len(together)][:, apart].reshape(len(together), apart.size).T
    blocks = hessian[len(together) :][:, apart].transpose(1, 2, 0)
    covariances = _inverse(blocks)
    slope = -(covariances @ across.reshape(groups, members, len(together))).reshape(across.shape)
    return Mass(
        together=together,
        apart=apart,
        root=np.asarray(np.linalg.cholesky(_inverse(whole + across.T @ slope)), dtype=np.float64),
        slope=slope,
        roots=np.asarray(np.linalg.cholesky(covariances), dtype=np.float64),
    )


def _inverse(curvatures: Array) -> Array:
    """Inverse of symmetric matrices whose eigenvalues are raised to at least ``LEAST``."""
    value, vector = np.linalg.eigh((curvatures + curvatures.swapaxes(-1, -2)) / 2)
    return np.asarray((vector / np.maximum(value, LEAST)[..., None, :]) @ vector.swapaxes(-1, -2))


@dataclass(kw_only=True)
class _Walk:
    """The state of all chains.

    Attributes:
        pace: Length of a leap.
    """

    rng: np.random.Generator
    mass: Mass
    pace: float
    steps: int = 0

    def begin(self, density: Density, theta: Array) -> None:
        """Place the chains, to walk in a density."""
        self.density, self.theta = density, theta
        self.value, self.gradient = density(theta)

    def run(self, steps: int) -> tuple[Array, Array]:
        """Steps of all chains and the gradients there, each of shape ``(steps, chains, size)``.

        The pace is adapted to the best acceptance rate, by smaller and smaller changes.
        """
        found = []
        for _ in range(steps):
            rate = self._step()
            self.steps += 1
            # Adapt as fast up as down: if all are accepted, the rate does not tell how much longer a leap may be.
            off = (rate - ACCEPTED) / (1 - ACCEPTED if rate > ACCEPTED else ACCEPTED)
            self.pace *= float(np.exp(off / np.sqrt(self.steps)))
            found.append((self.theta, self.gradient))
        theta, gradient = zip(*found, strict=True)
        return np.stack(theta), np.stack(gradient)

    def _step(self) -> float:
        """Move all chains by leaps, and accept or reject each; return the mean acceptance probability."""
        rng, mass = self.rng, self.mass
        momentum = rng.standard_normal(self.theta.shape)
        energy = self.value - 0.5 * (momentum**2).sum(axis=1)
        # Leap lengths are random, so that no chain turns in a circle. A few are much shorter (SHORT), so that a chain
        # can move even where the pace is far too long, as in the neck of a funnel.
        length = rng.uniform(0.7, 1.15, (len(momentum), 1))
        length *= self.pace * np.where(rng.random((len(momentum), 1)) < SHORT[0], SHORT[1], 1.0)
        leaps = int(np.clip(round(TURN * rng.uniform(0.6, 1.4) / self.pace), *LEAPS))
        new, moved = self.theta, momentum + 0.5 * length * mass.turned(self.gradient)
        for k in range(leaps):
            new = new + length * mass.scaled(moved)
            level, slope = self.density(new)
            moved = moved + (1.0 if k < leaps - 1 else 0.5) * length * mass.turned(slope)
        ratio = np.nan_to_num(np.exp(np.minimum(level - 0.5 * (moved**2).sum(axis=1) - energy, 0.0)))
        taken = rng.random(len(new)) < ratio
        self.theta = np.where(taken[:, None], new, self.theta)
        self.value = np.where(taken, level, self.value)
        self.gradient = np.where(taken[:, None], slope, self.gradient)
        return float(ratio.mean())

    def learn(self, theta: Array, gradient: Array) -> None:
        """Learn the mass from the later two thirds of the draws."""
        later, size = len(theta) // 3, theta.shape[2]
        self.mass = self.mass.learned(theta[later:].reshape(-1, size), gradient[later:].reshape(-1, size))
        # The pace belonged to another mass.
        self.steps //= 4


def split_r_hat(drawn: Array) -> Array:
    """Split R̂ of each number in draws ``(steps, chains, size)`` (Bayesian Data Analysis, section 11.4)."""
    half = len(drawn) // 2
    parts = np.concatenate([drawn[:half], drawn[half : 2 * half]], axis=1)
    within = parts.var(axis=0, ddof=1).mean(axis=0)
    between = parts.mean(axis=0).var(axis=0, ddof=1)
    return np.asarray(np.sqrt((half - 1) / half + between / within))


def effective_size(drawn: Array) -> Array:
    """Effective number of independent draws for the mean of each number of ``(steps, chains, size)`` (Geyer, 1992)."""
    steps, chains, _ = drawn.shape
    off = drawn - drawn.mean(axis=(0, 1))
    power = np.abs(np.fft.rfft(off, n=2 * steps, axis=0)) ** 2
    covariance = np.fft.irfft(power.mean(axis=1), axis=0)[: steps // 2 * 2] / steps
    pairs = (covariance / covariance[0]).reshape(-1, 2, drawn.shape[2]).sum(axis=1)
    # Sums of neighbouring lags are positive except for noise: from the first negative one on, there is only noise.
    left = np.logical_and.accumulate(pairs > 0, axis=0)
    return np.asarray(steps * chains / np.maximum(2 * (pairs * left).sum(axis=0) - 1, 1e-3))
