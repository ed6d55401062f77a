"""Exact estimators over k of m responses: the public address of ``scoring.estimators``."""

from .scoring.estimators import avg_at_k, best_at_k, worst_at_k

__all__ = ["avg_at_k", "best_at_k", "worst_at_k"]
