"""The posterior against draws of NUTS from the same model, written again: ``nox -s oracle``."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from isocompute.frontier import Frontier
from isocompute.frontier.posterior.posterior import CHAINS, KEPT, WARM_UP, Posterior, posterior
from isocompute.frontier.posterior.runs import Runs, Setting

numpyro = pytest.importorskip("numpyro", reason="numpyro is installed by nox -s oracle")

from oracle.nuts import drawn  # noqa: E402
from sweeps import exponential, sweep  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
WITHIN = 0.005


def made_up(rates: bool) -> Runs:
    """Seven n at one rate, or three at three, two seeds each."""
    ns = (8, 32, 128) if rates else (4, 8, 16, 32, 64, 128, 256)
    curves = {
        Setting(rollouts_per_problem=n, problems_per_batch=8, learning_rate=rate): exponential(
            0.2, 0.25 + 0.02 * np.log2(n) - (0.03 * np.log2(rate / 4e-6) ** 2 if rate else 0.0), 2e3 * np.sqrt(n)
        )
        for n in ns
        for rate in ((1e-6, 4e-6, 16e-6) if rates else (None,))
    }
    return sweep(curves, seeds=2, deviation=0.05)


def of_file(name: str) -> Runs:
    """The runs of a table of the docs, as a fit prepares them."""
    return Frontier.read(DOCS / name).fit().posterior.model.runs


RUNS = {
    "made up": partial(made_up, False),
    "made up, of three rates": partial(made_up, True),
    "a tiny model": partial(of_file, "sweep.csv"),
    "the Playbook's": partial(of_file, "playbook-easy.csv"),
}


def rewards(fitted: Posterior) -> np.ndarray:
    """Draws of the reward of each run's setting at its evaluations, shape ``(draws, runs, points)``."""
    runs = fitted.model.runs
    return np.stack([fitted.reward(c)[:, cell] for c, cell in zip(runs.compute, runs.cell, strict=True)], axis=1)


@pytest.mark.parametrize("name", RUNS)
def test_rewards_over_the_data_have_the_means_and_intervals_of_nuts(name: str) -> None:
    fitted = posterior(RUNS[name]())
    runs = fitted.model.runs
    reference = drawn(runs, fitted.model.priors)
    assert np.abs(rewards(fitted).mean(axis=0) - reference.mean(axis=0))[runs.seen].max() < WITHIN
    # Ends of an interval need more draws than a mean.
    longer = rewards(posterior(runs, size=(CHAINS, WARM_UP, 30 * KEPT)))
    for q in (0.025, 0.975):
        off = np.quantile(longer, q, axis=0) - np.quantile(reference, q, axis=0)
        print(f"{name}: the {q} quantile is off by {np.abs(off)[runs.seen].max():.4f} at most")
        assert np.abs(off)[runs.seen].max() < WITHIN
