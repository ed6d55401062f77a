"""How seeds differ: the total variance, what of it all n share, and the basis of amplitude and timing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.data.curves import Curve
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.noise import Noise, estimate_noise, seed_effects
from isocompute.frontier.fitting.seeds import SHARES, effect_basis, effects_of, spread_of, without_effects

TRUTH = Parameters(form="exp", start=0.3, gain=0.3, scale=6000.0, shape=1.0)
COMPUTE = np.arange(1, 17) * 1024.0
NONE = [np.zeros(2)] * 3


def curve(reward: np.ndarray, *, n: int = 4, names: tuple[int, ...] = ()) -> Curve:
    """A curve of runs, one a row, at the same compute."""
    seeds = len(reward)
    return Curve(
        rollouts_per_problem=n, problems_per_batch=8, compute=np.tile(COMPUTE, seeds), reward=reward.ravel(),
        standard_error=np.full(16 * seeds, 0.014), seed=np.repeat(np.arange(seeds), 16), seed_names=names,
    )  # fmt: skip


def runs(effects: np.ndarray, *, noise: float = 0.0, seed: int = 0, **other: int) -> Curve:
    """Runs with effects (amplitude, timing) of each seed, shape ``(seeds, 2)``."""
    plain = curve(np.tile(TRUTH(COMPUTE), (len(effects), 1)))
    moved = plain.reward + (effect_basis(plain, TRUTH) * effects[plain.seed]).sum(axis=1)
    shaken = moved + np.random.default_rng(seed).normal(0, noise, len(moved))
    return curve(shaken.reshape(len(effects), 16), **other)


def two_way(effects: np.ndarray) -> tuple[float, float]:
    """Sums of squares of seeds and of the rest, of a table of curves × seeds, as in any textbook."""
    left = effects - effects.mean(axis=1, keepdims=True)
    seeds = left.mean(axis=0)
    return float(len(effects) * (seeds**2).sum()), float(((left - seeds) ** 2).sum())


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 5), st.integers(0, 10_000))
def test_the_likelihood_is_that_of_the_two_way_table(curves: int, seeds: int, seed: int) -> None:
    effects = np.random.default_rng(seed).normal(0, 1, (curves, seeds))
    found = spread_of([dict(enumerate(row.tolist())) for row in effects])
    assert found is not None
    assert found.degrees == curves * (seeds - 1)
    between, rest = two_way(effects)
    whole = 1 + (curves - 1) * SHARES
    squares = between / whole + rest / (1 - SHARES)
    assert found.squares == pytest.approx(squares, rel=1e-6)
    density = -0.5 * (seeds - 1) * np.log(whole) - 0.5 * (curves - 1) * (seeds - 1) * np.log(1 - SHARES)
    density -= 0.5 * found.degrees * np.log(squares)
    expected = np.exp(density - density.max())
    assert found.weights == pytest.approx(expected / expected.sum(), rel=1e-5, abs=1e-12)


def test_seeds_of_other_names_say_nothing_of_what_is_shared() -> None:
    effects = [{0: 0.1, 1: -0.1}, {2: 0.1, 3: -0.1}]
    found = spread_of(effects)
    assert found is not None
    assert found.weights == pytest.approx(np.full(len(SHARES), 1 / len(SHARES)))
    # Σ of squares 0.04, two degrees.
    assert found.sd == pytest.approx(np.sqrt(0.04 / 2))


def test_one_seed_has_no_spread() -> None:
    assert spread_of([{0: 0.1}, {0: 0.2}]) is None


@pytest.mark.parametrize(
    ("curves", "seeds", "shared"), [(3, 2, 0.0), (3, 2, 0.5), (3, 2, 0.9), (8, 2, 0.5), (6, 3, 0.9)]
)
def test_draws_of_a_difference_and_of_a_level_hold_the_truth(curves: int, seeds: int, shared: float) -> None:
    rng = np.random.default_rng(0)
    differences = levels = 0
    for _ in range(300):
        common, own = rng.standard_normal((1, seeds)), rng.standard_normal((curves, seeds))
        effects = 0.02 * (np.sqrt(shared) * common + np.sqrt(1 - shared) * own)
        spread = spread_of([dict(enumerate(row.tolist())) for row in effects])
        noise = Noise(autocorrelation=0.0, amplitude=spread)
        every = [curve(np.zeros((seeds, 16)))] * 2
        a, b = (e[:, :, 0].mean(axis=1) for e in seed_effects(every, NONE[:2], noise, refits=300, rng=rng))
        differences += abs(effects[0].mean() - effects[1].mean()) <= np.quantile(np.abs(a - b), 0.95)
        levels += abs(effects[0].mean()) <= np.quantile(np.abs(a), 0.95)
    # What a coverage of 90 % falls below once in a thousand is 253 of 300.
    assert differences >= 253
    assert levels >= 253


def test_both_effects_are_found_and_removed() -> None:
    effects = np.array([[0.03, 0.01], [-0.01, -0.01], [0.01, 0.0]])
    measured = runs(effects)
    basis, residuals = effect_basis(measured, TRUTH), measured.reward - TRUTH(measured.compute)
    assert basis[15] == pytest.approx((1.0, basis[15, 1]))
    assert np.abs(basis[:, 1]).max() == pytest.approx(1.0)
    found, _ = effects_of(measured, basis, residuals)
    assert found == pytest.approx(effects, abs=1e-9)
    # Only departures from the mean of the seeds go: the mean is the curve's.
    left = without_effects(measured, basis, residuals)
    assert left == pytest.approx((basis * effects.mean(axis=0)).sum(axis=1), abs=1e-9)


def test_a_run_that_starts_sooner_is_timing_and_not_noise() -> None:
    faster = Parameters(form="exp", start=0.3, gain=0.3, scale=6000.0 * np.exp(-0.1), shape=1.0)
    measured = curve(np.stack([faster(COMPUTE), TRUTH(COMPUTE)]))
    residuals = measured.reward - TRUTH(measured.compute)
    left = without_effects(measured, effect_basis(measured, TRUTH), residuals)
    amplitude_only = effect_basis(measured, TRUTH) * np.array([1.0, 0.0])
    more = without_effects(measured, amplitude_only, residuals)
    # Half of what differs is the mean of the two, which stays.
    spread = np.abs(left[:16] - left[16:]).max()
    assert spread < 0.1 * np.abs(more[:16] - more[16:]).max()


def test_a_refit_gives_a_shared_seed_one_effect_on_every_n() -> None:
    same = np.array([[0.05, 0.0], [-0.02, 0.0], [0.01, 0.0], [-0.04, 0.0]])
    measured = [runs(same, n=n, noise=1e-4, seed=n) for n in (4, 8, 16)]
    noise = estimate_noise(measured, [TRUTH] * 3)
    assert noise.amplitude is not None
    assert noise.amplitude.share > 0.9
    first, second, _ = seed_effects(measured, NONE, noise, refits=4000, rng=np.random.default_rng(0))
    assert np.corrcoef(first[:, :, 0].ravel(), second[:, :, 0].ravel())[0, 1] > 0.9


def test_what_measures_effects_is_not_counted_twice() -> None:
    apart = [runs(np.zeros((3, 2)), n=n, noise=0.01, seed=n) for n in (4, 8, 16)]
    noise = estimate_noise(apart, [TRUTH] * 3)
    assert noise.amplitude is not None
    measuring = [np.full(2, noise.amplitude.sd**2)] * 3
    rng = np.random.default_rng(0)
    taken = seed_effects(apart, measuring, noise, refits=4000, rng=rng)[0][:, :, 0]
    whole = seed_effects(apart, NONE, noise, refits=4000, rng=rng)[0][:, :, 0]
    assert np.median(np.abs(taken)) < 0.5 * np.median(np.abs(whole))
