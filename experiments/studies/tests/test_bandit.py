"""One problem computed exactly: moments of gradients, the law of its progress, the chain, the learner, and the page."""

from itertools import product
from math import log

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import ImportanceConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.loss import ObjectiveInputs, objective
from isocompute.learner.objective.prepare import prepare

from experiments.studies.bandit import page
from experiments.studies.bandit.chain import evolution
from experiments.studies.bandit.law import largest_learning_rate, lundberg_exponent
from experiments.studies.bandit.moments import enumerated
from experiments.studies.bandit.problem import Bandit, Estimator, policy
from experiments.tests.made import ROOT

PROBABILITIES = st.floats(0, 1, allow_subnormal=False)
PROBLEMS = st.integers(2, 3).flatmap(
    lambda answers: st.tuples(
        st.tuples(*[PROBABILITIES] * answers), st.lists(st.floats(-3, 3), min_size=answers, max_size=answers)
    )
)


@settings(max_examples=60, deadline=None)
@given(PROBLEMS, st.integers(2, 6))
def test_the_mean_is_the_exact_gradient_and_a_group_baseline_takes_one_nth_of_it(
    problem: tuple[tuple[float, ...], list[float]], n: int
) -> None:
    bandit, logits = Bandit(rewards=problem[0]), np.array(problem[1])
    exact = bandit.gradient(logits)
    plain = enumerated(bandit, logits, Estimator(rollouts_per_problem=n, baseline="none"))
    grouped = enumerated(bandit, logits, Estimator(rollouts_per_problem=n))
    np.testing.assert_allclose(plain.mean, exact, atol=1e-12)
    np.testing.assert_allclose(grouped.mean, (n - 1) / n * exact, atol=1e-12)


TWO, THREE, LOGITS = (1.0, 0.0), (1.0, 0.0, 0.0), [0.5, 0.0, -1.0]


@pytest.mark.parametrize(
    ("rewards", "logits", "options", "ratio"),
    [
        (THREE, LOGITS, {"baseline": "none"}, 2.0),
        (THREE, LOGITS, {"scale": "group"}, 2.0),
        # At even odds of two answers without noise the part that falls as 1/n is none.
        (TWO, [0.0, 0.0], {}, 4.0),
        ((0.75, 0.25), [0.0, 0.0], {}, 2.0),
    ],
)
def test_the_variance_falls_as_one_nth_and_without_noise_at_even_odds_as_its_square(
    rewards: tuple[float, ...], logits: list[float], options: dict[str, str], ratio: float
) -> None:
    bandit, at = Bandit(rewards=rewards), np.array(logits)
    few, many = (enumerated(bandit, at, Estimator(rollouts_per_problem=n, **options)).variance for n in (32, 64))
    assert few / many == pytest.approx(ratio, rel=1e-9 if "baseline" in options else 0.1)


THREE_ANSWERS, AT = Bandit(rewards=(1.0, 0.2, 0.0)), np.array([-0.5, 0.4, 0.9])


def learner_gradients(
    answers: np.ndarray, rewards: np.ndarray, logits: np.ndarray, config: LearnerConfig
) -> np.ndarray:
    """The gradient that an update would follow for each group, if it were the whole batch: cohorts to backward."""
    groups, n = answers.shape
    rollouts = pl.DataFrame(
        {
            "problem_id": [f"{group:08d}" for group in range(groups) for _ in range(n)],
            "response_ids": answers.reshape(-1, 1).tolist(),
            "reward": pl.Series(rewards.reshape(-1), dtype=pl.Float32),
            "finish_reason": ["stop"] * (groups * n),
        },
        schema_overrides={"response_ids": pl.List(pl.Int32)},
    )
    batch = prepare(with_cohorts(rollouts, config.batch), config)
    policies = torch.tensor(np.tile(logits, (groups, 1)), dtype=torch.float64, requires_grad=True)
    chosen = torch.from_numpy(answers).reshape(-1)
    logprobs = policies.log_softmax(-1).repeat_interleave(n, dim=0).gather(1, chosen[:, None]).squeeze(1)
    inputs = ObjectiveInputs(
        logprobs=logprobs,
        sampler_logprobs=logprobs.detach(),
        advantages=batch["advantage"].to_torch(),
        weights=batch["loss_weight"].to_torch(),
        response=torch.arange(groups * n),
        responses=groups * n,
        zero_variance=batch["zero_variance"].to_torch(),
    )
    share, _ = objective(inputs, config)
    share.backward()
    assert policies.grad is not None
    # The loss is a mean over the batch, in which each group is one of many.
    return -groups * policies.grad.numpy()


@pytest.mark.parametrize("surrogate", ["policy_gradient", "clip", "cispo"])
@pytest.mark.parametrize("scale", ["none", "group"])
def test_over_every_possible_group_the_learners_gradient_has_the_exact_moments(surrogate: str, scale: str) -> None:
    n = 3
    drawn = [(answers, rewards) for answers in product(range(3), repeat=n) for rewards in product((0.0, 1.0), repeat=n)]
    answers, rewards = (np.array(column) for column in zip(*drawn, strict=True))
    paid = np.asarray(THREE_ANSWERS.rewards)[answers]
    chances = np.prod(policy(AT)[answers] * np.where(rewards == 1, paid, 1 - paid), axis=1)
    chosen = ObjectiveConfig(surrogate=surrogate, scale=scale)
    config = LearnerConfig(learning_rate=1.0, objective=chosen, importance=ImportanceConfig(level="none"))
    gradients = learner_gradients(answers, rewards, AT, config)
    exact = enumerated(THREE_ANSWERS, AT, Estimator(rollouts_per_problem=n, scale=scale))
    mean = chances @ gradients
    np.testing.assert_allclose(mean, exact.mean, atol=1e-10)
    centred = gradients - mean
    np.testing.assert_allclose((centred * chances[:, None]).T @ centred, exact.covariance, atol=1e-10)


CHANCES = st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)).filter(lambda pair: pair[0] > pair[1] + 0.01)


@given(CHANCES)
def test_the_largest_rate_of_two_responses_has_a_closed_form(rewards: tuple[float, float]) -> None:
    # X is 1, 0 or -1, so that exp(theta) = P(X = 1)/P(X = -1); the bound is 2 theta.
    right, wrong = rewards
    theta = log(right * (1 - wrong) / (wrong * (1 - right)))
    assert lundberg_exponent(Bandit(rewards=rewards), 2) == pytest.approx(theta, rel=1e-9)
    assert largest_learning_rate(Bandit(rewards=rewards), 2) == pytest.approx(2 * theta, rel=1e-9)


RIGHT = Bandit(rewards=(1.0, 0.0))
NOISY = Bandit(rewards=(0.75, 0.25))
START = log(0.25 / 0.75)


def by_hand(bandit: Bandit, estimator: Estimator, logits: np.ndarray, learning_rate: float, steps: int) -> float:
    """Expected suboptimality over every sequence of answers and rewards, with both logits."""
    if not steps:
        return max(bandit.rewards) - float(policy(logits) @ np.asarray(bandit.rewards))
    probabilities, total = policy(logits), 0.0
    for answers in product((0, 1), repeat=estimator.rollouts_per_problem):
        for rewards in product((0.0, 1.0), repeat=estimator.rollouts_per_problem):
            paid = [bandit.rewards[a] if r else 1 - bandit.rewards[a] for a, r in zip(answers, rewards, strict=True)]
            chance = float(np.prod(probabilities[list(answers)]) * np.prod(paid))
            if chance:
                step = estimator.gradients(np.array([answers]), np.array([rewards]), probabilities)[0]
                total += chance * by_hand(bandit, estimator, logits + learning_rate * step, learning_rate, steps - 1)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("bandit", [RIGHT, NOISY])
@pytest.mark.parametrize(("n", "steps"), [(2, 3), (3, 2)])
def test_the_chain_equals_the_sum_over_all_sequences(bandit: Bandit, n: int, steps: int) -> None:
    estimator = Estimator(rollouts_per_problem=n)
    path = evolution(bandit, estimator, start=START, learning_rate=0.7, update_steps=steps)
    for step in range(steps + 1):
        expected = by_hand(bandit, estimator, np.array([START, 0.0]), 0.7, step)
        assert path[step] == pytest.approx(expected, abs=1e-12)


PAGE = (ROOT / "docs" / "bandit.md").read_text()


@pytest.mark.slow
def test_the_page_says_what_is_computed() -> None:
    text = " ".join(PAGE.split())
    for part in (page.gradients(), page.limits((2, 4, 8)), page.noise()):
        assert part in PAGE
    for piece in page.noise_statements():
        assert piece in text
