"""A causal language model as the learner sees it: loaded, run packed or padded, scored in chunks, handed over."""

from .critic import ValueHead
from .forward import Forward
from .head import Terms, token_terms
from .loading import load_policy, reference_of
from .weights import load_tensors, tensors, vocabulary

__all__ = [
    "Forward",
    "Terms",
    "ValueHead",
    "load_policy",
    "load_tensors",
    "reference_of",
    "tensors",
    "token_terms",
    "vocabulary",
]
