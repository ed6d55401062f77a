"""The regression over sweeps: beside Gaussian conditioning written out, and how often its intervals hold the truth."""

from dataclasses import replace

import numpy as np
import pytest
from isocompute.frontier.data.sweeps import Sweep, read_sweeps
from isocompute.frontier.posterior import between
from isocompute.frontier.posterior.between import Between, Mixture

KNOWN = read_sweeps()[0]


def row(
    source: str = "a", problem_set: str = "s", budget: float = 2.0**17, octaves: float = 4.0, **other: float
) -> Sweep:
    numbers = {"pass_rate": 0.3, "deviation": 0.5, **other}
    return replace(KNOWN, source=source, problem_set=problem_set, budget=budget, log2_n=octaves, **numbers)


ROWS = [
    row("a", "s", 2.0**14, 2.0),
    row("a", "s", 2.0**18, 3.0, pass_rate=0.1),
    row("a", "t", 2.0**18, 5.0),
    row("b", "s", 2.0**20, 6.5, deviation=1.0),
    row("c", "u", 2.0**15, 3.5, pass_rate=0.8),
]


def conditioned(
    rows: list[Sweep], budget: float, pass_rate: float, at: tuple[float, float, float]
) -> tuple[float, float]:
    """Mean and variance of a new set's log2 n*, of the joint normal of rows and new value, at σ, τ and ℓ."""
    sigma, tau, memory = at
    new = row("?", "?", budget, 0.0, pass_rate=pass_rate, deviation=1e-9)
    every = [*rows, new]
    logits = [np.log(r.pass_rate / (1 - r.pass_rate)) + 1 for r in every]
    x = np.array([[1.0, np.log2(r.budget) - 17, each] for r, each in zip(every, logits, strict=True)])
    joint = x @ np.diag([9.0, 0.25, 1 / 16]) @ x.T
    for i, a in enumerate(every):
        for j, b in enumerate(every):
            kept = np.exp(-abs(np.log2(a.budget / b.budget)) / memory)
            joint[i, j] += kept * (a.source == b.source) * (sigma**2 + tau**2 * (a.problem_set == b.problem_set))
            joint[i, j] += (i == j) * a.deviation**2
    y = np.array([r.log2_n for r in rows]) - x[:-1] @ [4.0, 0.5, 0.0]
    gain = np.linalg.solve(joint[:-1, :-1], joint[:-1, -1])
    return float(x[-1] @ [4.0, 0.5, 0.0] + gain @ y), float(joint[-1, -1] - gain @ joint[:-1, -1])


def test_it_is_the_conditional_of_a_joint_normal_at_each_point_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "DEVIATIONS", np.array([0.3, 1.1]))
    monkeypatch.setattr(between, "MEMORIES", (3.0,))
    found = Between(ROWS).at(2.0**19, 0.4)
    grid = [(s, t, 3.0) for s in (0.3, 1.1) for t in (0.3, 1.1)]
    expected = np.array([conditioned(ROWS, 2.0**19, 0.4, at) for at in grid])
    assert found.means == pytest.approx(expected[:, 0], abs=1e-9)
    assert found.variances == pytest.approx(expected[:, 1], abs=1e-9)


def test_what_is_measured_of_a_set_leaves_less_and_least_at_its_own_budget() -> None:
    posterior = Between(ROWS)
    now = posterior.at(1e6, 0.3).variances
    left = [posterior.after(1e6, 0.3, measured_at=at, deviation=1.0).variances for at in (1e6, 1.25e5, 1e4)]
    assert all((left[0] < each).all() and (each < now).all() for each in left[1:])
    # As of a normal prior and a normal measurement of the same value.
    assert left[0] == pytest.approx(1 / (1 / now + 1), rel=1e-9)


def test_further_sets_of_one_source_are_not_further_sources() -> None:
    one = [row("a", str(k), octaves=4 + 0.2 * k) for k in range(12)]
    several = [replace(each, source=str(k)) for k, each in enumerate(one)]
    widths = [high - low for low, _, high in (Between(each).at(2.0**17, 0.3).interval(0.8) for each in (one, several))]
    assert widths[0] > 1.5 * widths[1]


def test_intervals_hold_four_in_five_of_new_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "MEMORIES", (4.0,))
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(200):
        sigma, tau = np.abs(rng.normal(0, 1, 2))
        slope, level = rng.normal(0.5, 0.5), rng.normal(4, 1)
        rows, new = [], 0.0
        for source in range(5):
            own = rng.normal(0, sigma)
            for part in range(2):
                octaves = level + slope * (source - 2) + own + rng.normal(0, tau)
                if source == 4:
                    new = octaves
                    continue
                noisy = octaves + rng.normal(0, 0.7)
                rows.append(row(str(source), str(part), 2.0 ** (15 + source), noisy, deviation=0.7))
        low, _, high = Between(rows).at(2.0**19, 0.3).interval(0.8)
        inside += low <= new <= high
    assert 140 <= inside <= 180


def test_quantiles_of_a_mixture_of_one_are_those_of_a_normal() -> None:
    one = Mixture(weights=np.ones(1), means=np.array([3.0]), variances=np.array([4.0]))
    assert one.interval(0.8) == pytest.approx((3 - 2 * 1.2815515655, 3.0, 3 + 2 * 1.2815515655), abs=1e-6)
    assert one.widened(1.5).quantile(0.9) == pytest.approx(3 + 2.5 * 1.2815515655, abs=1e-6)
