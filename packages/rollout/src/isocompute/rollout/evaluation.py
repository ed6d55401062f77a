"""Evaluations of a policy: the public address of ``scoring.evaluation``."""

from .scoring.evaluation import EvaluationResult, Sampler, evaluate, successes

__all__ = ["EvaluationResult", "Sampler", "evaluate", "successes"]
