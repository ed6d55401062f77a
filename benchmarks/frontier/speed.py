"""CPU-seconds and memory of a fit of the posterior, by the size of the sweep.

    python -m benchmarks.frontier.speed [--repeats 3] [--only 40x50 1000x50]

The sizes: 24 runs of 17 evaluations (8 n, 3 seeds), 40 of 50 (5 seeds) and 1,000 of 50 (125 seeds). Each fit is made in
a process of its own, which first fits a sweep of 8 runs, printed apart, so that nothing is imported for the first time
in what is counted. Repeats are other sweeps, sizes in turns. ``--source DIR …`` measures other checkouts, in turns with
each other, by fits of the same sweeps:

    git worktree add ../before COMMIT
    python -m benchmarks.frontier.speed --source ../before .

A point is the density and its gradient of one chain at one evaluation. A fit that needs more than 8 GiB is given up.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
from isocompute.frontier import Frontier

from benchmarks.frontier.worlds import SIZES, run, world

SWEEPS = {"24x17": (3, 16), "40x50": (5, 49), "1000x50": (125, 49)}
"""Seeds of each of 8 n, and evaluations after that at the start."""
FIRST = (1, 8)
MOST = 8 * 2**30
"""Bytes that a process may ask for."""


def sweep(seeds: int, evaluations: int, number: int) -> pl.DataFrame:
    """A made-up sweep."""
    rng = np.random.default_rng([number, 31])
    truth, rows = world("smooth", rng), []
    for n in SIZES:
        for seed in range(seeds):
            rows += run(truth, rng, n=n, seed=seed, deviation=0.05, evaluations=evaluations)
    return pl.DataFrame(rows)


def seconds(size: tuple[int, int], number: int) -> float:
    """CPU-seconds of a fit of one made-up sweep."""
    evals = sweep(*size, number)
    begin = time.process_time()
    Frontier(evals).fit(seed=number)
    return time.process_time() - begin


def point(size: tuple[int, int], number: int) -> float:
    """Nanoseconds of a point, at 16 chains."""
    from isocompute.frontier.posterior.health import prepare
    from isocompute.frontier.posterior.model import Model
    from isocompute.frontier.posterior.runs import runs_of

    own = runs_of(sweep(*size, number), metric="avg_at_4", unit="rollouts", split="validation")
    model = Model(runs=prepare(own).runs)
    theta = 0.5 * np.random.default_rng(number).standard_normal((16, model.size))
    model(theta)
    spent = []
    for _ in range(5):
        begin = time.process_time()
        model(theta)
        spent.append(time.process_time() - begin)
    return min(spent) / float(model.runs.seen.sum()) / len(theta) * 1e9


def measured(name: str, number: int) -> dict[str, float]:
    """What one process measures."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    first = seconds(FIRST, number)
    found = {"first": first, "seconds": seconds(SWEEPS[name], number)}
    # Of the fit: what a point costs is measured after it.
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found | {"nanoseconds": point(SWEEPS[name], number)}


def asked(source: Path, name: str, number: int) -> dict[str, float] | None:
    """Measure one size with the code of a checkout, in a process of its own; None where memory does not suffice."""
    own, root = source.resolve() / "packages" / "frontier" / "src", Path(__file__).parents[2]
    path = os.pathsep.join((str(own), str(root), os.environ.get("PYTHONPATH", "")))
    words = [sys.executable, __file__, "--one", name, str(number)]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if "MemoryError" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(f"{name} in {source} ended with {done.returncode}: {done.stderr[-1000:]}")
    return dict(json.loads(done.stdout))


def main() -> None:
    """Print the least and the median of some repeats of each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--source", nargs="+", type=Path, default=[Path(__file__).parents[2]])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one[0], int(given.one[1]))))
        return
    found: dict[tuple[Path, str], list[dict[str, float] | None]] = {}
    for number, name, source in product(range(given.repeats), given.only, given.source):
        one = asked(source, name, number)
        found.setdefault((source, name), []).append(one)
        said = ", ".join(f"{what} {value:.4g}" for what, value in one.items()) if one else "more than 8 GiB"
        print(f"{name}, sweep {number}, {source}: {said}", flush=True)
    print(f"{'size':8} {'CPU-seconds: least':>18} {'median':>7} {'first':>6} {'MB':>6} {'ns a point':>11}  source")
    for (source, name), own in found.items():
        fits = [each for each in own if each]
        if not fits:
            print(f"{name:8} needs more than 8 GiB  {source}")
            continue
        of = {key: [each[key] for each in fits] for key in fits[0]}
        print(
            f"{name:8} {min(of['seconds']):18.2f} {np.median(of['seconds']):7.2f} {np.median(of['first']):6.2f} "
            f"{max(of['megabytes']):6.0f} {min(of['nanoseconds']):11.0f}  {source}"
        )


if __name__ == "__main__":
    main()
