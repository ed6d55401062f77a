"""What does learning from older weights cost, and what does it save? One algorithm at several lags k, in two modes.

    python -m experiments.studies.lag [--set SET] [--rollouts 8192] [--n 8] [--seeds 5] [--rate 1.25e-4]
                                      [--lags 1 8 32] [--update 12] [--figure docs/lag]

Every cell generates the same number of rollouts with CISPO from one base model, which with k = 0 is on-policy. For each
k and mode: the mean over seeds of the last two of eight evaluations, the mean of the paired differences to k = 0 (the
same seeds, problems and questions) with a t interval over the seeds, how old tokens were when they were learnt from,
and the time. That is in steps of decoding: a batch takes as many as its longest response has tokens, and an update
``--update`` of them. Alternating, the two add up; with ``constant`` engines and trainer work side by side and wait for
each other after each batch; ``virtual`` has its own clock. A run has collapsed where a score at its end is below the
base model's.

Nothing is chosen by these runs: their seeds are used by nothing else, and the learning rate, which ``--rate`` gives, is
that of ``experiments.studies.algorithms``, the same for every k. A lower one would be fairer to a large k.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from isocompute.learner.records.steps import StepRecord
from scipy import stats

from experiments.errors import ExperimentError
from experiments.figures import COLOURS, pyplot, save
from experiments.running import cell_folder
from experiments.running.cells import Cell, Design
from experiments.running.schedule import Schedule, workers
from experiments.studies.algorithms import LAST, LEVEL, base_of, cells_of, setup_of
from experiments.studies.panel import study

EVALUATIONS = 8
FIRST_SEED = 7100
MODES = ("virtual", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: what its evaluations said, by rollouts and by time, and how old its tokens were.

    Attributes:
        rollouts: Rollouts at each evaluation.
        times: Steps of decoding by then.
        scores: The metric then.
        lag_mean: Mean over tokens.
        lag_max: The largest.
    """

    rollouts: np.ndarray
    times: np.ndarray
    scores: np.ndarray
    lag_mean: float
    lag_max: float

    @property
    def end(self) -> float:
        """The mean of the last evaluations."""
        return float(self.scores[-LAST:].mean())


def check(arguments: argparse.Namespace, problems_per_batch: int) -> None:
    """Refuse settings that no cell can have, or that leave nothing to compare.

    Raises:
        ExperimentError: A number is too small, or the budget is not a whole number of batches between evaluations.
    """
    if arguments.seeds < 2:
        raise ExperimentError(f"--seeds is {arguments.seeds}; an interval needs 2 or more")
    if min(arguments.lags) < 1:
        raise ExperimentError(f"--lags holds {min(arguments.lags)}; 0 is always there, and others are 1 or more")
    if not arguments.update > 0:
        raise ExperimentError(f"--update is {arguments.update:g}; it must be greater than 0")
    grid = EVALUATIONS * arguments.n * problems_per_batch
    if arguments.rollouts < grid or arguments.rollouts % grid:
        raise ExperimentError(
            f"--rollouts is {arguments.rollouts}; it must be a multiple of {grid}, for {EVALUATIONS} evaluations after "
            f"whole batches of {arguments.n * problems_per_batch} rollouts"
        )


def lagged(design: Design, pipeline: Mapping[str, Any], arguments: argparse.Namespace) -> list[Cell]:
    """One cell for each seed, with the settings of a pipe."""
    settings = {"objective": {"algorithm": "cispo"}, "pipeline": dict(pipeline)}
    return cells_of(design, settings, arguments, purpose="lag", first_seed=FIRST_SEED, evaluations=EVALUATIONS)


def run_of(cell: Cell, metric: str, update: float) -> Run:
    """Read what a cell has left.

    Args:
        update: Time of an update (steps of decoding).
    """
    evals = cell_folder.outcome(cell).read("evals").filter(pl.col("step") > 0).sort("step")
    records = cell_folder.Spool(cell_folder.folder_of(cell)).records()
    steps = {record.step: record for record in records if isinstance(record, StepRecord)}
    spent = np.cumsum([time_of(steps[step], cell, update) for step in sorted(steps)])
    lags = [record.lag for record in steps.values() if record.lag is not None]
    times = [clock if (clock := _clock(steps[step])) is not None else spent[step - 1] for step in evals["step"]]
    return Run(
        rollouts=evals["rollouts"].to_numpy(),
        times=np.array(times),
        scores=evals[metric].to_numpy(),
        lag_mean=float(np.mean([lag.lag_mean for lag in lags])) if lags else 0.0,
        lag_max=max((lag.lag_max for lag in lags), default=0),
    )


def _clock(record: StepRecord) -> float | None:
    return None if record.lag is None else record.lag.virtual_time


def time_of(record: StepRecord, cell: Cell, update: float) -> float:
    """Steps of decoding that a step takes where batches are sampled whole."""
    sampling = 0.0 if record.responses is None else float(record.responses.response_length_max)
    return max(sampling, update) if cell.learner.pipeline.lag else sampling + update


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of some values, and half the width of its t interval."""
    factor = float(stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1))
    return float(np.mean(values)), factor * float(np.std(values, ddof=1)) / sqrt(len(values))


def table(found: Mapping[tuple[int, str], list[Run]], base: float) -> list[str]:
    """The rows of a Markdown table, one for each lag and mode."""
    alternating = [run.end for run in found[0, ""]]
    lines = [
        "| k | mode | score at the end | difference to k = 0 | lag of a token: mean, most | time | collapsed |",
        "|---|---|---|---|---|---|---|",
    ]
    for (lag, mode), runs in found.items():
        ends = [run.end for run in runs]
        mean, half = interval(ends)
        apart, width = interval([end - other for end, other in zip(ends, alternating, strict=True)])
        difference = f"{apart:+.3f} ({apart - width:+.3f} to {apart + width:+.3f})" if lag else "–"
        age = f"{np.mean([run.lag_mean for run in runs]):.1f}, {max(run.lag_max for run in runs):.0f}"
        time = np.mean([run.times[-1] for run in runs])
        collapsed = f"{sum(end < base for end in ends)} of {len(ends)}"
        score = f"{mean:.3f} ± {half:.3f}"
        lines.append(f"| {lag} | {mode or '–'} | {score} | {difference} | {age} | {time:,.0f} | {collapsed} |")
    return lines


def draw(found: Mapping[tuple[int, str], list[Run]], base: float, path: Path, metric: str) -> None:
    """Draw the scores against rollouts and against time, each mode beside k = 0."""
    figure, axes = pyplot().subplots(2, 2, figsize=(8, 5.6), sharey=True, layout="constrained")
    for row, mode in enumerate(MODES):
        shown = [(0, found[0, ""]), *((lag, runs) for (lag, each), runs in found.items() if each == mode)]
        for (lag, runs), colour in zip(shown, COLOURS, strict=False):
            bands = [interval([run.scores[i] for run in runs]) for i in range(EVALUATIONS)]
            mean, half = (np.array(each) for each in zip(*bands, strict=True))
            for column, xs in enumerate((runs[0].rollouts, np.mean([run.times for run in runs], axis=0))):
                axes[row, column].plot(xs, mean, color=colour, label=f"k = {lag}", lw=1.4)
                axes[row, column].fill_between(xs, mean - half, mean + half, color=colour, alpha=0.12, lw=0)
        for column, name in enumerate(("rollouts generated, C", "time (steps of decoding)")):
            axes[row, column].axhline(base, color="#718096", lw=0.8, ls="--")
            axes[row, column].set(xlabel=name, title=f"{mode}" if column == 0 else "")
        axes[row, 0].set(ylabel=metric)
        axes[row, 0].legend(frameon=False, fontsize=8)
    save(figure, path)


def compared(arguments: argparse.Namespace) -> list[str]:
    """Train all cells; returns the rows of the table."""
    # The clock is that of this sampler, which is also the cheaper one for so small a model.
    setup = setup_of(study.unit_of(f"{arguments.set}-0"), resources={"sampler": "transformers"})
    (design,), (problems,) = setup.designs, setup.problems.values()
    check(arguments, design.sweep.problems_per_batch[0])
    preset, (base, _) = design.preset, base_of(problems)
    wanted = {(0, ""): lagged(design, {}, arguments)}
    for mode in MODES:
        clock = {"update_time": arguments.update} if mode == "virtual" else {}
        for lag in arguments.lags:
            wanted[lag, mode] = lagged(design, {"lag": lag, "mode": mode, **clock}, arguments)
    every = [cell for cells in wanted.values() for cell in cells]
    with workers(preset, setup.models) as pool:
        Schedule(every, setup.problems, pool, f"{preset.name}-lag", title="lag").finish()
    metric = preset.evaluation.metric
    found = {key: [run_of(cell, metric, arguments.update) for cell in cells] for key, cells in wanted.items()}
    if arguments.figure is not None:
        draw(found, base, arguments.figure, metric)
    return [f"Base model: {metric} {base:.3f}.", "", *table(found, base)]


def main() -> int:
    """Run the comparison; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--set", default="easy", help="problem set of the panel (default: easy)")
    parser.add_argument("--n", type=int, default=8, help="rollouts per problem (default 8)")
    parser.add_argument("--rollouts", type=int, default=8192, help="budget of a cell (default 8192)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each lag (default 5)")
    parser.add_argument("--rate", type=float, default=1.25e-4, help="learning rate of all (default 1.25e-4)")
    parser.add_argument("--lags", type=int, nargs="+", default=[1, 8, 32], help="lags beside 0 (default 1 8 32)")
    parser.add_argument("--update", type=float, default=12.0, help="time of an update, steps of decoding (default 12)")
    parser.add_argument("--figure", type=Path, help="where to draw, without an ending")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        lines = compared(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
