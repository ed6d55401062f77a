"""Group-normalised advantages: the public address of ``objective.advantages``."""

from .objective.advantages import EPSILON, group_advantages, with_advantages, with_cohorts, zero_variance

__all__ = ["EPSILON", "group_advantages", "with_advantages", "with_cohorts", "zero_variance"]
