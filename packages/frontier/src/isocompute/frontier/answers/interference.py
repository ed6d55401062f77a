"""Interference: uneven training across problems at equal rollouts (Playbook, 5.1, Figures 11 and 27)."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..data.curves import Array, sampling_variance
from ..errors import FrontierError
from ..posterior.health import judge
from ..posterior.runs import runs_of

RUN = ("run_id", "rollouts_per_problem", "problems_per_batch")
NEAR = 0.1
"""Rollouts within this share of each other count as equal: different batches never add up to the same number."""


def interference(pass_rates: pl.DataFrame, evals: pl.DataFrame, *, bins: int = 10) -> pl.DataFrame:
    """Measure each evaluation of each run, by the rollouts that the run had been trained on.

    Args:
        pass_rates: A ``pass_rates`` table: of training problems as in the paper, or of others.
        evals: An ``evals`` table of the runs; pass rates of other runs are ignored.

    Returns:
        One row per evaluation: ``run_id``, ``rollouts_per_problem``, ``problems_per_batch``, ``step``, ``rollouts``,
        ``problems``, ``mean``, ``zero_fraction`` (problems never solved), ``one_fraction`` (always solved),
        ``dispersion`` (variance relative to a coin of the same mean: 0 if all problems are alike, 1 if each is always
        or never solved; sampling variance is subtracted) and ``distance_to_start`` (Wasserstein distance between this
        histogram and the run's first; null if a run has one evaluation, as a branch of another may).

    Raises:
        FrontierError: There are no pass rates, the tables have no run in common, or an evaluation's rollouts are
            unknown.
    """
    if pass_rates.is_empty():
        raise FrontierError("there are no pass rates")
    known = evals.select(*RUN, "step", "rollouts").unique(["run_id", "step"])
    own = pass_rates.filter(pl.col("run_id").is_in(known["run_id"].unique().to_list()))
    if own.is_empty():
        raise FrontierError("the pass rates and the evaluations have no run in common")
    own = own.join(known, on=["run_id", "step"], how="left").sort(
        "rollouts_per_problem", "problems_per_batch", "run_id", "step", "problem_id"
    )
    unknown = own.filter(pl.col("rollouts").is_null())
    if not unknown.is_empty():
        run_id, step = unknown.select("run_id", "step").row(0)
        raise FrontierError(
            f"no evaluation of run {run_id} at step {step} says how many rollouts it had been trained on"
        )
    rows, first, columns = [], dict[str, Array](), (*RUN, "step", "rollouts")
    for keys, part in own.group_by(columns, maintain_order=True):
        samples = part["samples"].to_numpy().astype(np.float64)
        rate = part["successes"].to_numpy() / samples
        share = histogram(rate, bins)
        rows.append(
            {
                **dict(zip(columns, keys, strict=True)),
                "problems": len(part),
                "mean": float(rate.mean()),
                "zero_fraction": float((rate == 0).mean()),
                "one_fraction": float((rate == 1).mean()),
                "dispersion": dispersion(rate, samples),
                "distance_to_start": wasserstein(share, first.setdefault(str(keys[0]), share)),
            }
        )
    moved = pl.when(pl.len().over("run_id") > 1).then("distance_to_start")
    return pl.DataFrame(rows).with_columns(distance_to_start=moved)


def comparable(evals: pl.DataFrame, *, problems_per_batch: int | None = None) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Evaluations of runs that differ only in n, and notes on what was left out.

    The runs share one B_p, did not fail and began from the base model. Each n is at its best rate: the one with the
    highest mean reward at the last evaluation within the rollouts that every n reached. All seeds at that rate count
    alike. If the table has no rates, the runs of the first seed that every n has represent them.

    Args:
        problems_per_batch: B_p; by default the one with the most n, and among those the one with the most runs.

    Raises:
        FrontierError: No run is left, or the table has no mean reward.
    """
    metric = next((c for c in evals.columns if c.startswith("avg_at_")), None)
    if metric is None:
        raise FrontierError("runs that failed are told by their mean reward: the evaluations have no avg_at_k")
    split = "validation" if "validation" in evals["split"] else evals["split"][0]
    rows = evals.filter(pl.col("split") == split).with_columns(start=pl.col("rollouts").min().over("run_id"))
    if "learning_rate" not in rows.columns or rows["learning_rate"].null_count():
        rows = rows.with_columns(learning_rate=pl.lit(None, dtype=pl.Float64))
    sizes = rows.group_by("problems_per_batch").agg(
        pl.col("rollouts_per_problem").n_unique(), runs=pl.col("run_id").n_unique()
    )
    if problems_per_batch is None:
        problems_per_batch = int(sizes.sort("rollouts_per_problem", "runs")["problems_per_batch"][-1])
    kept = rows.filter((pl.col("problems_per_batch") == problems_per_batch) & (pl.col("start") == rows["start"].min()))
    if kept.is_empty():
        raise FrontierError(f"no run has B_p = {problems_per_batch}")
    judged = judge(runs_of(kept, metric=metric, unit="rollouts", split=split, group="run_id"))
    of_n = dict(kept.select("run_id", "rollouts_per_problem").iter_rows())
    dead = {health.run_id: health.evidence for health in judged if health.failed}
    alive = kept.filter(~pl.col("run_id").is_in(list(dead)))
    if alive.is_empty():
        raise FrontierError(f"every run of B_p = {problems_per_batch} failed")
    chosen = _at_best_rates(alive, metric)
    left = rows["run_id"].n_unique() - kept["run_id"].n_unique()
    others = alive["run_id"].n_unique() - len(chosen)
    notes = [f"n = {of_n[run]}, run {run} failed and is left out: it {evidence}" for run, evidence in dead.items()]
    if left:
        notes.append(
            f"{left} runs of another B_p than {problems_per_batch}, or that go on from another run, are left out"
        )
    if others:
        notes.append(f"{others} runs at other rates, or of other seeds where no rate is known, are left out")
    return evals.filter(pl.col("run_id").is_in(chosen)), tuple(notes)


def _at_best_rates(rows: pl.DataFrame, metric: str) -> list[str]:
    """Run ids of each n at the rate with its highest reward."""
    ends = rows.group_by("rollouts_per_problem").agg(pl.col("rollouts").max())
    keys = ["rollouts_per_problem", "learning_rate", "seed", "run_id"]
    last = rows.filter(pl.col("rollouts") <= ends["rollouts"].to_numpy().min() * (1 + NEAR)).sort("rollouts")
    last = last.group_by(keys, maintain_order=True).agg(pl.col(metric).last())
    rate = ["rollouts_per_problem", "learning_rate"]
    if last["learning_rate"].null_count():
        shared = last.group_by("seed").agg(pl.col("rollouts_per_problem").n_unique())
        seed = shared.sort(-pl.col("rollouts_per_problem").cast(pl.Int64), "seed")["seed"][0]
        # Runs with the same n and seed differ in their rates.
        last, rate = last.filter(pl.col("seed") == seed), ["rollouts_per_problem", "run_id"]
    best = last.group_by(rate).agg(pl.col(metric).mean()).sort(metric, *rate)
    best = best.group_by("rollouts_per_problem", maintain_order=True).last()
    return last.join(best, on=rate, nulls_equal=True).sort("rollouts_per_problem", "seed")["run_id"].to_list()


def at_equal_rollouts(measures: pl.DataFrame) -> pl.DataFrame:
    """The comparable rows of ``interference``: each run's last row near the most rollouts that every n reached.

    Raises:
        FrontierError: Runs of several n share no rollouts.
    """
    ends = measures.group_by("rollouts_per_problem").agg(pl.col("rollouts").max())
    shared = int(ends["rollouts"].to_numpy().min())
    near = measures.filter((pl.col("rollouts") - shared).abs() <= NEAR * shared)
    found = near.group_by("run_id", maintain_order=True).last().select(measures.columns)
    if found["rollouts_per_problem"].n_unique() < min(len(ends), 2):
        raise FrontierError("no two n were evaluated within 10 % of the same rollouts: there is nothing to compare")
    return found


def dispersion(rate: Array, samples: Array) -> float:
    """Variance of the true pass rates over p(1−p), within 0 to 1; the binomial variance of measurement is subtracted.

    Args:
        rate: Measured pass rates, shape ``(problems,)``.
        samples: Samples per problem, shape ``(problems,)``.
    """
    mean = float(rate.mean())
    largest = mean * (1 - mean)
    if largest <= 0 or len(rate) < 2:
        return 0.0
    # Unbiased for each problem's p(1-p)/k; a single sample gives no estimate.
    several = samples > 1
    noise = np.where(several, sampling_variance(rate * (1 - rate), samples), largest)
    return float(np.clip((rate.var(ddof=1) - noise.mean()) / largest, 0.0, 1.0))


def histogram(rate: Array, bins: int) -> Array:
    """Shares of problems, shape ``(bins,)``, by pass rate, shape ``(problems,)``, in equal bins over [0, 1]."""
    counts, _ = np.histogram(rate, bins=bins, range=(0.0, 1.0))
    return np.asarray(counts / max(len(rate), 1))


def wasserstein(a: Array, b: Array) -> float:
    """Earth mover's distance between two histograms over [0, 1], shares of shape ``(bins,)``."""
    return float(np.abs(np.cumsum(a - b)).sum() / len(a))


def train_validation_gap(evals: pl.DataFrame, metric: str = "avg_at_4") -> pl.DataFrame:
    """Train minus validation reward for runs evaluated on both: what was memorised.

    Returns:
        One row per step evaluated on both: its keys, ``train``, ``validation`` and ``gap``.

    Raises:
        FrontierError: No run was evaluated on both splits at one step.
    """
    keys = ["run_id", "problem_set", "step", "rollouts", "rollouts_per_problem", "problems_per_batch", "seed"]
    train, validation = (evals.filter(split=s).select(*keys, pl.col(metric).alias(s)) for s in ("train", "validation"))
    both = train.join(validation, on=keys)
    if both.is_empty():
        raise FrontierError("no run was evaluated on both train and validation at one step")
    return both.with_columns(gap=pl.col("train") - pl.col("validation")).sort(keys)
