"""Evaluations of made-up runs with known curves, and quick fits of them."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, Frontier, notebook
from isocompute.frontier.posterior import posterior

# For modules of the tests that others import.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "posterior")]

TRUTH = {4: (0.30, 0.45, 3000.0), 16: (0.30, 0.60, 9000.0)}
"""n to (R0, A, τ): n = 4 rises faster and levels off lower."""
USUAL: dict[str, Any] = {"rollouts_per_problem": 8, "problems_per_batch": 8, "seed": 0, "problem_set": "easy"}
USUAL |= {"split": "validation", "questions": 300, "samples": 4}


def run(rollouts: np.ndarray, reward: np.ndarray, **columns: Any) -> pl.DataFrame:
    """Evaluations of one run, with the usual columns unless others are given."""
    every = {**USUAL, **columns}
    fixed = {k: pl.lit(v, dtype=pl.Int64 if isinstance(v, int) else None) for k, v in every.items()}
    return pl.DataFrame({"rollouts": rollouts, "avg_at_4": reward}).with_columns(**fixed)


def evals(
    *, noise: float = 0.01, seeds: int = 2, between: float = 0.0, points: int = 20, seed: int = 0
) -> pl.DataFrame:
    """An ``evals`` table of exponential curves."""
    rng, parts = np.random.default_rng(seed), []
    compute = 1024 * np.arange(points + 1)
    for n, (start, asymptote, tau) in TRUTH.items():
        for s in range(seeds):
            effect = rng.normal(0, between)
            reward = start + (asymptote - start + effect) * (1 - np.exp(-compute / tau))
            reward = np.clip(reward + rng.normal(0, noise, len(compute)), 0, 1)
            parts.append(run(compute, reward, rollouts_per_problem=n, seed=s, run_id=f"n{n}s{s}"))
    step = pl.col("rollouts") // (8 * pl.col("rollouts_per_problem"))
    return pl.concat(parts).with_columns(step=step, tokens=10 * pl.col("rollouts"))


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Let fits take few short chains, whether they agree or not: 512 draws for what does not hang by a percent."""
    patch.setattr(posterior, "AGREED", np.inf)
    patch.setattr(posterior, "ENOUGH", 0.0)
    patch.setattr(notebook, "posterior", partial(posterior.posterior, size=(32, 40, 16)))


def quick(table: pl.DataFrame, *, pass_rates: pl.DataFrame | None = None, **settings: Any) -> Fit:
    """A fit of short chains."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return Frontier(table, **settings).fit(pass_rates=pass_rates)


@pytest.fixture
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of short chains in a whole test."""
    shorten(monkeypatch)


@pytest.fixture
def table() -> pl.DataFrame:
    """Two curves, two seeds."""
    return evals()
