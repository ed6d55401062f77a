"""The luck of which questions were asked: in the intervals where pass rates say what it is."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, Frontier
from isocompute.frontier.posterior.posterior import Posterior

pytestmark = pytest.mark.slow("many fits")

QUESTIONS, SAMPLES = 40, 8


def tables(*, unlike: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Runs of two n on questions that are all of one difficulty, or from impossible to certain."""
    rng, evals, rates = np.random.default_rng(0), [], []
    ease = np.linspace(0.0, 1.0, QUESTIONS) if unlike else np.full(QUESTIONS, 0.5)
    for n in (4, 16):
        for step, rollouts in enumerate(range(0, 16_384, 2048)):
            made = 1 - np.exp(-rollouts / 5e3)
            successes = rng.binomial(SAMPLES, ease * (0.2 + (0.5 + 0.01 * (n == 16)) * made))
            evals.append(
                {
                    "run_id": f"n{n}",
                    "step": step,
                    "rollouts": rollouts,
                    "tokens": 0,
                    "seed": 0,
                    "rollouts_per_problem": n,
                    "problems_per_batch": 8,
                    "problem_set": "easy",
                    "split": "validation",
                    "questions": QUESTIONS,
                    "samples": SAMPLES,
                    "avg_at_4": float(successes.mean() / SAMPLES),
                }
            )
            rates += [
                {"run_id": f"n{n}", "step": step, "problem_id": f"p{k}", "samples": SAMPLES, "successes": int(s)}
                for k, s in enumerate(successes)
            ]
    return pl.DataFrame(evals), pl.DataFrame(rates)


def width(posterior: Posterior) -> tuple[float, float]:
    """Width of the interval of a reward, and of the difference of both n."""
    drawn = posterior.reward(14_336.0)[:, :, 0]
    return tuple(float(np.ptp(np.quantile(x, [0.025, 0.975]))) for x in (drawn[:, 0], drawn[:, 1] - drawn[:, 0]))


@pytest.fixture(scope="module")
def fitted() -> Fit:
    evals, rates = tables(unlike=True)
    return Frontier(evals).fit(pass_rates=rates)


def test_questions_of_unlike_difficulty_widen_a_reward_and_hardly_a_difference(fitted: Fit) -> None:
    (fixed, apart), (drawn, apart_drawn) = width(replace(fitted.posterior, luck=None)), width(fitted.posterior)
    # Four times the sd of pass rates, 0.16 and more, over the root of 40 questions; widths add as their squares.
    assert drawn > np.hypot(fixed, 0.1)
    assert apart_drawn < apart + 0.02
    assert "questions are asked" not in fitted.answer().lines()[-1]


def test_questions_that_are_all_alike_bring_no_luck() -> None:
    evals, rates = tables(unlike=False)
    posterior = Frontier(evals).fit(pass_rates=rates).posterior
    assert posterior.luck is not None
    assert width(posterior)[0] < width(replace(posterior, luck=None))[0] + 0.01


def test_the_luck_is_saved_with_the_draws(fitted: Fit, tmp_path: object) -> None:
    fitted.save(str(tmp_path))
    again = Frontier.load(str(tmp_path))
    assert again.answer().lines() == fitted.answer().lines()
    np.testing.assert_array_equal(again.posterior.reward(9e3), fitted.posterior.reward(9e3))
