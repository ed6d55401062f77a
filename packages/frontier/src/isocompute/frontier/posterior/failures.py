"""How often a run fails, by setting: a logistic regression on n and rate, and how single settings depart from it.

    logit P(fail) = b_0 + b_n·log2 n + b_rate·log2(rate over √B) + departure

with normal priors; departures of settings are normal, their deviation τ integrated over a grid by the evidence of
Laplace's method. Settings that share nothing keep their own counts, and one failure of four is no rate of a quarter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array

PRIOR = np.array([[-2.6, 0.0, 0.7], [1.0, 0.3, 1.0]])
"""Mean and deviation of b_0, b_n and b_rate: about 7 % before the data, and more at higher rates."""
DEPARTURES = (0.3, 0.8, 1.6, 3.0)
"""Grid of τ."""
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)


def failure_rates(failed: NDArray[np.int64], runs: NDArray[np.int64], at: Array) -> Array:
    """Probability that the next run of each setting fails, shape ``(settings,)``.

    Args:
        failed: Runs of each setting that failed, shape ``(settings,)``.
        runs: All of its runs; 0 for a setting that was not run.
        at: log2 n and log2 of the rate over √B of each setting, from their means, shape ``(settings, 2)``.
    """
    count = len(runs)
    design = np.concatenate([np.ones((count, 1)), at, np.eye(count)], axis=1)
    mean = np.concatenate([PRIOR[0], np.zeros(count)])
    evidence, rates = [], []
    for deviation in DEPARTURES:
        precision = np.concatenate([PRIOR[1], np.full(count, deviation)]) ** -2.0
        top, hessian, value = _mode(design, failed, runs, mean, precision)
        _, determinant = np.linalg.slogdet(hessian)
        evidence.append(value + 0.5 * np.log(precision).sum() - 0.5 * determinant)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", design, np.linalg.inv(hessian), design))
        nodes = (design @ top)[:, None] + spread[:, None] * NODES
        rates.append((WEIGHTS / (1 + np.exp(-nodes))).sum(axis=1) / WEIGHTS.sum())
    weights = np.exp(np.array(evidence) - max(evidence))
    return np.asarray(weights @ np.array(rates) / weights.sum())


def _mode(
    design: Array, failed: NDArray[np.int64], runs: NDArray[np.int64], mean: Array, precision: Array
) -> tuple[Array, Array, float]:
    """Mode of the log-density by Newton's method, its curvature, and its value there."""
    beta = mean.copy()
    for _ in range(50):
        rate = 1 / (1 + np.exp(-(design @ beta)))
        gradient = design.T @ (failed - runs * rate) - precision * (beta - mean)
        hessian = design.T @ (design * (runs * rate * (1 - rate))[:, None]) + np.diag(precision)
        step = np.linalg.solve(hessian, gradient)
        # A full step overshoots where all runs of a setting failed.
        beta = beta + step / max(1.0, float(np.abs(step).max()) / 2)
        if np.abs(step).max() < 1e-10:
            break
    line = design @ beta
    value = float((failed * line - runs * np.logaddexp(0, line)).sum() - 0.5 * (precision * (beta - mean) ** 2).sum())
    return beta, hessian, value
