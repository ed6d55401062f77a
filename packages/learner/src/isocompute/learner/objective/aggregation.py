"""How tokens are averaged: the weight of a response's tokens in the loss of a batch.

The loss is Σ_i weight_i · Σ_t term_it over responses i and their sampled tokens t. The weights are those of the whole
batch of an update, so that the shares of micro-batches and ranks add up to it, whatever was skipped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import LearnerError


def token_mean(tokens: np.ndarray, groups: np.ndarray, *, constant_length: int | None = None) -> np.ndarray:
    """1/T, T the tokens of the batch: every token counts the same (DAPO, arXiv 2503.14476, section 3.3).

    Args:
        tokens: Sampled tokens of each response, shape ``(responses,)``.
        groups: Group of each response, as whole numbers from 0, shape ``(responses,)``.

    Returns:
        Weights, shape ``(responses,)``.
    """
    del groups, constant_length
    return _inverse(np.full(len(tokens), tokens.sum(dtype=np.float64)))


def sequence_mean(tokens: np.ndarray, groups: np.ndarray, *, constant_length: int | None = None) -> np.ndarray:
    """1/(R·L_i), R the responses that have tokens: every response counts the same (GRPO, arXiv 2402.03300).

    Args:
        tokens: Sampled tokens of each response, shape ``(responses,)``.
        groups: Group of each response, as whole numbers from 0, shape ``(responses,)``.
    """
    del groups, constant_length
    return _inverse(np.count_nonzero(tokens) * tokens.astype(np.float64))


def prompt_mean(tokens: np.ndarray, groups: np.ndarray, *, constant_length: int | None = None) -> np.ndarray:
    """1/(G·T_g), G the groups that have tokens: every problem counts the same, and its tokens (ScaleRL, section 3.2).

    Args:
        tokens: Sampled tokens of each response, shape ``(responses,)``.
        groups: Group of each response, as whole numbers from 0, shape ``(responses,)``.
    """
    del constant_length
    in_group = np.bincount(groups, weights=tokens) if len(tokens) else np.zeros(0)
    return _inverse(np.count_nonzero(in_group) * in_group[groups])


def constant_mean(tokens: np.ndarray, groups: np.ndarray, *, constant_length: int | None = None) -> np.ndarray:
    """1/(R·``constant_length``): sums over tokens, without a bias by length (Dr. GRPO, arXiv 2503.20783, section 3.2).

    Args:
        tokens: Sampled tokens of each response, shape ``(responses,)``.
        groups: Group of each response, as whole numbers from 0, shape ``(responses,)``.

    Raises:
        LearnerError: There is no ``constant_length``.
    """
    del groups
    if constant_length is None:
        raise LearnerError("constant_length is missing: with aggregation 'constant' it must be a number of tokens")
    return _inverse(np.full(len(tokens), np.count_nonzero(tokens) * float(constant_length)))


AGGREGATIONS: dict[str, Callable[..., np.ndarray]] = {
    "token": token_mean,
    "sequence": sequence_mean,
    "prompt": prompt_mean,
    "constant": constant_mean,
}
"""The aggregations by name; the arguments are those of ``token_mean``."""


def _inverse(sizes: np.ndarray) -> np.ndarray:
    """1/size; a response without tokens has no term, and a weight of 0."""
    weights: np.ndarray = np.divide(1.0, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
    return weights
