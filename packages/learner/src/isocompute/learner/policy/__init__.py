"""A causal language model as the learner sees it: loaded, run packed or padded, scored in chunks, handed over."""

from .critic import ValueHead
from .forward import Forward
from .head import Terms, token_terms
from .loading import load_policy, reference_of
from .probe import probe
from .sharding import Sharding, copy_into, is_sharded, whole
from .weights import WholeTensors, learnt, load_tensors, tensors, vocabulary, weights

__all__ = [
    "Forward",
    "Sharding",
    "Terms",
    "ValueHead",
    "WholeTensors",
    "copy_into",
    "is_sharded",
    "learnt",
    "load_policy",
    "load_tensors",
    "probe",
    "reference_of",
    "tensors",
    "token_terms",
    "vocabulary",
    "weights",
    "whole",
]
