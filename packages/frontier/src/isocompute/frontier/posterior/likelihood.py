"""How likely evaluations are under fitted rewards: normal, wider than their errors, autocorrelated within a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..data.curves import Array
from .runs import Runs


class Likelihood(NamedTuple):
    """The logarithm of it, shape ``(chains,)``, and its derivatives; by rewards, shape ``(chains, runs, points)``."""

    value: Array
    by_reward: Array
    by_log_excess: Array
    by_autocorrelation: Array


def log_likelihood(runs: Runs, reward: Array, excess: Array, phi: Array) -> Likelihood:
    """The evaluations' likelihood.

    A residual in units of κ·e follows that of the evaluation before by φ, with innovations of variance 1 − φ².

    Args:
        reward: Fitted, shape ``(chains, runs, points)``.
        excess: κ, shape ``(chains, 1, 1)``.
        phi: φ, likewise.
    """
    seen, width = runs.seen, excess * runs.error
    residual = np.where(seen, (runs.reward - reward) / width, 0.0)
    left = 1 - phi**2
    root = np.sqrt(left)
    shock = residual.copy()
    shock[:, :, 1:] = np.where(seen[:, 1:], (residual[:, :, 1:] - phi * residual[:, :, :-1]) / root, 0.0)
    points, later = float(seen.sum()), float(seen[:, 1:].sum())
    squares = (shock**2).sum(axis=(1, 2))
    value = -0.5 * squares - points * np.log(excess[:, 0, 0]) - 0.5 * later * np.log(left[:, 0, 0])
    by_residual = -shock
    by_residual[:, :, 1:] /= root
    by_residual[:, :, :-1] += phi / root * shock[:, :, 1:]
    by_reward = np.where(seen, -by_residual / width, 0.0)
    change = -residual[:, :, :-1] / root + shock[:, :, 1:] * phi / left
    # Where nothing was seen the shock is 0.
    turned = (shock[:, :, 1:] * change).sum(axis=(1, 2))
    return Likelihood(value, by_reward, squares - points, later * (phi / left)[:, 0, 0] - turned)
