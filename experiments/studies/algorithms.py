"""Does every algorithm learn? Each on one problem set, several seeds, against the base model's fresh score.

    python -m experiments.studies.algorithms [--set SET] [--rollouts 8192] [--seeds 3] [--rate 1.25e-4]

For each algorithm: the mean over seeds of the last two of four evaluations minus the base model's score of fresh
responses to the same questions, with a t interval over the seeds, widened by the standard error of the base's score. A
seed that diverged is named and has no score. It ends with an error where a seed diverged, an interval does not exclude
0, or GRPO gains less than 0.2. Base model and problems are those of the panel's units with base 0.

Nothing is chosen by these runs: their seeds are used by nothing else, and every algorithm has the same learning rate,
which ``--rate`` gives. Its default was known before: 1.25e-4 was the best for n = 4 in earlier runs on the same task.
It is not tuned for each algorithm, so that their gains are no ranking. GRPO and Dr. GRPO take one update
per batch, where the ratio is 1 and its clipping bounds do not act; the others take two.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from isocompute.learner import RunConfig
from isocompute.rollout.contract import tables
from scipy import stats

from experiments.errors import ExperimentError
from experiments.running import cell_folder
from experiments.running.cell_folder import content
from experiments.running.cells import Cell, Design, Surroundings, problems_hash
from experiments.running.schedule import Schedule, workers
from experiments.stages.sweep import Setup
from experiments.studies.panel import study
from experiments.studies.panel.prepare import INPUTS, preset_of
from experiments.studies.panel.study import Unit

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"objective": {"algorithm": "dr_grpo"}},
    "ppo": {"objective": {"algorithm": "ppo", "updates_per_batch": 2}},
    "cispo": {"objective": {"algorithm": "cispo", "updates_per_batch": 2}},
    "dapo (clip-higher)": {"objective": {"algorithm": "dapo", "updates_per_batch": 2}},
    "gspo": {"objective": {"algorithm": "gspo", "updates_per_batch": 2}, "importance": {"level": "sequence"}},
}
"""Settings of each that differ from the sweep's. Bounds act only where a batch has several updates."""
LEAST_GAIN = 0.2
LEVEL = 0.95
EVALUATIONS, LAST = 4, 2
"""Evaluations after the first step, and those at the end whose mean is a seed's score."""
FIRST_SEED = 7000


def check(arguments: argparse.Namespace, problems_per_batch: int) -> None:
    """Refuse settings that no cell can have, or that leave nothing to compare.

    Args:
        arguments: The command's arguments.
        problems_per_batch: B_p of the problem set.

    Raises:
        ExperimentError: A number is too small, or the budget is not a whole number of batches between evaluations.
    """
    if arguments.seeds < 2:
        raise ExperimentError(f"--seeds is {arguments.seeds}; an interval needs 2 or more")
    if not 0 < arguments.rate < inf:
        raise ExperimentError(f"--rate is {arguments.rate:g}; it must be greater than 0")
    if arguments.n < 2:
        raise ExperimentError(f"--n is {arguments.n}; a group that is compared with itself needs 2 or more")
    grid = EVALUATIONS * arguments.n * problems_per_batch
    if arguments.rollouts < grid or arguments.rollouts % grid:
        raise ExperimentError(
            f"--rollouts is {arguments.rollouts}; it must be a multiple of {grid}, for {EVALUATIONS} evaluations after "
            f"whole batches of {arguments.n * problems_per_batch} rollouts"
        )


def cells_of(
    design: Design,
    settings: Mapping[str, Any],
    arguments: argparse.Namespace,
    *,
    purpose: str = "algorithm",
    first_seed: int = FIRST_SEED,
    evaluations: int = EVALUATIONS,
) -> list[Cell]:
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
            purpose,
            RunConfig(
                rollouts_per_problem=arguments.n,
                problems_per_batch=design.sweep.problems_per_batch[0],
                seed=first_seed + seed,
                evaluate_every=arguments.rollouts // evaluations,
            ),
            rollouts=arguments.rollouts,
            learning_rate=arguments.rate,
        )
        for seed in range(arguments.seeds)
    ]


def setup_of(unit: Unit, *, resources: Mapping[str, Any] | None = None, every: Path = INPUTS) -> Setup:
    """Inputs of the cells of a unit of the panel, from the committed files.

    Args:
        resources: Resources in place of the panel's.
        every: The folder with those of every base model.
    """
    preset = preset_of(unit, every)
    preset = preset.model_copy(update={"resources": preset.resources.model_copy(update=dict(resources or {}))})
    inputs = every / f"{unit.task}-{unit.base_seed}"
    problems, base = tables.read(inputs / f"{unit.problem_set}.parquet", "problems"), content(inputs / "base")
    surroundings, hashed = Surroundings.of(preset.resolved_resources()), problems_hash(problems)
    design = Design.of(preset, unit.problem_set, inputs.name, surroundings, base=base, problems=hashed)
    return Setup(designs=(design,), problems={hashed: problems}, models={base: str(inputs / "base")})


def base_of(table: pl.DataFrame) -> tuple[float, float]:
    """The base model's score of fresh responses to the validation questions, and its standard error of sampling.

    Args:
        table: The ``problems`` table.
    """
    problems = table.filter(pl.col("split") == "validation")
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


def ending(evals: pl.DataFrame, metric: str) -> float:
    """The mean of a run's last evaluations; the one of the base model, before the first step, is none of them.

    Args:
        evals: Its rows of ``evals``.
        metric: The column of the score.
    """
    return float(evals.filter(pl.col("step") > 0).sort("rollouts")[metric].tail(LAST).to_numpy().mean())


def verdict(
    ends: Mapping[int, float], diverged: Sequence[int], base: tuple[float, float], *, least: float = 0.0
) -> tuple[str, bool]:
    """Return the line printed of an algorithm, and whether it learns: every seed to the end, and surely above the base.

    Args:
        ends: The score of each seed that was trained to the end.
        base: The base's score and its standard error.
        least: Least mean gain.
    """
    lost = "".join(f", seed {seed} diverged" for seed in diverged)
    each = "seeds " + ", ".join(f"{end:.3f}" for end in ends.values()) if ends else "no seed was trained to the end"
    if len(ends) < 2:
        return f"no interval, {each}{lost}", False
    found, half = gain(list(ends.values()), base)
    said = f"{found:+.3f} ({found - half:+.3f} to {found + half:+.3f}), {each}{lost}"
    return said, not diverged and found - half > 0 and found >= least


def compared(setup: Setup, arguments: argparse.Namespace) -> list[str]:
    """Train all cells and print a line for each algorithm; return what failed.

    Args:
        arguments: The command's arguments.
    """
    (design,), (table,) = setup.designs, setup.problems.values()
    preset = design.preset
    base, metric, failed = base_of(table), preset.evaluation.metric, []
    wanted = {name: cells_of(design, settings, arguments) for name, settings in ALGORITHMS.items()}
    every = [cell for cells in wanted.values() for cell in cells]
    with workers(preset, setup.models) as pool:
        Schedule(every, setup.problems, pool, f"{preset.name}-algorithms", title="algorithms").finish()
    print(f"{arguments.set}: base {metric} {base[0]:.3f} (standard error {base[1]:.3f}), fresh responses")
    for name, cells in wanted.items():
        outcomes = {cell.run.seed: cell_folder.outcome(cell) for cell in cells}
        ends = {seed: ending(found.read("evals"), metric) for seed, found in outcomes.items() if not found.diverged}
        diverged = [seed for seed, found in outcomes.items() if found.diverged]
        said, learns = verdict(ends, diverged, base, least=LEAST_GAIN if name == "grpo" else 0.0)
        print(f"{name:20} {said}", flush=True)
        if not learns:
            failed.append(name)
    return failed


def main() -> int:
    """Run the comparison; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--set", default="easy", help="problem set of the panel (default: easy)")
    parser.add_argument("--n", type=int, default=4, help="rollouts per problem (default 4)")
    parser.add_argument("--rollouts", type=int, default=8192, help="budget of a cell (default 8192)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each algorithm (default 3)")
    parser.add_argument("--rate", type=float, default=1.25e-4, help="learning rate of all (default 1.25e-4)")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        setup = setup_of(study.unit_of(f"{arguments.set}-0"))
        check(arguments, setup.designs[0].sweep.problems_per_batch[0])
        failed = compared(setup, arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if failed:
        print(f"not above the base model in every seed or by enough: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
