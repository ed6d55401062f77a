"""The learner's own path, from rewards to the gradient, on a problem whose gradient is known."""

from itertools import product

import numpy as np
import polars as pl
import pytest
import torch
from isocompute.learner.config import ImportanceConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.loss import ObjectiveInputs, objective
from isocompute.learner.objective.prepare import prepare

from experiments.studies.bandit.moments import enumerated
from experiments.studies.bandit.problem import Bandit, Estimator, policy

BANDIT, LOGITS = Bandit(rewards=(1.0, 0.2, 0.0)), np.array([-0.5, 0.4, 0.9])


def config_of(surrogate: str, scale: str) -> LearnerConfig:
    return LearnerConfig(
        learning_rate=1.0,
        objective=ObjectiveConfig(surrogate=surrogate, scale=scale),
        importance=ImportanceConfig(level="none"),
    )


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
    paid = np.asarray(BANDIT.rewards)[answers]
    chances = np.prod(policy(LOGITS)[answers] * np.where(rewards == 1, paid, 1 - paid), axis=1)
    gradients = learner_gradients(answers, rewards, LOGITS, config_of(surrogate, scale))
    exact = enumerated(BANDIT, LOGITS, Estimator(rollouts_per_problem=n, scale=scale))
    mean = chances @ gradients
    np.testing.assert_allclose(mean, exact.mean, atol=1e-10)
    centred = gradients - mean
    np.testing.assert_allclose((centred * chances[:, None]).T @ centred, exact.covariance, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("scale", ["none", "group"])
def test_the_measured_gradient_is_the_exact_one_within_its_standard_error(n: int, scale: str) -> None:
    groups = 8192
    generator = np.random.default_rng(n)
    answers = generator.choice(3, size=(groups, n), p=policy(LOGITS))
    rewards = (generator.random(answers.shape) < np.asarray(BANDIT.rewards)[answers]).astype(float)
    gradients = learner_gradients(answers, rewards, LOGITS, config_of("policy_gradient", scale))
    exact = enumerated(BANDIT, LOGITS, Estimator(rollouts_per_problem=n, scale=scale))
    error = np.sqrt(np.diag(exact.covariance) / groups)
    assert (np.abs(gradients.mean(axis=0) - exact.mean) < 4 * error).all()
    # So is its variance: the squared distance from the exact mean is itself a mean over groups.
    squares = ((gradients - exact.mean) ** 2).sum(axis=1)
    assert abs(squares.mean() - exact.variance) < 4 * squares.std(ddof=1) / np.sqrt(groups)
