"""Whether responses are right and what follows from it: verifiers, estimators over k responses, difficulty."""

from .difficulty import DifficultySplit, histogram, split, with_pass_rates
from .estimators import avg_at_k, best_at_k, worst_at_k
from .evaluation import EvaluationResult, evaluate, successes
from .verifiers import Verifier, verifier

__all__ = [
    "DifficultySplit",
    "EvaluationResult",
    "Verifier",
    "avg_at_k",
    "best_at_k",
    "evaluate",
    "histogram",
    "split",
    "successes",
    "verifier",
    "with_pass_rates",
    "worst_at_k",
]
