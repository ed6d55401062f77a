"""CPU-seconds of one fit of the posterior, by the size of the sweep.

    python -m benchmarks.frontier.speed [--repeats 3]

The sizes: 8 n × 3 seeds × 16 evaluations; 40 runs × 50 (8 n × 5 seeds); and both again, interleaved.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import polars as pl
from isocompute.frontier import Frontier

from benchmarks.frontier.worlds import SIZES, run, world

SWEEPS = {"8 n x 3 seeds x 16 evaluations": (3, 16), "8 n x 5 seeds x 50 evaluations": (5, 50)}


def seconds(seeds: int, evaluations: int, number: int) -> float:
    """CPU-seconds of a fit of one made-up sweep."""
    rng = np.random.default_rng([number, 31])
    truth, rows = world("smooth", rng), []
    for n in SIZES:
        for seed in range(seeds):
            rows += run(truth, rng, n=n, seed=seed, deviation=0.05, evaluations=evaluations)
    evals = pl.DataFrame(rows)
    begin = time.process_time()
    Frontier(evals).fit(seed=number)
    return time.process_time() - begin


def main() -> None:
    """Print the least and the median of some repeats of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    spent: dict[str, list[float]] = {name: [] for name in SWEEPS}
    for number in range(repeats):
        for name, size in SWEEPS.items():
            spent[name].append(seconds(*size, number))
    for name, own in spent.items():
        print(f"{name}: {min(own):.2f} to {max(own):.2f} CPU-seconds, median {np.median(own):.2f}")


if __name__ == "__main__":
    main()
