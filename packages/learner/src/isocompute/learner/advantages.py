"""Cohorts, advantages and minibatches of a table of rollouts: the public address of what ``objective`` has of them."""

from .objective.advantages import EPSILON, group_advantages, response_advantages, zero_variance
from .objective.cohorts import with_cohorts
from .objective.minibatches import minibatches
from .objective.prepare import prepare

__all__ = [
    "EPSILON",
    "group_advantages",
    "minibatches",
    "prepare",
    "response_advantages",
    "with_cohorts",
    "zero_variance",
]
