"""How many groups of a base model's responses have a signal, by n: ``python -m experiments.studies.panel probe``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl
from isocompute.rollout import successes
from isocompute.rollout.scoring.evaluation import best_at_k, worst_at_k

from ...errors import ExperimentError
from ...running.cells import WorkerConfig
from ...settings import Preset

LEAST_ROLLOUTS, SHARE = 8192, 0.01
RESPONSES = 32
"""Of each problem where there are problems enough."""
LEAST_PROBLEMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Result of a probe of one base model on one problem set.

    Attributes:
        groups_with_signal: For each n, the share of groups whose rewards are not all equal.
    """

    problems: int
    responses: int
    pass_rate: float
    groups_with_signal: Mapping[int, float]

    def lines(self) -> Iterator[str]:
        """The lines that are printed."""
        yield f"{self.problems * self.responses:,} rollouts ({self.problems} problems × {self.responses}), no training"
        signal = ", ".join(f"{share:.0%} at n = {n}" for n, share in self.groups_with_signal.items())
        yield f"  pass rate {self.pass_rate:.3f}; groups with signal: {signal}"


def rollouts_of(budget: int) -> int:
    """Rollouts of a probe for a budget: 1 % of it, and 8,192 at least."""
    return max(LEAST_ROLLOUTS, round(SHARE * budget))


def probe(
    preset: Preset, problem_set: str, model: tuple[str, str], problems: pl.DataFrame, *, rollouts: int, seed: int = 0
) -> Probe:
    """Answer training problems with a base model.

    Args:
        seed: Of the responses, and of the choice of problems where not all are answered.
    """
    from ...running.worker import Worker

    sweep = preset.sweep_of(problem_set)
    trained = problems.filter(pl.col("split") == "train").sort("problem_id")
    count = min(len(trained), rollouts // RESPONSES)
    responses = rollouts // max(count, 1)
    if count < LEAST_PROBLEMS:
        raise ExperimentError(
            f"a probe needs {LEAST_PROBLEMS} training problems with {RESPONSES} responses each; {problem_set} has "
            f"{len(trained)}, and {rollouts:,} rollouts are enough for {rollouts // RESPONSES}"
        )
    place, base = model
    worker = Worker(WorkerConfig.of(preset, {base: place}))
    chosen = trained.sample(count, seed=seed).sort("problem_id")
    answered = worker.sample(chosen, samples=responses, seed=seed, phase="probe")
    counted = successes(answered)
    right, of = counted["successes"].to_numpy(), counted["samples"].to_numpy()
    ns = [n for n in sorted({*sweep.rollouts_per_problem}) if 1 < n <= of.min()]
    return Probe(
        problems=count,
        responses=responses,
        pass_rate=float((right / of).mean()),
        groups_with_signal={n: float((best_at_k(right, of, n) - worst_at_k(right, of, n)).mean()) for n in ns},
    )
