"""Simulated sweeps have the noise and the seeds that they say."""

import numpy as np
import pytest
from isocompute.frontier import FrontierError
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.simulation import Simulation

TRUTH = Parameters(form="exp", start=0.4, gain=0.2, scale=1000.0, shape=1.0)


def test_noise_and_effects_have_the_sizes_asked_for() -> None:
    setting = Simulation(
        truths={4: TRUTH, 16: TRUTH}, end=100_000, evaluations=20, seeds=400, dispersion=2.0, amplitude=0.1, timing=0.0
    )
    table = setting.evals(np.random.default_rng(0))
    rewards = np.stack([part["avg_at_4"].to_numpy() for _, part in table.group_by("run_id", maintain_order=True)])
    mean = rewards.mean(axis=1)
    # Far beyond the bend a run is 0.6 + 0.02 times its effect, plus AR(1) noise of twice the binomial.
    assert rewards.mean() == pytest.approx(0.6, abs=0.003)
    noise = (rewards - mean[:, None])[:, 1:]
    assert (noise[:, 1:] * noise[:, :-1]).mean() > 0
    own, other = mean[:400], mean[400:]
    assert np.corrcoef(own, other)[0, 1] == pytest.approx(0.4, abs=0.15)
    assert rewards.std() == pytest.approx(np.hypot(0.02, 2 * np.sqrt(0.24 / 1200)), rel=0.1)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(FrontierError, match="a truth, a seed and two evaluations"):
        Simulation(truths={}, end=1.0)
