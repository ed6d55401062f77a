"""The posterior: its sampler on densities of known moments, several base models, and the luck of the questions."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, Frontier
from isocompute.frontier.posterior.health import prepare
from isocompute.frontier.posterior.posterior import (
    Posterior,
    curvature,
    decided,
    effective_size,
    mode,
    sample,
    split_r_hat,
)
from isocompute.frontier.posterior.runs import runs_of
from scipy.signal import lfilter

from ..conftest import quick, run

slow = pytest.mark.slow("fits")


TOGETHER = np.tril(np.random.default_rng(0).standard_normal((8, 8))) + 2 * np.eye(8)
APART = np.eye(8)
"""Two numbers on which three pairs hang, each pair in its own way: independent given the two."""
APART[2:, :2] = np.random.default_rng(2).standard_normal((6, 2))
PAIRS = np.array([[2, 3], [4, 5], [6, 7]])
for pair in PAIRS:
    APART[np.ix_(pair, pair)] = [[0.5, 0.0], [0.4, 1.5]]


@pytest.mark.parametrize(("root", "apart"), [(TOGETHER, PAIRS[:0]), (APART, PAIRS)])
def test_the_moments_of_a_normal_distribution_are_found(root: np.ndarray, apart: np.ndarray) -> None:
    rng, mean, inverse = np.random.default_rng(0), np.arange(8.0), np.linalg.inv(root @ root.T)

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        off = x - mean
        return -0.5 * ((off @ inverse) * off).sum(axis=1), -off @ inverse

    mass = curvature(density, mean, apart)
    unit = rng.standard_normal((5, 8))
    np.testing.assert_allclose(mass.units(mass.scaled(unit)), unit, atol=1e-9)
    np.testing.assert_allclose(mass.turned(unit), unit @ mass.scaled(np.eye(8)).T, atol=1e-9)
    drawn = sample(density, np.zeros(8), mean >= 0, chains=32, warm_up=40, kept=100, rng=rng, apart=apart)
    deviation = np.sqrt(np.diag(root @ root.T))
    assert split_r_hat(drawn).max() < 1.1
    np.testing.assert_allclose((drawn.mean(axis=(0, 1)) - mean) / deviation, 0, atol=0.1)
    np.testing.assert_allclose(drawn.std(axis=(0, 1)) / deviation, 1, atol=0.1)
    expected = (root @ root.T) / deviation / deviation[:, None]
    np.testing.assert_allclose(np.corrcoef(drawn.reshape(-1, 8).T), expected, atol=0.1)


def test_a_distribution_with_long_tails_keeps_them() -> None:
    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -2.5 * np.log1p(x**2 / 4).sum(axis=1), -5 * x / (4 + x**2)

    rng = np.random.default_rng(1)
    drawn = sample(density, np.ones(3), np.ones(3, dtype=bool), chains=64, warm_up=60, kept=200, rng=rng)
    # Student-t with 4 degrees of freedom.
    np.testing.assert_allclose(
        np.quantile(drawn, [0.025, 0.25, 0.5, 0.75, 0.975]), [-2.776, -0.741, 0, 0.741, 2.776], atol=0.15
    )


def test_chains_that_walk_first_where_it_is_wider_find_what_lies_apart_from_the_mode() -> None:
    """Two normal distributions seven deviations apart, the second with 0.4 of the draws."""

    def density(x: np.ndarray, power: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        logs = np.stack([np.log(0.6) - 0.5 * x**2, np.log(0.4) - 0.5 * (x - 7) ** 2])
        whole = np.logaddexp(*logs)
        share = np.exp(logs[1] - whole)
        return power * whole.sum(axis=1), power * (7 * share - x)

    found = []
    for wider in (None, partial(density, power=0.1)):
        rng = np.random.default_rng(3)
        begin, free = np.zeros(1), np.ones(1, dtype=bool)
        drawn = sample(density, begin, free, chains=256, warm_up=24, kept=8, rng=rng, tempered=wider)
        found.append((drawn > 3.5).mean())
    assert found[0] < 0.1
    assert found[1] == pytest.approx(0.4, abs=0.1)


def test_chains_that_remember_count_as_fewer_draws() -> None:
    rng = np.random.default_rng(3)
    shocks = rng.standard_normal((400, 16, 1))
    slow = np.concatenate([lfilter([1.0], [1.0, -0.8], shocks, axis=0), shocks], axis=2)[100:]
    # (1 − φ)/(1 + φ) of them.
    assert effective_size(slow) / (300 * 16) == pytest.approx([1 / 9, 1], rel=0.15)


def test_rounds_go_on_until_chains_agree_and_keep_what_was_drawn() -> None:
    lengths = []

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -0.5 * (x**2).sum(axis=1), -x

    def agreed(drawn: np.ndarray) -> bool:
        lengths.append(len(drawn))
        return len(drawn) >= 20

    def drawn(rounds: int) -> int:
        lengths.clear()
        begin, rng = np.ones(2), np.random.default_rng(0)
        settings = {"chains": 4, "warm_up": 10, "kept": 10, "rng": rng, "agreed": agreed, "rounds": rounds}
        return len(sample(density, begin, begin > 0, **settings))

    assert drawn(5) == 22
    # All of them, else their later half, else half as many more.
    assert lengths == [10, 15, 8, 22]
    assert drawn(2) == 15


def test_a_decision_depends_on_the_best_and_on_what_may_be_it() -> None:
    rng = np.random.default_rng(4)
    rewards = np.array([0.5, 0.49, 0.2]) + 0.02 * rng.standard_normal((50, 4, 3))
    found = decided(rewards)
    np.testing.assert_array_equal(found, np.stack([rewards[..., 0], rewards[..., 0] - rewards[..., 1]], axis=2))


def test_the_mode_leaves_what_is_not_free() -> None:
    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -0.5 * ((x - 3) ** 2).sum(axis=1), 3 - x

    found = mode(density, np.zeros(2), np.array([True, False]))
    np.testing.assert_allclose(found, [3, 0], atol=1e-4)


GAINS = {2: 0.30, 8: 0.38, 32: 0.34}


def sweep(starts: dict[str, float], *, tilts: dict[str, float] | None = None) -> pl.DataFrame:
    """One run per n of several base models, whose gains are tilted by a share per octave."""
    rng, parts = np.random.default_rng(1), []
    compute = np.arange(0, 13) * 1024
    for base, start in starts.items():
        for n, gain in GAINS.items():
            tilt = 1 + (tilts or {}).get(base, 0.0) * (np.log2(n) - 3)
            reward = rng.binomial(1200, start + gain * tilt * (1 - np.exp(-compute / 4e3))) / 1200
            parts.append(run(compute, reward, rollouts_per_problem=n, base_model=base, run_id=f"{base}-{n}"))
    return pl.concat(parts)


THREE = {"a": 0.10, "b": 0.20, "c": 0.30}


@pytest.fixture(scope="module")
def three() -> Fit:
    """Three base models, of which one lacks n = 8."""
    return quick(sweep(THREE).filter((pl.col("base_model") != "c") | (pl.col("rollouts_per_problem") != 8)))


@slow
def test_settings_are_shared_and_each_base_model_has_its_own_curves_of_all(three: Fit) -> None:
    assert [c.rollouts_per_problem for c in three.cells] == [2, 8, 32]
    for k, start in enumerate(THREE.values()):
        own = three.posterior.reward(12_288.0, base=k)[:, :, 0]
        low, high = np.quantile(own, [0.005, 0.995], axis=0)
        truth = start + np.array(list(GAINS.values())) * (1 - np.exp(-12_288 / 4e3))
        assert ((low < truth) & (truth < high)).all()
    # Runs are judged beside those of their base model: starts of 0.1 and 0.3 are no other scale and no bad start.
    assert all(len(h.findings) == 1 and not h.failed for h in three.prepared.health)


@slow
def test_the_answer_is_for_another_base_model_and_says_of_how_many(three: Fit) -> None:
    lines = three.answer().lines()
    assert lines[0].startswith("3 base models; 3 values of n × 2–3 runs × 12 evaluations")
    assert "one base model" not in lines[-1]
    assert three.best(12_288).cell.rollouts_per_problem == 8
    new, own = (np.ptp(np.quantile(three.posterior.reward(12_288.0, base=b)[:, 1, 0], [0.05, 0.95])) for b in (None, 0))
    assert new > 2 * own


@slow
def test_base_models_that_disagree_leave_the_choice_open(three: Fit) -> None:
    apart = quick(sweep(THREE, tilts={"a": 0.15, "b": -0.15, "c": 0.05}))
    assert three.best(12_288).probability_best > apart.best(12_288).probability_best + 0.1


def test_problem_sets_are_draws_where_that_is_asked_for() -> None:
    table = sweep({"a": 0.10, "b": 0.20}).with_columns(problem_set=pl.lit("set-") + pl.col("base_model"))
    asked = {"metric": "avg_at_4", "unit": "rollouts", "split": "validation"}
    runs = runs_of(table, population=("base_model", "problem_set"), **asked)  # type: ignore[arg-type]
    assert prepare(runs).runs.bases == ("a, set-a", "b, set-b")


QUESTIONS, SAMPLES = 40, 8


def tables(*, unlike: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Runs of two n on questions that are all of one difficulty, or from impossible to certain."""
    rng, parts, rates = np.random.default_rng(0), [], []
    ease = np.linspace(0.0, 1.0, QUESTIONS) if unlike else np.full(QUESTIONS, 0.5)
    rollouts = np.arange(0, 16_384, 2048)
    for n in (4, 16):
        right = 0.2 + (0.5 + 0.01 * (n == 16)) * (1 - np.exp(-rollouts / 5e3))
        successes = rng.binomial(SAMPLES, right[:, None] * ease)
        part = run(rollouts, successes.mean(axis=1) / SAMPLES, rollouts_per_problem=n, run_id=f"n{n}")
        parts.append(part.with_columns(questions=QUESTIONS, samples=SAMPLES, step=pl.arange(len(rollouts))))
        rates += [
            {"run_id": f"n{n}", "step": step, "problem_id": f"p{k}", "samples": SAMPLES, "successes": int(s)}
            for step, row in enumerate(successes)
            for k, s in enumerate(row)
        ]
    return pl.concat(parts), pl.DataFrame(rates)


def width(posterior: Posterior) -> tuple[float, float]:
    """Width of the interval of a reward, and of the difference of both n."""
    drawn = posterior.reward(14_336.0)[:, :, 0]
    return tuple(float(np.ptp(np.quantile(x, [0.025, 0.975]))) for x in (drawn[:, 0], drawn[:, 1] - drawn[:, 0]))


@pytest.fixture(scope="module")
def fitted() -> Fit:
    evals, rates = tables(unlike=True)
    return quick(evals, pass_rates=rates)


@slow
def test_questions_of_unlike_difficulty_widen_a_reward_and_hardly_a_difference(fitted: Fit) -> None:
    (fixed, apart), (drawn, apart_drawn) = width(replace(fitted.posterior, luck=None)), width(fitted.posterior)
    # Four times the sd of pass rates, 0.16 and more, over the root of 40 questions; widths add as their squares.
    assert drawn > np.hypot(fixed, 0.1)
    assert apart_drawn < apart + 0.02
    assert "questions are asked" not in fitted.answer().lines()[-1]


@slow
def test_questions_that_are_all_alike_bring_no_luck() -> None:
    evals, rates = tables(unlike=False)
    posterior = quick(evals, pass_rates=rates).posterior
    assert posterior.luck is not None
    assert width(posterior)[0] < width(replace(posterior, luck=None))[0] + 0.01


@slow
def test_what_is_read_back_says_the_same_and_is_saved_as_the_same(fitted: Fit, tmp_path: Path) -> None:
    fitted.save(tmp_path / "out")
    again = Frontier.load(tmp_path / "out")
    again.save(tmp_path / "again")
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("out", "again"))
    assert first == second
    assert again.answer().lines() == fitted.answer().lines()
    np.testing.assert_array_equal(again.posterior.reward(9e3), fitted.posterior.reward(9e3))
