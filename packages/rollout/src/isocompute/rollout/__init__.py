"""What does the policy answer, and is it right? Problems, samplers, verifiers, difficulty."""

from .errors import RolloutError
from .problems import HubSource, Loaded, LocalSource, ReasoningGymSource, load_checked, load_problems, source_from
from .samplers import Sampling, open_sampler
from .scoring import (
    DifficultySplit,
    EvaluationResult,
    evaluate,
    histogram,
    split,
    successes,
    verifier,
    with_pass_rates,
)
from .seeds import response_seed

__all__ = [
    "DifficultySplit",
    "EvaluationResult",
    "HubSource",
    "Loaded",
    "LocalSource",
    "ReasoningGymSource",
    "RolloutError",
    "Sampling",
    "evaluate",
    "histogram",
    "load_checked",
    "load_problems",
    "open_sampler",
    "response_seed",
    "source_from",
    "split",
    "successes",
    "verifier",
    "with_pass_rates",
]
