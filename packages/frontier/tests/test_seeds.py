"""Seeds are drawn jointly: what moves all n of a seed alike does not blur where their curves cross."""

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, fit
from isocompute.frontier.curves import curves
from isocompute.frontier.forms import Parameters
from isocompute.frontier.uncertainty import Noise, estimate_noise, seed_effects

SEEDS, POINTS = 6, 20
TRUTH = {4: (0.30, 0.45, 3000.0), 16: (0.30, 0.60, 9000.0)}
"""n to (R0, A, τ)."""


def sweep(shared: bool, *, seed: int = 0, offset: int = 0, spread: float = 0.05) -> pl.DataFrame:
    """Two n with six seeds each whose effects are the same for both n, or not."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0, spread, SEEDS)
    parts = []
    for i, (n, (start, asymptote, tau)) in enumerate(TRUTH.items()):
        own = common if shared else rng.normal(0, spread, SEEDS)
        for s in range(SEEDS):
            compute = np.arange(1, POINTS + 1) * 1024
            rise = 1 - np.exp(-compute / tau)
            grown = rise / rise[-1]
            reward = start + (asymptote - start) * rise + own[s] * grown + rng.normal(0, 0.005, POINTS)
            parts.append(
                pl.DataFrame({"rollouts": compute, "avg_at_4": np.clip(reward, 0, 1)}).with_columns(
                    rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(8), seed=pl.lit(s + offset * i),
                    problem_set=pl.lit("easy"), split=pl.lit("validation"), questions=pl.lit(2000),
                    samples=pl.lit(4),
                )
            )  # fmt: skip
    return pl.concat(parts)


def noise_of(table: pl.DataFrame) -> Noise:
    found = curves(table, metric="avg_at_4", unit="rollouts", split="validation")
    truths = [
        Parameters(form="exp", start=a, gain=b - a, scale=t, shape=1.0)
        for a, b, t in (TRUTH[c.rollouts_per_problem] for c in found)
    ]
    return estimate_noise(found, truths)


def test_what_seeds_share_is_seen_and_counts_as_fewer_degrees() -> None:
    alike, apart = noise_of(sweep(shared=True)), noise_of(sweep(shared=False))
    assert alike.shared > 0.9
    assert apart.shared < 0.6
    assert alike.degrees == pytest.approx(SEEDS - 1, rel=0.15)
    assert apart.degrees > alike.degrees
    # Two n of one seed are one observation of how seeds differ, and so are seeds of different names none in common.
    assert noise_of(sweep(shared=True, offset=100)).shared == 0.0


def test_a_refit_gives_a_shared_seed_one_effect_on_every_n() -> None:
    found = curves(sweep(shared=True), metric="avg_at_4", unit="rollouts", split="validation")
    noise = Noise(between_seeds=0.05, degrees=5.0, autocorrelation=0.0, shared=1.0)
    first, second = seed_effects(found, noise, refits=50, rng=np.random.default_rng(0))
    assert np.array_equal(first, second)
    half = Noise(between_seeds=0.05, degrees=500.0, autocorrelation=0.0, shared=0.5)
    first, second = seed_effects(found, half, refits=4000, rng=np.random.default_rng(0))
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] == pytest.approx(0.5, abs=0.03)
    assert first.std() == pytest.approx(0.05, rel=0.05)


def test_the_crossover_of_shared_seeds_is_sharper_than_that_of_others() -> None:
    spans = {}
    for offset in (0, 100):
        fits = fit(sweep(shared=True, offset=offset), FitConfig(form="exp", bootstrap=200))
        low, high = next(x.interval for x in fits.crossovers if x.kind == "crossing" and x.interval)
        spans[offset] = np.log(high / low)
    assert spans[0] < 0.7 * spans[100]
