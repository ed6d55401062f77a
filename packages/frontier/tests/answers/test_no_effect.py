"""When all n share one truth, no difference between them is claimed; ``benchmarks/no_effect.py`` counts more sweeps."""

import numpy as np
import pytest
from isocompute.frontier import FitConfig, compare, fit, sensitivity
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.simulation import Simulation
from scipy import stats

TRUTH = Parameters(form="exp", start=0.33, gain=0.45, scale=8_000.0, shape=1.0)
SWEEPS = 12


@pytest.mark.parametrize(("ns", "seeds"), [((4, 8, 16), 2), ((4, 8, 16, 32, 64, 128), 3)])
def test_a_sweep_without_an_effect_is_said_to_show_none(ns: tuple[int, ...], seeds: int) -> None:
    setting = Simulation(truths=dict.fromkeys(ns, TRUTH), end=20_000.0, seeds=seeds)
    said = {"overtakes": 0, "told apart": 0, "best": 0, "won": 0}
    for number in range(SWEEPS):
        rng = np.random.default_rng(number)
        fits = fit(setting.evals(rng), FitConfig(bootstrap=100, seed=number))
        text = fits.summary()
        pairs = len(ns) * (len(ns) - 1) // 2
        assert ("no two curves can be told apart" in text) == (len(fits.alike) == pairs)
        # What is printed of an overtaking is never beside "cannot be told apart".
        assert not (" overtakes " in text and len(fits.alike) == pairs)
        said["overtakes"] += any(x.stated and None not in (x.interval or (None,)) for x in fits.crossovers)
        said["told apart"] += len(fits.alike) < pairs
        said["best"] += bool(fits.probability[:, -1].max() >= 0.95)
        chosen = fits.fitted[int(fits.probability[:, -1].argmax())].curve.rollouts_per_problem
        others = [n for n in ns if n != chosen]
        fresh = setting.evals(rng, first_seed=seeds)
        said["won"] += any(c.verdict == "won" for c in compare(fresh, prescribed=chosen, baselines=others))
    # More than so many come of a rate of 5 % once in a thousand.
    most = stats.binom.ppf(0.999, SWEEPS, 0.05)
    assert all(count <= most for count in said.values()), said


def test_a_real_effect_is_still_seen() -> None:
    later = Parameters(form="exp", start=0.33, gain=0.60, scale=16_000.0, shape=1.0)
    setting = Simulation(truths={4: TRUTH, 64: later}, end=60_000.0, seeds=3, amplitude=0.03, timing=0.03)
    seen = 0
    for number in range(8):
        fits = fit(setting.evals(np.random.default_rng(number)), FitConfig(bootstrap=100, seed=number))
        seen += any(x.stated and (x.before, x.after) == (4, 64) for x in fits.crossovers)
        assert fits.probability[1, -1] > 0.9
    assert seen >= 6


def test_what_another_n_would_cost_is_not_said_to_be_more_than_nothing() -> None:
    setting = Simulation(truths=dict.fromkeys((4, 8, 16), TRUTH), end=20_000.0)
    said = 0
    for number in range(SWEEPS):
        fits = fit(setting.evals(np.random.default_rng(number)), FitConfig(form="exp", bootstrap=200, seed=number))
        said += bool((sensitivity(fits, compute=20_000)["regret_low"] > 0).any())
    assert said <= stats.binom.ppf(0.999, SWEEPS, 0.05)
