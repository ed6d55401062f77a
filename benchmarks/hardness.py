"""Measure the difficulty of the problem sets, by more fresh responses than the pipeline takes.

    python -m benchmarks.hardness [--samples 64]

For each set: fresh avg@16 as the pipeline measured it, avg@k of the responses made here, and the share of problems of
which at least one of them is right (pass@k above 0). Run it where `python -m experiments repro` ran.
"""

from __future__ import annotations

import argparse
import os
import sys

import polars as pl
from isocompute.rollout.contract import tables

from experiments.running.cell_folder import PREPARED, model_of
from experiments.running.measure import measure
from experiments.running.schedule import workers
from experiments.settings import load


def main() -> int:
    """Print a line for each side of each set; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--seed", type=int, default=5000, help="a seed that nothing else uses")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        preset = load()
        for base_model in preset.base_models:
            model, base = model_of(preset, base_model)
            with workers(preset, {base: model}) as pool:
                for name in preset.sweep:
                    table = tables.read(PREPARED / base_model / f"{name}.parquet", "problems")
                    title, asked = f"{base_model}, {name}", {"samples": arguments.samples, "seed": arguments.seed}
                    rates, _ = measure(pool, table, **asked, phase="baseline", title=title)
                    _say(title, table.join(rates, on="problem_id"), arguments.samples)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _say(name: str, table: pl.DataFrame, samples: int) -> None:
    for side in ("train", "validation"):
        own = table.filter(pl.col("split") == side)
        again = own["fresh_pass_rate"].to_numpy().mean()
        rate = (own["successes"] / own["samples"]).to_numpy().mean()
        solved = (own["successes"] > 0).to_numpy().mean()
        print(
            f"{name}, {side}: fresh avg@{own['fresh_pass_rate_samples'][0]} {again:.3f}, avg@{samples} {rate:.3f}, "
            f"pass@{samples} above 0 for {solved:.0%} of {len(own)} problems"
        )


if __name__ == "__main__":
    sys.exit(main())
