"""Noise within a run: its size where it is larger than sampling makes it, and what autocorrelated points are worth."""

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, Flag, fit
from isocompute.frontier.data.curves import Curve
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.noise import Noise, effective_points, estimate_noise, scatter
from isocompute.frontier.fitting.simulation import Simulation
from scipy import stats

TRUTH = Parameters(form="exp", start=0.3, gain=0.3, scale=6000.0, shape=1.0)


def measured(factor: float, phi: float, *, seeds: int = 1, points: int = 200, seed: int = 0) -> Curve:
    rng = np.random.default_rng(seed)
    compute = np.tile(np.linspace(1000, 60_000, points), seeds)
    shocks = rng.standard_normal((seeds, points))
    noise = np.empty_like(shocks)
    noise[:, 0] = shocks[:, 0]
    for t in range(1, points):
        noise[:, t] = phi * noise[:, t - 1] + np.sqrt(1 - phi**2) * shocks[:, t]
    return Curve(
        rollouts_per_problem=4, problems_per_batch=8, compute=compute,
        reward=TRUTH(compute) + factor * 0.01 * noise.ravel(), standard_error=np.full(points * seeds, 0.01),
        seed=np.repeat(np.arange(seeds), points),
    )  # fmt: skip


@pytest.mark.parametrize("seeds", [1, 2, 4])
@pytest.mark.parametrize(("factor", "phi"), [(1.0, 0.0), (5.0, 0.0), (3.0, 0.5)])
def test_the_size_and_the_autocorrelation_of_noise_are_found(seeds: int, factor: float, phi: float) -> None:
    every = [measured(factor, phi, seeds=seeds, seed=s) for s in range(4)]
    noise = estimate_noise(every, [TRUTH] * 4)
    assert noise.autocorrelation == pytest.approx(phi, abs=0.08)
    found = [scatter(c, TRUTH, noise).factor for c in every]
    assert np.mean(found) == pytest.approx(factor, rel=0.1)


def test_draws_of_the_size_are_as_wide_as_their_degrees() -> None:
    within = scatter(measured(2.0, 0.0, points=20), TRUTH, Noise(autocorrelation=0.0))
    assert within.degrees == 17
    drawn = within.draw(20_000, np.random.default_rng(0), least=0.0)
    expected = within.factor * np.sqrt(17 / stats.chi2.ppf([0.975, 0.025], 17))
    assert np.quantile(drawn, [0.025, 0.975]) == pytest.approx(expected, rel=0.03)
    assert scatter(measured(0.1, 0.0), TRUTH, Noise(autocorrelation=0.0)).draw(
        9, np.random.default_rng(0), least=1.0
    ) == pytest.approx(np.ones(9))


def test_points_are_worth_less_by_autocorrelation_and_by_what_seeds_take() -> None:
    assert effective_points(60, 1, 0.0) == 60
    assert effective_points(60, 1, 0.5) == pytest.approx(20)
    assert effective_points(60, 3, 0.5) == pytest.approx(16)
    assert effective_points(4, 3, 0.9) == 1


def test_a_second_seed_does_not_hide_noise_that_is_larger_than_binomial() -> None:
    truth = {4: Parameters(form="exp", start=0.33, gain=0.35, scale=4000.0, shape=1.0)}
    widths, held = {}, 0
    for seeds in (1, 2):
        setting = Simulation(
            truths=truth, end=40_000, evaluations=24, seeds=seeds, dispersion=5.0, amplitude=0.0, timing=0.0
        )
        rng = np.random.default_rng(5)
        spans = []
        for run in range(20):
            (c,) = fit(setting.evals(rng), FitConfig(form="exp", bootstrap=100, seed=run)).curves
            assert c.asymptote_interval is not None
            spans.append(c.asymptote_interval[1] - c.asymptote_interval[0])
            held += c.asymptote_interval[0] <= 0.68 <= c.asymptote_interval[1]
        widths[seeds] = np.median(spans)
    # Bare binomial noise gave two seeds an interval of a third of this width.
    assert widths[2] > 0.6 * widths[1]
    assert held >= stats.binom.ppf(0.001, 40, 0.9)


def test_noise_is_not_pooled_over_recipes() -> None:
    truth = {4: Parameters(form="exp", start=0.33, gain=0.35, scale=4000.0, shape=1.0)}
    setting = Simulation(truths=truth, end=40_000, evaluations=24, seeds=3, dispersion=1.0, amplitude=0.02, timing=0.0)
    calm = setting.evals(np.random.default_rng(0))
    wild = Simulation(truths=truth, end=40_000, evaluations=24, seeds=3, amplitude=0.4).evals(np.random.default_rng(1))

    def named(table: pl.DataFrame, name: str) -> pl.DataFrame:
        return table.with_columns(recipe=pl.lit(name), run_id=name + pl.col("run_id"))

    config = FitConfig(form="exp", bootstrap=100, group="recipe")
    alone = fit(named(calm, "calm"), config).curves[0].asymptote_interval
    both = fit(pl.concat([named(calm, "calm"), named(wild, "wild")]), config).curves
    beside = next(c.asymptote_interval for c in both if c.curve.group == "recipe = calm")
    assert alone is not None
    assert beside is not None
    assert beside[1] - beside[0] == pytest.approx(alone[1] - alone[0], rel=0.3)


def test_a_curve_of_one_seed_has_the_spread_of_the_others() -> None:
    truth = Parameters(form="exp", start=0.33, gain=0.35, scale=4000.0, shape=1.0)
    setting = Simulation(truths={4: truth, 8: truth, 16: truth}, end=40_000, evaluations=24, seeds=3, amplitude=0.1)
    table = setting.evals(np.random.default_rng(0)).filter(
        (pl.col("rollouts_per_problem") != 16) | (pl.col("seed") == 0)
    )
    config = FitConfig(form="exp", bootstrap=200)
    alone = fit(table.filter(pl.col("rollouts_per_problem") == 16), config).curves[0]
    beside = next(c for c in fit(table, config).curves if c.curve.rollouts_per_problem == 16)
    assert alone.asymptote_interval is not None
    assert beside.asymptote_interval is not None
    widths = [high - low for low, high in (alone.asymptote_interval, beside.asymptote_interval)]
    assert widths[1] > 3 * widths[0]
    assert Flag.WITHIN_RUN_ONLY in alone.flags
    assert Flag.WITHIN_RUN_ONLY not in beside.flags
