"""The checks of a fit: settings left out, deviations against expectation, the best learning rate of each n."""

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit
from isocompute.frontier.answers import fitted as checked
from isocompute.frontier.answers.fitted import conflicts, left_out, left_out_line

from ..conftest import evals, quick, run

pytestmark = pytest.mark.slow("many fits")


def sweep(gains: dict[tuple[int, float], float], *, seeds: int = 1, deviation: float = 0.02) -> pl.DataFrame:
    """Exponential runs of some n and learning rates, whose gains differ by a share from seed to seed."""
    rng, parts = np.random.default_rng(0), []
    compute = np.arange(0, 17) * 1024
    for (n, rate), gain in gains.items():
        for seed in range(seeds):
            made = gain * (1 + deviation * rng.standard_normal()) * (1 - np.exp(-compute / 5e3))
            reward = rng.binomial(1200, 0.2 + made) / 1200
            parts.append(run(compute, reward, seed=seed, rollouts_per_problem=n, learning_rate=rate))
    return pl.concat(parts)


@pytest.fixture(scope="module")
def tuned() -> Fit:
    """Gains that fall by 0.04 for every octave squared from the best rate, which grows as the root of B."""
    best = {n: 1e-4 * n**0.5 for n in (2, 8, 32)}
    gains = {
        (n, top * factor): 0.4 - 0.04 * np.log2(factor) ** 2 + 0.02 * np.log2(n)
        for n, top in best.items()
        for factor in (0.25, 1, 4)
    }
    return quick(sweep(gains))


def test_the_best_rates_and_how_they_grow_are_found(tuned: Fit) -> None:
    found = tuned.best_rates(16_384)
    assert found is not None
    assert found.rollouts_per_problem == (2, 8, 32)
    for n, (low, high) in zip(found.rollouts_per_problem, found.interval, strict=True):
        assert low < 1e-4 * n**0.5 < high
    low, high = found.exponent_interval
    assert low < 0.5 < high
    assert high - low < 1
    assert "the √B rule lies inside" in found.line()


def test_a_rate_that_does_not_grow_is_told_from_the_root_rule() -> None:
    gains = {(n, 1e-4 * factor): 0.4 - 0.06 * np.log2(factor) ** 2 for n in (2, 16, 128) for factor in (0.25, 1, 4)}
    found = quick(sweep(gains, deviation=0.0)).best_rates(16_384)
    assert found is not None
    assert "outside" in found.line()
    assert abs(found.exponent) < 0.25


def test_of_two_n_at_one_rate_no_rate_is_the_best_and_none_is_left_out() -> None:
    fitted = quick(evals(seeds=1, points=10))
    assert fitted.best_rates(10_240) is None
    assert left_out(fitted) == {}


def test_an_n_that_follows_the_others_is_predicted_and_an_odd_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "QUICK", (16, 40, 16))
    monkeypatch.setattr("isocompute.frontier.posterior.posterior.AGREED", np.inf)
    smooth = {(n, 1e-4): 0.3 + 0.03 * np.log2(n) for n in (2, 4, 8, 16)}
    found = left_out(quick(sweep({**smooth, (8, 1e-4): 0.05})))
    assert {n: low <= reward <= high for n, (reward, low, high) in found.items()} == {2: 1, 4: 1, 8: 0, 16: 1}
    assert "n = 8: 0.2" in left_out_line(found)


def test_seeds_that_differ_far_more_than_expected_are_named() -> None:
    same = {(n, 1e-4): 0.3 for n in (2, 16)}
    assert not any("seeds differ in gain" in line for line in conflicts(quick(sweep(same, seeds=2))))
    wild = conflicts(quick(sweep(same, seeds=4, deviation=0.5)))
    assert any("seeds differ in gain by 0." in line and "0.06 was expected" in line for line in wild)
