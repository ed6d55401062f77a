"""What does the policy answer, and is it right? Problems, samplers, verifiers, difficulty."""

from .difficulty import DifficultySplit, histogram, split, with_pass_rates
from .errors import RolloutError
from .evaluation import EvaluationResult, evaluate, successes
from .samplers import Sampling, open_sampler
from .seeds import response_seed
from .sources import HubSource, Loaded, LocalSource, ReasoningGymSource, load_checked, load_problems, source_from
from .verifiers import verifier

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
