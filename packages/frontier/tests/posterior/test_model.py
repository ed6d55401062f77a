"""The joint density: the family of curves, its gradient, and what must not change it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier.posterior import density
from isocompute.frontier.posterior.decision import misfits
from isocompute.frontier.posterior.density import bent, rise, step_share
from isocompute.frontier.posterior.model import Model
from isocompute.frontier.posterior.posterior import posterior
from isocompute.frontier.posterior.runs import Runs, Setting
from sweeps import exponential, line, sweep


def rates() -> Runs:
    cells = [
        Setting(rollouts_per_problem=n, problems_per_batch=batch, learning_rate=rate)
        for n in (2, 8)
        for batch in (4, 8)
        for rate in (1e-4, 2e-4)
    ]
    return sweep({c: exponential(0.2, 0.5, 2e4) for c in cells}, seeds=1)


def uneven() -> Runs:
    runs = line((4, 16), (0.4, 0.5), (1e4, 3e4))
    seen = runs.seen.copy()
    seen[1, 9:] = False
    return replace(runs, seen=seen, trials=None, error_is_known=False)


def bases() -> Runs:
    """Two base models, one of which lacks a setting."""
    runs = rates()
    first = np.arange(len(runs.cell)) != 3
    twice = {
        name: np.concatenate([getattr(runs, name), getattr(runs, name)[first]])
        for name in ("cell", "compute", "reward", "error", "seen", "trials")
    }
    twice["reward"][len(runs.cell) :] += 0.1
    base = np.repeat([0, 1], [len(runs.cell), first.sum()])
    return replace(runs, **twice, bases=("a", "b"), base=base)


@pytest.mark.parametrize("runs", [line((4, 16, 64), (0.4, 0.5, 0.45), (1e4, 2e4, 4e4)), rates(), uneven(), bases()])
@pytest.mark.parametrize("seed", [0, 1])
def test_its_gradient_is_that_of_differences(runs: Runs, seed: int) -> None:
    model = Model(runs=runs)
    theta = 0.5 * np.random.default_rng(seed).standard_normal((1, model.size))
    _, gradient = model(theta)
    step = 1e-5
    shifts = step * np.eye(model.size)
    numeric = (model(theta + shifts)[0] - model(theta - shifts)[0]) / (2 * step)
    np.testing.assert_allclose(gradient[0], numeric, rtol=2e-5, atol=2e-5)
    prior, by_prior = model._prior(theta)
    value, slope = model.tempered(0.25)(theta)
    np.testing.assert_allclose(value - prior, 0.25 * (model(theta)[0] - prior))
    np.testing.assert_allclose(slope - by_prior, 0.25 * (gradient - by_prior), atol=1e-9)


@pytest.mark.parametrize("runs", [line((4, 16, 64), (0.4, 0.5, 0.45), (1e4, 2e4, 4e4)), uneven(), bases()])
def test_it_is_that_of_autocorrelated_residuals_about_the_curves_in_blocks_of_any_size(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(runs=runs)
    theta = 0.7 * np.random.default_rng(3).standard_normal((5, model.size))
    value, gradient = model(theta)
    excess, phi = model.excess(theta)[:, 0], model.autocorrelation(theta)[:, 0]
    expected = model._prior(theta)[0]
    for k, reward in enumerate(model.curves(theta)):
        for own, curve, error, seen in zip(runs.reward, reward, runs.error, runs.seen, strict=True):
            off = ((own - curve) / (excess[k] * error))[seen]
            shocks = np.append(off[0], (off[1:] - phi[k] * off[:-1]) / np.sqrt(1 - phi[k] ** 2))
            scale = np.append(1.0, np.full(len(off) - 1, np.sqrt(1 - phi[k] ** 2))) * excess[k]
            expected[k] += (-0.5 * shocks**2 - np.log(scale)).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-11)
    for size in (1, 40, 200):
        monkeypatch.setattr(density, "BLOCK", size)
        blocks, slopes = model(theta)
        np.testing.assert_allclose(blocks, value, rtol=1e-12)
        np.testing.assert_allclose(slopes, gradient, rtol=1e-9, atol=1e-9)


def test_the_rate_is_an_axis_only_where_a_setting_has_several() -> None:
    one = [Setting(rollouts_per_problem=n, problems_per_batch=8, learning_rate=1e-4 * n**0.5) for n in (2, 8)]
    assert not Model(runs=sweep({c: exponential(0.2, 0.5, 2e4) for c in one})).rates
    assert Model(runs=rates()).rates


@pytest.mark.slow
def test_a_setting_that_is_plainly_better_is_hardly_drawn_to_the_others() -> None:
    ns = tuple(2**k for k in range(3, 11))
    gains = tuple(0.35 * (1.17 if n == 128 else 1.0) for n in ns)
    # Four and more standard errors of its mean.
    runs = line(ns, gains, (1.2e4,) * 8, deviation=0.05, seeds=2, seed=2)
    ends = runs.reward[:, -5:].mean(axis=1).reshape(8, 2).mean(axis=1)
    expected = posterior(runs).reward(1e5)[:, :, 0].mean(axis=0)
    lead, measured = (r[4] - np.delete(r, 4).mean() for r in (expected, ends))
    assert measured == pytest.approx(0.05, abs=0.01)
    assert 0.75 * measured < lead < 1.1 * measured


@pytest.mark.slow
def test_exponential_curves_are_fitted_as_that_and_are_known_less_the_farther_from_the_data() -> None:
    drawn = posterior(line((4, 16, 64), (0.3, 0.4, 0.35), (8e3, 1.2e4, 2e4), seeds=3, deviation=0.02))
    assert np.median(drawn.model.tail(drawn.theta)) < 0.15
    assert abs(np.median(drawn.model.shape(drawn.theta))) < 0.1
    once, four, sixteen = np.ptp(
        np.quantile(drawn.reward(1e5 * np.array([1, 4, 16])), [0.025, 0.975], axis=0), axis=0
    ).T
    assert (1.3 * once < four).all()
    assert (1.3 * four < sixteen).all()


@pytest.mark.slow
def test_a_sudden_rise_is_fitted_as_steep_and_overfitting_as_a_fall() -> None:
    cells = [Setting(rollouts_per_problem=n, problems_per_batch=8) for n in (4, 16, 64)]
    late = posterior(sweep({c: lambda x: 0.2 + 0.4 / (1 + (3e4 / np.maximum(x, 1)) ** 8) for c in cells}))
    assert 5 < np.exp(np.median(late.model.shape(late.theta))) < 15
    rising = exponential(0.2, 0.5, 5e3)
    falls = {c: lambda x: rising(x) - 0.1 * np.log(np.maximum(x / 2e4, 1)) for c in cells}
    fitted = posterior(sweep(falls, points=20))
    at_peak, at_end = fitted.reward(np.array([2e4, 1e5])).mean(axis=0).T
    np.testing.assert_allclose(at_peak - at_end, (0.7 - 0.5 * 0.5**4) - (0.7 - 0.161), atol=0.03)
    assert misfits(late) == misfits(fitted) == ()


def test_what_is_expected_of_curves_before_the_data() -> None:
    model = Model(runs=line((4, 16), (0.4, 0.5), (1e4, 3e4)))
    # The median, a standard deviation below and above it, and two above.
    theta = np.array([0.0, -1.0, 1.0, 2.0])[:, None] * np.ones(model.size)
    np.testing.assert_allclose(model.tail(theta)[:3, 0], [0.135, 0.0302, 0.607], rtol=0.01)
    np.testing.assert_allclose(np.exp(model.shape(theta)[:, 0]), [1.105, 0.691, 1.768, 4.715], rtol=0.01)
    medians = {name: model.deviation(theta[:1], name)[0].tolist() for name in model.families}
    both = {"smooth": [0.3, 0.4], "departure": [0.3, 0.3], "shapes": [0.1], "bends": [0.008], "seeds": [0.06, 0.08]}
    assert medians == both
    # A standard deviation more, as a factor.
    more = {name: (model.deviation(theta[2:3], name)[0] / medians[name]).tolist() for name in model.families}
    assert more["smooth"] == pytest.approx([2.46, 2.46], abs=0.01)
    assert [*more["departure"], *more["bends"]] == pytest.approx([1.82, 1.82, 1.82], abs=0.01)
    assert more["shapes"] == pytest.approx([2.46], abs=0.01)
    assert more["seeds"] == pytest.approx([2.01, 2.46], abs=0.01)
    tails = {name: family.degrees for name, family in model.families.items()}
    assert tails == {"smooth": np.inf, "departure": 4, "shapes": np.inf, "bends": np.inf, "seeds": 6}
    height, when = model.step(theta)
    np.testing.assert_allclose(height[:, 0], [0, -0.02, 0.02, 0.04])
    # The first evaluation is at 2,000, the last at 100,000.
    np.testing.assert_allclose(np.exp(when[:, 0]), 2e3 * np.exp([0, -0.7, 0.7, 1.4]), rtol=1e-6)
    for share in model.falling(theta):
        np.testing.assert_allclose(share[:, 0, 0], [0.5, 0.182, 0.818, 0.953], atol=0.001)
    slope, onset = model.bend_lines(theta, model.at).swapaxes(0, 1)
    # At the middle of two n that are two octaves apart, and what an octave adds; beyond 1.3 as rare curves do.
    rare = 0.15 * np.log1p(np.exp((np.array([[0, -1, 1, 2], [0, 1, -1, -2]]) - 1.3) / 0.15))
    np.testing.assert_allclose(slope.mean(axis=1), 0.03 * np.sinh([0, -1, 1, 2]) + 0.25 * rare[0] - 1.5 * rare[1])
    np.testing.assert_allclose(np.diff(slope)[:, 0] / 2, [0, -0.004, 0.004, 0.008])
    np.testing.assert_allclose(onset.mean(axis=1), np.log(1e5) + 1.2 * np.array([0, -1, 1, 2]))
    np.testing.assert_allclose(np.diff(onset)[:, 0] / 2, 0.2 * np.array([0, -1, 1, 2]))


def test_a_bent_curve_goes_on_by_a_share_or_falls_with_every_e_fold_or_with_compute_from_its_onset_on() -> None:
    for position, slope, speed, fall, value in (
        (-4, 0.1, 0.5, 1.0, 0.8),
        (-4, -0.1, 0.5, 1.0, 0.8),
        # It turns within 0.3 e-folds.
        (0, 0.1, 0.5, 1.0, 0.8 + 0.1 * 0.3 * np.log(2)),
        (3, 0.1, 0.5, 1.0, 0.8 + 0.1 * 3),
        (3, -0.1, 1e-6, 1.0, 0.8 * np.exp(-0.1 * 3)),
        (3, -0.1, 1.0, 1.0, 0.8 * np.exp(-0.1 * (np.exp(3) - 1))),
        (3, -1e-4, 1e-6, 0.4, 0.8 * np.exp(-1e-4 * 3)),
        (9, -0.1, 1.0, 0.4, 0.8 * 0.6),
    ):
        found = bent(*(np.array(x) for x in (0.8, slope, position, speed, fall)))
        assert float(found) == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(step_share(np.log([1e-9, 1.0, 2.0])), [0, 0.5, 0.75], atol=1e-8)


positions = st.floats(-8, 8)


def share(position: float, tail: float) -> float:
    return float(rise(np.array(position), np.array(tail)))


@given(positions)
def test_a_tail_of_one_is_the_sigmoid_in_the_logarithm_of_compute_and_none_the_exponential(position: float) -> None:
    assert share(position, 1.0) == pytest.approx(1 / (1 + np.exp(-position)), abs=1e-12)
    assert share(position, 1e-7) == pytest.approx(1 - 0.5 ** np.exp(position), abs=1e-5)


@given(st.floats(0.05, 2.0), st.floats(0.01, 100.0))
def test_it_is_the_power_law_with_the_inverse_exponent_half_of_whose_gain_is_made_at_1(
    tail: float, compute: float
) -> None:
    power = 1 - (1 + compute * (2**tail - 1)) ** (-1 / tail)
    assert share(np.log(compute), tail) == pytest.approx(power, abs=1e-9)
    assert share(0.0, tail) == pytest.approx(0.5, abs=1e-12)


def test_nothing_is_made_before_training_and_all_in_the_end() -> None:
    assert share(-np.inf, 0.7) == 0.0
    assert share(400.0, 0.7) == pytest.approx(1.0)
