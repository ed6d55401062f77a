"""Problem sets by difficulty: the public address of ``scoring.difficulty``."""

from .scoring.difficulty import DifficultySplit, histogram, split, with_pass_rates

__all__ = ["DifficultySplit", "histogram", "split", "with_pass_rates"]
