"""Does every algorithm learn? Each on one problem set, several seeds, against the base model's fresh score.

    python -m experiments.benchmarks.algorithms [--set SET] [--rollouts 8192] [--seeds 3] [--rate 1.25e-4]

For each algorithm: the mean over seeds of the last two evaluations minus the base model's score of fresh responses to
the same questions, with a t interval over the seeds, widened by the standard error of the base's score. Nothing is
chosen here: every algorithm has the same rate, which ``--rate`` gives, and seeds that nothing else uses. It ends with
an error where an interval does not exclude 0, or GRPO gains less than 0.2. Run it where ``python -m experiments repro``
ran.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from math import hypot, sqrt
from typing import Any

import numpy as np
import polars as pl
from isocompute.rollout import tables
from scipy import stats

from ..errors import ExperimentError
from ..running import work
from ..running.cells import Cell
from ..running.design import Design
from ..running.pool import workers
from ..running.schedule import run_cells
from ..running.tracker import Tracker
from ..settings import Preset, load
from ..stages.difficulty import FOLDER
from ..stages.training import design_of

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"objective": {"algorithm": "dr_grpo"}},
    "ppo": {"objective": {"algorithm": "ppo"}},
    "cispo": {"objective": {"algorithm": "cispo"}},
    "dapo (clip-higher)": {"objective": {"algorithm": "dapo", "updates_per_batch": 2}},
    "gspo": {"objective": {"algorithm": "gspo", "updates_per_batch": 2}, "importance": {"level": "sequence"}},
}
"""What each differs in from the sweep's own settings. Clipping acts only where a batch has several updates."""
LEAST_GAIN = 0.2
LEVEL = 0.95


def cells_of(design: Design, settings: dict[str, Any], arguments: argparse.Namespace) -> list[Cell]:
    """One cell for each seed.

    Args:
        design: The design of the problem set.
        settings: What the algorithm differs in.
        arguments: The command's arguments.
    """
    learner = {**design.sweep.learner, **settings}
    own = replace(design, sweep=design.sweep.model_copy(update={"learner": learner}))
    return [
        own.cell(
            "algorithm", n=arguments.n, problems_per_batch=design.sweep.problems_per_batch[0], seed=7000 + seed,
            rollouts=arguments.rollouts, evaluate_every=arguments.rollouts // 4, learning_rate=arguments.rate,
        )
        for seed in range(arguments.seeds)
    ]  # fmt: skip


def base_of(name: str) -> tuple[float, float]:
    """The base model's score of fresh responses to the validation questions, and its standard error of sampling.

    Args:
        name: The problem set.
    """
    problems = tables.read(FOLDER / f"{name}.parquet", "problems").filter(pl.col("split") == "validation")
    rates = problems["fresh_pass_rate"].to_numpy()
    samples = problems["fresh_pass_rate_samples"].to_numpy()
    variance = (rates * (1 - rates) / (samples - 1)).sum() / len(rates) ** 2
    return float(rates.mean()), float(np.sqrt(variance))


def gain(ends: list[float], base: tuple[float, float]) -> tuple[float, float]:
    """Mean difference to the base, and half the width of its interval.

    Args:
        ends: A score for each seed.
        base: The base's score and its standard error.
    """
    spread = float(np.std(ends, ddof=1)) / sqrt(len(ends))
    factor = float(stats.t.ppf(0.5 + LEVEL / 2, len(ends) - 1))
    return float(np.mean(ends)) - base[0], factor * hypot(spread, base[1])


def compared(preset: Preset, arguments: argparse.Namespace) -> list[str]:
    """Train all cells and print a line for each algorithm; return what failed.

    Args:
        preset: The preset.
        arguments: The command's arguments.
    """
    design, problems, model = design_of(preset, arguments.set)
    base, metric, failed = base_of(arguments.set), preset.evaluation.metric, []
    wanted = {name: cells_of(design, settings, arguments) for name, settings in ALGORITHMS.items()}
    every = [cell for cells in wanted.values() for cell in cells]
    with workers(preset, model, design.origin.base) as pool:
        folders = run_cells(every, problems, pool, Tracker(f"{preset.name}-algorithms"), title="algorithms")
    print(f"{arguments.set}: base {metric} {base[0]:.3f} (standard error {base[1]:.3f}), fresh responses")
    for name, cells in wanted.items():
        outcomes = [work.outcome(cell, folders[cell.run_id]) for cell in cells]
        ends = [float(o.evals.sort("rollouts")[metric].tail(2).to_numpy().mean()) for o in outcomes]
        found, half = gain(ends, base)
        each = ", ".join(f"{end:.3f}" for end in ends)
        ended = ", ended by divergence" if any(o.diverged for o in outcomes) else ""
        print(f"{name:20} {found:+.3f} ({found - half:+.3f} to {found + half:+.3f}), seeds {each}{ended}", flush=True)
        if found - half <= 0 or (name == "grpo" and found < LEAST_GAIN):
            failed.append(name)
    return failed


def main() -> int:
    """Run the comparison; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--set", help="problem set (default: the first of the preset)")
    parser.add_argument("--n", type=int, default=4, help="rollouts per problem (default 4)")
    parser.add_argument("--rollouts", type=int, default=8192, help="budget of a cell (default 8192)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each algorithm (default 3)")
    parser.add_argument("--rate", type=float, default=1.25e-4, help="learning rate of all (default 1.25e-4)")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        if arguments.seeds < 2:
            raise ExperimentError(f"--seeds is {arguments.seeds}; an interval needs 2 or more")
        preset = load()
        arguments.set = arguments.set or next(iter(preset.sweep))
        failed = compared(preset, arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if failed:
        print(f"not above the base model: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
