"""The model of ``posterior/model.py`` written again in numpyro, from its equations and not from its code.

It shares with the posterior the arrays of the runs, errors of evaluations included, and the statement of the priors.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from isocompute.frontier.posterior.density import TURN, Priors
from isocompute.frontier.posterior.model import BEND, FALL, ONSET, RARE, STEEPNESS, STEP
from isocompute.frontier.posterior.runs import Runs
from numpyro.infer import MCMC, NUTS, init_to_median

jax.config.update("jax_enable_x64", True)

CHAINS, WARM_UP, KEPT = 2, 600, 2500
SEEDS, AGREED = 4, 0.003
"""Seeds that are tried, and the reward by which means of chains that agree may differ."""
UNITS = {"steepness": 1, "step": 2, "bend": 6}
"""Numbers that are standard normal before the data."""


def coordinates(runs: Runs) -> np.ndarray:
    """log2 n, log2 B_p and log2 of the rate over √B about their means, shape ``(cells, 3)``."""
    rows = [
        [np.log2(c.rollouts_per_problem), np.log2(c.problems_per_batch), np.log2(c.learning_rate or 1.0)]
        for c in runs.cells
    ]
    at = np.array(rows)
    at[:, 2] -= at[:, :2].sum(axis=1) / 2 if runs.cells[0].learning_rate else 0.0
    return np.asarray(at - at.mean(axis=0))


def deviation(name: str, median: tuple[float, ...], factor: float) -> Any:
    """Deviations known to a factor each, shape ``(rows, 1)``."""
    known = numpyro.sample(name + " sd", dist.Normal(0, 1).expand([len(median)]))
    return (jnp.array(median) * jnp.exp(factor * known))[:, None]


def rise(position: Any, q: Any) -> Any:
    """1 − (1 + q·w)^(−1/q) with w = (2^q − 1)/q·exp(position)."""
    return 1 - (1 + (2**q - 1) * jnp.exp(jnp.minimum(position, 60.0))) ** (-1 / q)


def model(runs: Runs, at: np.ndarray, rates: bool, priors: Priors) -> None:
    """The density of all runs of one base model; rewards of the cells at their runs' compute are kept as ``mean``."""
    cells, count = len(at), len(runs.cell)
    n, batch, rate = at.T
    columns, means, sds = [n, batch], [0.0, 0.0], [0.25, 0.25]
    if rates:
        columns, means, sds = [*columns, rate, rate**2, rate * n], [0, 0, 0, -0.3, 0], [0.25, 0.25, 0.7, 0.3, 0.2]
    apart = (at[:, None] - at[None]) / np.array([2.5, 2.5, 2.0 if rates else np.inf])
    root = np.linalg.cholesky(np.exp(-0.5 * (apart**2).sum(axis=2)) + 1e-6 * np.eye(cells))
    own = runs.reward[:, 0].mean()
    r0 = jax.nn.sigmoid(np.log(own / (1 - own)) + numpyro.sample("start", dist.Normal(0, 0.5)))
    q = jnp.exp(numpyro.sample("log q", dist.Normal(-2.0, 1.5)))
    positive = runs.compute[runs.seen & (runs.compute > 0)]
    level = numpyro.sample("level", dist.Normal(jnp.array([0.0, np.log(positive).mean()]), 1.5).to_event(1))
    centre = np.stack([means, np.zeros(len(means))])
    slopes = numpyro.sample("slopes", dist.Normal(centre, np.array(sds)).to_event(2))
    smooth = deviation("smooth", priors.smooth, priors.wide) * (
        numpyro.sample("smooth", dist.Normal(0, 1).expand([2, cells]).to_event(2)) @ root.T
    )
    departure = deviation("departure", priors.departure, priors.departure_factor) * numpyro.sample(
        "departure", dist.StudentT(4.0).expand([2, cells]).to_event(2)
    )
    amplitude, timing = level[:, None] + slopes @ np.stack(columns) + smooth + departure
    single = deviation("shapes", (priors.shape,), priors.wide)[0]
    usual, step, turn = (numpyro.sample(k, dist.Normal(0, 1).expand([m]).to_event(1)) for k, m in UNITS.items())
    each = numpyro.sample("shapes and bends", dist.Normal(0, 1).expand([2, cells]).to_event(2))
    log_s = STEEPNESS[0] + STEEPNESS[1] * jnp.sinh(usual) + single * each[0]
    half_step = positive.min() * jnp.exp(STEP[1] * step[1])
    rare = RARE[1] * jax.nn.softplus((jnp.array([1.0, -1.0]) * turn[0] - RARE[0]) / RARE[1])
    usual_e = priors.growth + BEND[0] * jnp.sinh(turn[0]) + priors.rising * rare[0] - priors.falling * rare[1]
    e = usual_e + BEND[1] * turn[1] * n
    e = e + deviation("bends", (priors.bend,), priors.departure_factor)[0] * each[1]
    w = np.log(positive.max()) + ONSET[0] * turn[2] + ONSET[1] * turn[3] * n
    seed_sd = deviation("amplitude of seeds", (priors.seed_amplitude,), priors.seed_factor)
    seed_sd = jnp.concatenate([seed_sd, deviation("timing of seeds", (priors.seed_timing,), priors.wide)])
    alpha, delta = seed_sd * numpyro.sample("seeds", dist.StudentT(6.0).expand([2, count]).to_event(2))
    with np.errstate(divide="ignore"):
        log_compute = jnp.array(np.maximum(np.log(runs.compute), -1e3))
    cell = runs.cell
    gain = (1 - r0) * jax.nn.sigmoid(amplitude)[cell][:, None]
    position = jnp.exp(log_s)[cell][:, None] * (log_compute - timing[cell][:, None])
    first = r0 + STEP[0] * step[0] * (1 - 2 ** (-runs.compute / half_step))
    since, (d, f) = TURN * jax.nn.softplus((log_compute - w[cell][:, None]) / TURN), jax.nn.sigmoid(FALL * turn[4:])
    up, worn = jnp.maximum(e, 0.0)[cell][:, None] * since, jnp.minimum(e, 0.0)[cell][:, None] * jnp.expm1(d * since) / d

    def bent(share: Any) -> Any:
        return share * (1 - f + f * jnp.exp(worn / f)) + up

    numpyro.deterministic("mean", first + gain * bent(rise(position, q)))
    shifted = position - jnp.exp(log_s)[cell][:, None] * delta[:, None]
    reward = first + gain * (1 + alpha[:, None]) * bent(rise(shifted, q))
    wide = numpyro.sample("excess", dist.Normal(0, 1))
    excess = jnp.sqrt(1 + 0.2 * jnp.exp(1.5 * wide)) if runs.error_is_known else jnp.exp(wide)
    phi = jax.nn.sigmoid(numpyro.sample("autocorrelation", dist.Normal(-1.5, 1.0)))
    scale = excess * runs.error
    residual = (runs.reward - reward) / scale
    # Each evaluation given the one before it in its run.
    expected = jnp.concatenate([jnp.zeros((count, 1)), phi * residual[:, :-1]], axis=1)
    spread = jnp.concatenate([jnp.ones((count, 1)), jnp.full((count, runs.reward.shape[1] - 1), 1.0)], axis=1)
    spread = spread.at[:, 1:].set(jnp.sqrt(1 - phi**2))
    density = dist.Normal(reward + expected * scale, spread * scale).log_prob(runs.reward)
    numpyro.factor("evaluations", jnp.where(runs.seen, density, 0.0).sum())


def drawn(runs: Runs, priors: Priors) -> np.ndarray:
    """Draws of the reward of each run's setting at its evaluations, shape ``(draws, runs, points)``.

    A chain of NUTS is sometimes stuck where deviations are near 0. Chains whose means differ are no reference: others
    are drawn, from a further seed.

    Raises:
        RuntimeError: Chains of no seed agree.
    """
    settings = {(c.rollouts_per_problem, c.problems_per_batch) for c in runs.cells}
    for seed in range(SEEDS):
        chains = MCMC(
            NUTS(model, target_accept_prob=0.9, init_strategy=init_to_median),
            num_warmup=WARM_UP,
            num_samples=KEPT,
            num_chains=CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        chains.run(jax.random.PRNGKey(seed), runs, coordinates(runs), len(settings) < len(runs.cells), priors)
        each = np.asarray(chains.get_samples(group_by_chain=True)["mean"])
        apart = float(np.ptp(each.mean(axis=1), axis=0)[runs.seen].max())
        print(f"NUTS, seed {seed}: means of its chains differ by {apart:.4f} at most")
        if apart < AGREED:
            return np.concatenate(each)
    raise RuntimeError(f"chains of NUTS differ by more than {AGREED} in all {SEEDS} seeds")
