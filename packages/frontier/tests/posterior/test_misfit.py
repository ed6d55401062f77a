"""Misfits are found in runs that a curve does not follow, and in no others; and where runs were measured to end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from isocompute.frontier.notebook import load_fitted
from isocompute.frontier.posterior.decision import endings, misfits
from isocompute.frontier.posterior.posterior import Posterior

FITS = {n: load_fitted(Path(__file__).parents[1] / "fixtures" / n).posterior for n in ("playbook-easy", "sudden")}
every = pytest.mark.parametrize(("name", "known"), [(name, known) for name in FITS for known in (True, False)])


def family(name: str, known: bool, *, seed: int = 0, phi: float = 0.0, wider: float = 1.0) -> Posterior:
    """A fit whose runs are as its curves say, with noise of autocorrelation φ; unknown errors are given three times.

    Args:
        wider: Fitted noise about the curves, over what there is.
    """
    fit = FITS[name]
    runs, theta = fit.model.runs, fit.theta.copy()
    unit = np.random.default_rng(seed).standard_normal(runs.error.shape)
    for k in range(1, unit.shape[1]):
        unit[:, k] = phi * unit[:, k - 1] + np.sqrt(1 - phi**2) * unit[:, k]
    reward = np.where(runs.seen, fit.model.curves(theta).mean(axis=0) + runs.error * unit, 0.0)
    # The curves begin where the runs do on average.
    reward[:, 0] = runs.reward[:, 0]
    runs = replace(runs, reward=reward, error=runs.error * (1 if known else 3), error_is_known=known, trials=None)
    theta[:, fit.model.parts["excess"]] = np.log(5 * (wider**2 - 1) + 1e-9) / 1.5 if known else np.log(wider / 3)
    return replace(fit, model=replace(fit.model, runs=runs), theta=theta)


def moved(fit: Posterior, run: int, where: slice, by: float) -> Posterior:
    """The fit, with some evaluations of a run moved."""
    runs = fit.model.runs
    reward = runs.reward.copy()
    reward[run, np.flatnonzero(runs.seen[run])[where]] += by
    return replace(fit, model=replace(fit.model, runs=replace(runs, reward=reward)))


@every
def test_of_140_settings_that_are_as_their_curves_say_at_most_one_is_called_a_misfit(name: str, known: bool) -> None:
    fits = [family(name, known, seed=seed, phi=phi) for seed in range(10) for phi in (0.0, 0.5)]
    assert sum(len(misfits(fit)) for fit in fits) <= 1


@every
def test_a_run_that_leaves_its_curve_is_named(name: str, known: bool) -> None:
    fit = family(name, known)
    for where, by, said in (
        (slice(-3, None), 0.12, "its last evaluations lie 0.1"),
        (slice(-3, None), -0.12, "its last evaluations lie 0.1"),
        (slice(5, 6), 0.2, "an evaluation lies 0."),
        (slice(3, 11), -0.055, " evaluations in a row lie 0.0"),
    ):
        (found,) = misfits(moved(fit, 4, where, by))
        assert found.cell == fit.model.runs.cells[fit.model.runs.cell[4]]
        assert said in found.evidence
        assert ("above" if by > 0 else "below") + " its curve" in found.evidence


@every
def test_noise_that_swallows_the_data_makes_misfits_of_all(name: str, known: bool) -> None:
    for wider, count in ((15.0, 7), (3.1, 7), (2.4, 0)):
        assert len(misfits(family(name, known, wider=wider))) == count


@pytest.mark.parametrize(("run", "error"), [(0, 1e-3), (13, 1e-3), (0, 0.02)])
def test_an_end_is_off_beyond_a_fiftieth_a_tenth_of_the_gain_and_four_deviations(run: int, error: float) -> None:
    fit = FITS["sudden"]
    # One draw, whose curves the runs follow without noise but for where they begin.
    one, runs = fit.theta[:1], fit.model.runs
    curve = fit.model.curves(one)[0]
    reward = np.concatenate([runs.reward[:, :1], curve[:, 1:]], axis=1)
    runs = replace(runs, reward=reward, error=np.full_like(reward, error))
    exact = replace(fit, theta=one, model=replace(fit.model, runs=runs))
    limit = max(0.02, 0.1 * np.ptp(curve[run]), 4 * 0.78 * error)
    for share, count in ((0.97, 0), (1.03, 1)):
        assert len(misfits(moved(exact, run, slice(-3, None), share * limit))) == count


def test_where_a_setting_ends_is_the_mean_of_three_evaluations_of_each_seed() -> None:
    runs, found = FITS["sudden"].model.runs, endings(FITS["sudden"])
    assert (np.diff([end.reward for end in found]) <= 0).all()
    for end in found:
        ends = runs.reward[runs.cell == runs.cells.index(end.cell), -3:].mean(axis=1)
        assert end.reward == pytest.approx(ends.mean())
        # Seeds that are alike differ as is assumed of all: by 6 % of the gain.
        least = 1.96 * max(np.std(ends, ddof=1), 0.06 * (ends - runs.reward[:, 0].mean()).mean()) / np.sqrt(2)
        assert least * 0.9 < (end.interval[1] - end.interval[0]) / 2 < least + 0.03
