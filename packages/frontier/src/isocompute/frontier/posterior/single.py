"""The posterior of one run: the curves of ``model``, with priors from published fits on how far and how fast runs rise.

A sweep shows how its runs rise; the beginning of a single run does not. So the asymptote and the steepness have priors
from the fits that ScaleRL prints (arXiv 2510.13786), and a run may fall later as often as theirs do. The form is a
number that is integrated over: ScaleRL's sigmoid is in the middle, an exponential and a power law lie on either side,
and any of them may keep growing or fall from some compute on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..data.curves import Array
from ..errors import FrontierError
from .density import Priors
from .model import STEEPNESS, TAIL, Model
from .posterior import AGREED, Posterior, sample, split_r_hat
from .runs import Runs

PUBLISHED = """
ScaleRL 0.610 1.92, ScaleRL-32k 0.645 1.89, ScaleRL-8gen 0.585 2.44, ScaleRL-24gen 0.590 2.22, ScaleRL-32gen 0.595 2.07,
ScaleRL-Scout 0.710 1.65, ScaleRL-bs512 0.605 1.77, ScaleRL-bs2048 0.645 1.70, math 0.595 2.05, code 0.615 1.09,
prompt-level-advantages 0.590 2.09, length-penalty 0.610 1.68, no-variance-filter 0.595 1.84,
PPO-off-policy-8 0.605 1.89, no-fp32-head 0.610 1.88, sample-average 0.600 1.93, uniform-sampling 0.605 1.62,
DAPO-loss 0.610 1.77, MiniMax 0.610 1.77, Magistral 0.535 1.44, Qwen2.5 0.515 1.85, DeepSeek 0.490 1.17,
base-PPO-off-policy-1 0.520 2.15, base-PPO-off-policy-8 0.520 2.65, base-PipelineRL-4 0.520 4.17,
base-PipelineRL-8 0.520 4.55, base-PipelineRL-12 0.490 4.97, base-CISPO 0.595 2.18, base-GSPO 0.590 1.80,
base-DAPO 0.520 4.55, base-fp32-head 0.610 1.79, base-no-normalisation 0.525 3.65, base-batch-normalisation 0.530 3.15,
base-prompt-average 0.535 2.98, base-token-average 0.550 1.62, base-variance-filter 0.540 2.68,
base-no-positive-resampling 0.535 3.84, base-CISPO-4 0.595 2.14, base-CISPO-8 0.590 2.54, base-GSPO-1e-4 0.530 1.72,
base-GSPO-1e-3 0.575 3.64, base-GSPO-1e-2 0.560 5.17, base-GSPO-1e-1 0.575 2.37
"""
"""A and B of ScaleRL's fits: Table 1 and Figure 7, Figure 2, and (``base-``) Figures 4 to 6, 14, 19 and 20."""
BEFORE, BEFORE_SCOUT = 0.40, 0.51
"""Reward before training of its 8B model and of Scout, read from its drawn curves: no table gives it."""
DEGREE = 1.0
"""Parameter d of sinh(d·x)/d, which makes tails longer than in the published fits: other models, other problems."""
FORM = (0.0, 0.5)
"""Mean and standard deviation of log q: 1 is ScaleRL's sigmoid, a fifth or less nearly an exponential."""
START = (-0.15, 0.3)
"""Mean and standard deviation of the logit of R0 less that of the first evaluation, if that is not before training."""
TIMING = 1.5
"""Standard deviation of the log compute of half the gain, about the log compute of the last evaluation."""
PRIORS = Priors(growth=0.02, rising=0.0)
"""The one run that ScaleRL fits again with twice the data (its appendix: A from 0.645 to 0.655) gained another 0.04 of
its gain per e-fold of compute; for its other runs it mentions nothing."""
LOST = 0.9
"""Shift of the share of the gain lost in the end, in units of its prior: the median is 0.8."""
NOISE = (0.3, 0.4)
"""Mean and standard deviation of log κ, relative to the scatter of evaluations about their neighbours: lasting noise,
with the autocorrelation below, shows 0.72 of itself there."""
LASTING = 1.0
"""Shift of the autocorrelation of evaluations, in units of its prior: the median is 0.4, as they ask the same
questions."""
SIZE = (48, 40, 32)
"""Chains, warm-up steps, and kept steps."""
ROUNDS = 8
"""Most rounds of drawing: if a run may fall or keep growing, chains take several to agree on the probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expectations about a run before its evaluations.

    Attributes:
        gain: Mean and standard deviation of the logit of (A − R0)/(1 − R0).
        steepness: Mean and standard deviation of log B.
        correlation: Correlation of both: recipes that end lower rise more steeply.
    """

    gain: tuple[float, float]
    steepness: tuple[float, float]
    correlation: float


def published() -> dict[str, tuple[float, float]]:
    """A and B of each published fit."""
    rows = (row.split() for row in PUBLISHED.split(","))
    return {name: (float(asymptote), float(steepness)) for name, asymptote, steepness in rows}


def expected(without: Sequence[str] = ()) -> Expected:
    """The prediction of published fits for a run that is not among them.

    Args:
        without: Fits to leave out: those of the run that is forecast.

    Raises:
        FrontierError: There is no such fit.
    """
    fits = published()
    unknown = [name for name in without if name not in fits]
    if unknown:
        raise FrontierError(f"there is no published fit {unknown[0]!r}; there are {', '.join(fits)}")
    kept = {name: fit for name, fit in fits.items() if name not in without}
    before = np.array([BEFORE_SCOUT if name == "ScaleRL-Scout" else BEFORE for name in kept])
    asymptote, steepness = np.array(list(kept.values())).T
    share = (asymptote - before) / (1 - before)
    gain, log_b = np.log(share / (1 - share)), np.log(steepness)
    return Expected(
        gain=(float(gain.mean()), float(gain.std(ddof=1))),
        steepness=(float(log_b.mean()), float(log_b.std(ddof=1))),
        correlation=float(np.corrcoef(gain, log_b)[0, 1]),
    )


PARTS = ("start", "tail", "shape", "step", "bend", "level", "excess", "autocorrelation")
"""Numbers of the model that one run informs; all others distinguish runs or settings."""
Q, B, F, GAIN, WHEN, KAPPA, PHI = 1, 2, 8, 9, 10, 11, 12
"""Positions, among the numbers of one run, of those with a prior of their own."""


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The density of one run's numbers, standard normal before its evaluations.

    Attributes:
        model: The model of that run alone.
    """

    model: Model
    expected: Expected = field(default_factory=expected)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Positions of these numbers in a vector of the model; the bend has no slopes in n."""
        parts = {name: list(range(part.start, part.stop)) for name, part in self.model.parts.items()}
        parts["bend"] = [parts["bend"][k] for k in (0, 2, 4, 5)]
        return np.array([k for name in PARTS for k in parts[name]])

    def numbers(self, own: Array) -> Array:
        """Vectors of the model, shape ``(chains, size)``."""
        return self._vectors(self._mapped(own)[0])

    def _vectors(self, mapped: Array) -> Array:
        theta = np.zeros((len(mapped), self.model.size))
        theta[:, self.places] = mapped
        return theta

    def __call__(self, own: Array) -> tuple[Array, Array]:
        """Log density, shape ``(chains,)``, and its gradient, shape ``(chains, numbers)``."""
        mapped, slope, of_steepness = self._mapped(own)
        value, gradient = self.model(self._vectors(mapped))
        # Remove the model's own prior of these numbers.
        by_mapped = gradient[:, self.places] + mapped
        by_own = by_mapped * slope - own
        by_own[:, [Q, GAIN]] += by_mapped[:, [B]] * of_steepness
        return value + 0.5 * (mapped**2).sum(axis=1) - 0.5 * (own**2).sum(axis=1), by_own

    def _mapped(self, own: Array) -> tuple[Array, Array, Array]:
        """The model's numbers, their derivatives by their own numbers, and the steepness's by form and gain."""
        mapped, slope = own.copy(), np.ones_like(own)
        runs = self.model.runs
        if runs.compute[0, 0] > 0:
            # The model's unit is ½.
            mapped[:, 0], slope[:, 0] = (START[0] + START[1] * own[:, 0]) / 0.5, START[1] / 0.5
        log_q, by_q = FORM[0] + FORM[1] * own[:, Q], FORM[1]
        mapped[:, Q], slope[:, Q] = (log_q - TAIL[0]) / TAIL[1], by_q / TAIL[1]
        gain, by_gain = _stretched(own[:, GAIN])
        rest, by_rest = _stretched(own[:, B])
        expected, both = self.expected, self.expected.correlation
        apart = np.sqrt(1 - both**2)
        log_b = expected.steepness[0] + expected.steepness[1] * (both * gain + apart * rest)
        # B belongs to the sigmoid that has the same slope in log C at half of the gain.
        q, left = np.exp(log_q), np.exp2(-np.exp(log_q))
        steep = (log_b - np.log(2 * (1 - left) / q) - STEEPNESS[0]) / STEEPNESS[1]
        by_steep = 1 / np.sqrt(1 + steep**2) / STEEPNESS[1]
        mapped[:, B], slope[:, B] = np.arcsinh(steep), by_steep * expected.steepness[1] * apart * by_rest
        by_form = by_steep * by_q * (1 - np.log(2.0) * q * left / (1 - left))
        by_height = by_steep * expected.steepness[1] * both * by_gain
        mapped[:, F] += LOST
        # The model's unit is 1.5 for both.
        mapped[:, GAIN] = (expected.gain[0] + expected.gain[1] * gain) / 1.5
        slope[:, GAIN] = expected.gain[1] * by_gain / 1.5
        when = np.log(runs.last[0]) - self.model.middle + TIMING * own[:, WHEN]
        mapped[:, WHEN], slope[:, WHEN] = when / 1.5, TIMING / 1.5
        mapped[:, KAPPA], slope[:, KAPPA] = NOISE[0] + NOISE[1] * own[:, KAPPA], NOISE[1]
        mapped[:, PHI] += LASTING
        return mapped, slope, np.stack([by_form, by_height], axis=1)


def _stretched(own: Array) -> tuple[Array, Array]:
    """A number with long tails, and its derivative by a standard normal number."""
    return np.sinh(DEGREE * own) / DEGREE, np.cosh(DEGREE * own)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Draws of one run.

    Attributes:
        reward: Shape ``(draws, points)``.
        noise: Standard deviation of an evaluation, shape ``(draws,)``.
        autocorrelation: Between consecutive evaluations, shape ``(draws,)``.
        named: A, R0, C_mid and B by ScaleRL's names, without later bends of the curve; empty without a curve.
    """

    reward: Array
    noise: Array
    autocorrelation: Array
    named: dict[str, Array]


def single(runs: Runs, at: Array, *, before: Expected, seed: int) -> Drawn:
    """Fit one run.

    Args:
        runs: That run alone; only ratios of its errors are meaningful.
        at: Compute of the drawn rewards.
        before: Expectations about the run.
    """
    model = Model(runs=runs, priors=PRIORS)
    density = OneRun(model=model, expected=before)
    last = float(runs.last[0])
    size = len(density.places)

    def posterior_of(chains: Array) -> Posterior:
        return Posterior(model=model, theta=density.numbers(chains.reshape(-1, size)), split_r_hat=np.inf)

    def agreed(chains: Array) -> bool:
        ends = posterior_of(chains).of_run(0, np.array([last, 4 * last]))
        return bool(split_r_hat(ends.reshape(*chains.shape[:2], -1)).max() < AGREED)

    with threadpool_limits(1):
        found = sample(
            density,
            np.zeros(size),
            np.ones(size, dtype=np.bool_),
            chains=SIZE[0],
            warm_up=SIZE[1],
            kept=SIZE[2],
            rng=np.random.default_rng(seed),
            agreed=agreed,
            rounds=ROUNDS,
        )
    thinned = posterior_of(found[np.linspace(0, len(found) - 1, SIZE[2]).round().astype(int)])
    return Drawn(
        reward=thinned.of_run(0, at),
        noise=np.asarray(model.excess(thinned.theta)[:, 0] * np.median(runs.error[0])),
        autocorrelation=np.asarray(model.autocorrelation(thinned.theta)[:, 0]),
        named=_named(model, thinned.theta),
    )


def _named(model: Model, theta: Array) -> dict[str, Array]:
    both, shapes = model.cells(theta)
    q, start = model.tail(theta)[:, 0], model.start(theta)[:, 0]
    gain = (1 - start) / (1 + np.exp(-both[:, 0, 0]))
    steepness = np.exp(shapes[:, 0]) * 2 * (1 - np.exp2(-q)) / q
    asymptote = np.clip(start + model.step(theta)[0][:, 0] + gain, 0.0, 1.0)
    return {"A": asymptote, "R0": start, "C_mid": np.exp(both[:, 1, 0]), "B": steepness}
