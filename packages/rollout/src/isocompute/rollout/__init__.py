"""Problems, samplers, verifiers and difficulty: what the policy answers, and whether it is right."""

from .errors import RolloutError
from .problems.loading import Loaded, load_checked, load_problems
from .problems.sources import HubSource, LocalSource, ReasoningGymSource, Source, source_from
from .samplers.local import Prompting, prompting_from
from .samplers.registry import open_pipe, open_sampler
from .samplers.sampling import EngineConfig, Interruption, Sampling, engine_from, response_seed, sampling_from
from .scoring.evaluation import (
    DifficultySplit,
    EvaluationResult,
    evaluate,
    histogram,
    split,
    successes,
    with_pass_rates,
)
from .scoring.rules import register
from .scoring.sandbox.process import ScoringConfig, scoring_from
from .scoring.scorer import Scorer, verifier

__all__ = [
    "DifficultySplit",
    "EngineConfig",
    "EvaluationResult",
    "HubSource",
    "Interruption",
    "Loaded",
    "LocalSource",
    "Prompting",
    "ReasoningGymSource",
    "RolloutError",
    "Sampling",
    "Scorer",
    "ScoringConfig",
    "Source",
    "engine_from",
    "evaluate",
    "histogram",
    "load_checked",
    "load_problems",
    "open_pipe",
    "open_sampler",
    "prompting_from",
    "register",
    "response_seed",
    "sampling_from",
    "scoring_from",
    "source_from",
    "split",
    "successes",
    "verifier",
    "with_pass_rates",
]
