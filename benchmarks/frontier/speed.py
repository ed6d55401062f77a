"""Bootstrap refits against a loop of scipy's curve_fit, and fitting many runs from Parquet.

    python benchmarks/frontier/speed.py [--long]

CPU-seconds of one core, the two ways interleaved in one run. ``--long`` adds 1,000 runs × 500 points from Parquet,
read and fitted once, and the same with a half and a quarter of the points: time and peak memory against points.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from isocompute.frontier import FitConfig, fit, read_evals
from isocompute.frontier.data.curves import Curve
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.noise import Noise, scatter
from isocompute.frontier.fitting.uncertainty import Resampling, refit
from scipy.optimize import curve_fit

POINTS, CURVES, REFITS, LOOPED = 300, 6, 1000, 5


def curve(seed: int) -> tuple[Curve, Parameters]:
    """A noisy run of 300 points."""
    rng = np.random.default_rng(seed)
    truth = Parameters(form="exp", start=0.4, gain=0.2, scale=4e5, shape=1.0)
    compute = np.linspace(1e4, 4e6, POINTS)
    error = np.full(POINTS, 0.014)
    made = Curve(
        rollouts_per_problem=8, problems_per_batch=32, compute=compute,
        reward=truth(compute) + rng.normal(0, 0.014, POINTS), standard_error=error,
        seed=np.zeros(POINTS, dtype=np.int64),
    )  # fmt: skip
    return made, truth


def ours(forms: tuple[str, ...]) -> float:
    """CPU-seconds of 1,000 refits of six curves."""
    noise = Noise(autocorrelation=0.3)
    began = time.process_time()
    for i in range(CURVES):
        made, truth = curve(i)
        setting = Resampling(
            curve=made, fitted=truth, likely={truth: 1.0}, noise=noise, scatter=scatter(made, truth, noise),
            effects=np.zeros((REFITS, 1, 2)),
        )  # fmt: skip
        refit(setting, forms, rng=np.random.default_rng(i))
    return time.process_time() - began


def looped() -> float:
    """CPU-seconds that the same refits would take curve_fit from four starts, from a few of them."""
    made, truth = curve(0)
    rng = np.random.default_rng(0)
    began = time.process_time()
    for _ in range(LOOPED):
        reward = truth(made.compute) + rng.normal(0, 0.014, POINTS)
        for form in ("exp", "hill"):
            for tau in (1e5, 3e5, 1e6, 3e6):
                try:
                    if form == "exp":
                        curve_fit(lambda c, a, d, t: a - d * np.exp(-c / t), made.compute, reward, p0=(0.6, 0.2, tau),
                                  sigma=made.standard_error, bounds=([0, 0, 1e3], [1, 1, 1e8]))  # fmt: skip
                    else:
                        curve_fit(lambda c, a, r, t, b: r + (a - r) / (1 + (t / c) ** b), made.compute, reward,
                                  p0=(0.6, 0.4, tau, 1.0), sigma=made.standard_error,
                                  bounds=([0, 0, 1e3, 0.3], [1, 1, 1e8, 6]))  # fmt: skip
                except RuntimeError:
                    continue
    return (time.process_time() - began) * CURVES * REFITS / LOOPED


def many_runs(points: int, runs: int = 1000) -> tuple[float, float, float]:
    """Seconds to read runs from Parquet and to fit them once with every form, and peak memory above a bare start.

    In a process of its own, so that the memory is its own; MB.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "evals.parquet"
        write_runs(path, points, runs)
        done = subprocess.run(
            [sys.executable, __file__, "--fit", str(path)], capture_output=True, text=True, check=True
        )
    read, fitted, memory = (float(v) for v in done.stdout.split())
    return read, fitted, memory


def write_runs(path: Path, points: int, runs: int) -> None:
    """Runs of four n, 250 seeds each."""
    n = (4, 8, 16, 32)
    rng = np.random.default_rng(0)
    compute = np.arange(1, points + 1) * (4_096_000 // points)
    parts = [
        pl.DataFrame({"step": np.arange(1, points + 1), "rollouts": compute, "tokens": compute * 100,
                      "avg_at_4": np.clip(0.6 - 0.2 * np.exp(-compute / 4e5) + rng.normal(0, 0.014, points), 0, 1)})
        .with_columns(run_id=pl.lit(f"r{i}"), rollouts_per_problem=pl.lit(n[i % 4], dtype=pl.Int32),
                      problems_per_batch=pl.lit(32, dtype=pl.Int32), seed=pl.lit(i // 4, dtype=pl.Int64),
                      problem_set=pl.lit("easy"), split=pl.lit("validation"),
                      questions=pl.lit(300, dtype=pl.Int32), samples=pl.lit(4, dtype=pl.Int32))
        for i in range(runs)
    ]  # fmt: skip
    # A step is as many rollouts for every n, or the reader would see mixed units.
    frame = pl.concat(parts).with_columns(step=pl.col("rollouts") // (32 * pl.col("rollouts_per_problem")))
    frame.write_parquet(path)


def read_and_fit(path: Path) -> None:
    """Print the seconds of reading and of fitting, and what memory peaked at beyond that of a bare start (MB)."""
    bare = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    evals = read_evals([path])
    read = time.perf_counter() - began
    began = time.perf_counter()
    fit(evals, FitConfig(form="auto", bootstrap=20))
    fitted = time.perf_counter() - began
    print(read, fitted, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - bare) / 1024)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        read_and_fit(arguments.fit)
        return
    pairs = [(ours(("exp", "hill")), looped()) for _ in range(3)]
    for mine, theirs in pairs:
        print(f"{CURVES} curves x {REFITS} refits x {POINTS} points, exp and hill: {mine:.2f} CPU-s; "
              f"curve_fit from four starts: {theirs:,.0f} CPU-s (extrapolated); ratio {theirs / mine:.0f}")  # fmt: skip
    for points in (125, 250, 500) if arguments.long else ():
        read, fitted, memory = many_runs(points)
        print(f"1,000 runs x {points} points: read in {read:.1f} s, fitted in {fitted:.1f} s, {memory:,.0f} MB")


if __name__ == "__main__":
    main()
