"""Which responses are left out of an update: those of which no term of the loss is other than 0."""

from typing import Any

import numpy as np
import pytest
from isocompute.learner.config import EntropyConfig, KLConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.updates.learner import skipped

# Of equal rewards; of the mean reward of an unequal group, such as 0, ½ and 1; and of a better one.
ADVANTAGES, ZERO_VARIANCE = np.array([0.0, 0.0, 1.0]), np.array([True, False, False])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [True, True, False]),
        ({"kl": KLConfig(coefficient=0.1)}, [False, False, False]),
        ({"entropy": EntropyConfig(coefficient=0.1)}, [False, False, False]),
        # A regulariser that is masked where rewards are equal is none there, and one as ever elsewhere.
        ({"kl": KLConfig(coefficient=0.1, mask_zero_variance=True)}, [True, False, False]),
        ({"entropy": EntropyConfig(coefficient=0.1, mask_zero_variance=True)}, [True, False, False]),
        (
            {"kl": KLConfig(coefficient=0.1, mask_zero_variance=True), "entropy": EntropyConfig(coefficient=0.1)},
            [False, False, False],
        ),
        # What is off, or in the reward and so in the advantages, is no term of the loss.
        ({"kl": KLConfig(mask_zero_variance=True)}, [True, True, False]),
        ({"kl": KLConfig(coefficient=0.1, place="reward")}, [True, True, False]),
        # An entropy that is measured is that of all responses; a critic learns from all.
        ({"entropy": EntropyConfig(measured=True)}, [False, False, False]),
        ({"objective": ObjectiveConfig(algorithm="ppo")}, [False, False, False]),
    ],
)
def test_a_response_is_skipped_where_it_has_neither_an_advantage_nor_a_regulariser(
    settings: dict[str, Any], expected: list[bool]
) -> None:
    config = LearnerConfig(learning_rate=1.0, **settings)
    found = skipped(ADVANTAGES, ZERO_VARIANCE, config)
    assert found.dtype == bool
    assert found.tolist() == expected


def test_marks_of_equal_rewards_may_be_numbers() -> None:
    config = LearnerConfig(learning_rate=1.0, kl=KLConfig(coefficient=0.1, mask_zero_variance=True))
    assert skipped(ADVANTAGES, ZERO_VARIANCE.astype(np.float64), config).tolist() == [True, False, False]
