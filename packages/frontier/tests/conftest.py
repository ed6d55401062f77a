"""Evaluations of made-up runs with known curves."""

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

# For modules of the tests that others import.
sys.path.insert(0, str(Path(__file__).parent))

TRUTH = {4: (0.30, 0.45, 3000.0), 16: (0.30, 0.60, 9000.0)}
"""n to (R0, A, τ): n = 4 rises faster and levels off lower."""


def evals(
    *, noise: float = 0.01, seeds: int = 2, between: float = 0.0, points: int = 20, seed: int = 0
) -> pl.DataFrame:
    """An ``evals`` table of exponential curves."""
    rng = np.random.default_rng(seed)
    rows = []
    for n, (start, asymptote, tau) in TRUTH.items():
        for s in range(seeds):
            effect = rng.normal(0, between)
            for i in range(points + 1):
                c = i * 1024
                rise = 1 - np.exp(-c / tau)
                reward = start + (asymptote - start + effect) * rise + rng.normal(0, noise)
                rows.append(
                    {
                        "run_id": f"n{n}s{s}",
                        "step": c // (8 * n),
                        "rollouts": c,
                        "tokens": 10 * c,
                        "rollouts_per_problem": n,
                        "problems_per_batch": 8,
                        "seed": s,
                        "problem_set": "easy",
                        "split": "validation",
                        "questions": 300,
                        "samples": 4,
                        "avg_at_4": float(np.clip(reward, 0, 1)),
                    }
                )
    return pl.DataFrame(rows)


@pytest.fixture
def table() -> pl.DataFrame:
    """Two curves, two seeds."""
    return evals()
