"""Real runs with labels, ways to damage them, and made-up runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from isocompute.frontier.data.curves import Array
from isocompute.frontier.posterior.runs import Run, Setting, runs_of

LABELLED = Path(__file__).parent / "labelled_runs.parquet"


@cache
def labelled() -> pl.DataFrame:
    columns = {"run_id": pl.col("run"), "problem_set": pl.lit("own"), "split": pl.lit("validation")}
    return pl.read_parquet(LABELLED).with_columns(**columns)


@cache
def sweep(name: str) -> tuple[Run, ...]:
    rows = labelled().filter(pl.col("sweep") == name)
    return tuple(runs_of(rows, metric="avg_at_4", unit="rollouts", split="validation"))


def made(compute: Array, reward: Array, error: Array, *, trials: float | None = None, seed: int = 0) -> Run:
    """A run of n = 8 and B_p = 8; its errors are known where trials are."""
    return Run(
        name=f"n = 8, seed {seed}",
        run_id=None,
        cell=Setting(rollouts_per_problem=8, problems_per_batch=8),
        seed=seed,
        compute=compute,
        reward=reward,
        error=error,
        trials=None if trials is None else np.full(len(compute), trials),
        error_is_known=trials is not None,
    )


def rewarded(change: Callable[[Array], Array]) -> Callable[[Run], Run]:
    return lambda run: replace(run, reward=change(run.reward))


in_percent = rewarded(lambda reward: 100 * reward)
of_minus_one_and_one = rewarded(lambda reward: 2 * reward - 1)
half_above = rewarded(lambda reward: (1 + reward) / 2)
broken_down = rewarded(lambda reward: np.concatenate([reward[:-4], [0.01, 0.0, 0.005, 0.0]]))


def zeros(*where: int) -> Callable[[Run], Run]:
    return rewarded(lambda reward: np.where(np.isin(np.arange(len(reward)), np.array(where) % len(reward)), 0, reward))


def without_some(run: Run) -> Run:
    return run.without([4, 7])


def killed(run: Run) -> Run:
    return run.without(range(int(0.6 * len(run.reward)), len(run.reward)))


def asleep(run: Run) -> Run:
    """A run of a default sweep that stays at 0.36, where its base model is."""
    reward = np.random.default_rng(0).binomial(1200, 0.36, len(run.reward)) / 1200
    return replace(run, reward=np.append(run.reward[0], reward[1:]))
