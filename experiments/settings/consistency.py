"""What is refused before a stage begins, since it could only fail, or mislead, later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from isocompute.rollout import HubSource

from ..errors import ExperimentError
from .model import Preset, SweepConfig


def check(preset: Preset) -> None:
    """Refuse settings that contradict each other.

    Raises:
        ExperimentError: The first contradiction, and what would be right.
    """
    for source in preset.problems:
        if isinstance(source, HubSource) and not Path(source.dataset).is_dir() and not _is_commit(source.revision):
            raise ExperimentError(
                f"{preset.name}.problems: the dataset {source.dataset} has the revision {source.revision!r}: pin a "
                "commit (40 hexadecimal digits), since a branch or a tag moves"
            )
    if preset.difficulty.samples < 1 or preset.difficulty.fresh_samples < 1:
        raise ExperimentError(f"{preset.name}.difficulty: samples and fresh_samples must be at least 1")
    if preset.sampling.top_p != 1.0:
        raise ExperimentError(
            f"{preset.name}.sampling.top_p is {preset.sampling.top_p:g}: a policy is trained on what it samples from "
            "the whole distribution, with top_p 1.0"
        )
    for part, held in (("sweep", preset.sweep), ("prescribe", preset.prescribe)):
        for name in held:
            if name not in preset.difficulty.sets:
                known = ", ".join(preset.difficulty.sets)
                raise ExperimentError(f"{preset.name}.{part}.{name}: no problem set of difficulty.sets ({known})")
    for name, sweep in preset.sweep.items():
        _sweep(preset, name, sweep)
        _pilot(preset, name, sweep)
        _prescribable(preset, name, sweep)


def _sweep(preset: Preset, name: str, sweep: SweepConfig) -> None:
    where = f"{preset.name}.sweep.{name}"
    for setting in ("rollouts_per_problem", "problems_per_batch", "seeds"):
        _distinct(getattr(sweep, setting), f"{where}.{setting}")
    if not sweep.grid():
        raise ExperimentError(
            f"{where}: no pair has B_p · n of max_batch_rollouts ({sweep.max_batch_rollouts}) or less"
        )
    for n, size in sweep.grid():
        _batch(preset, name, n, size, where)
        _fits(sweep.rollouts, sweep.evaluate_every, n * size, where)


def _pilot(preset: Preset, name: str, sweep: SweepConfig) -> None:
    pilot, where = sweep.pilot, f"{preset.name}.sweep.{name}.pilot"
    _distinct(pilot.learning_rates, f"{where}.learning_rates")
    _batch(preset, name, pilot.rollouts_per_problem, pilot.problems_per_batch, where)
    _fits(pilot.rollouts, pilot.evaluate_every, pilot.rollouts_per_problem * pilot.problems_per_batch, where)
    # Responses that chose the learning rate must not measure it.
    if pilot.seed in sweep.seeds:
        raise ExperimentError(
            f"{where}.seed is {pilot.seed}, which is a seed of the sweep: what selects never measures"
        )


def _prescribable(preset: Preset, name: str, sweep: SweepConfig) -> None:
    """Refuse a test of the prescription that would stop at its end, or that reuses what it was chosen by."""
    if name not in preset.prescribe:
        raise ExperimentError(f"{preset.name}.prescribe has no {name}, which {preset.name}.sweep has")
    test, where = preset.prescribe[name], f"{preset.name}.prescribe.{name}"
    for n in {*test.baselines, *sweep.rollouts_per_problem}:
        for size in sweep.problems_per_batch:
            if sweep.max_batch_rollouts is None or n * size <= sweep.max_batch_rollouts:
                _fits(test.rollouts, test.evaluate_every, n * size, where)
    if test.rollouts <= sweep.rollouts:
        raise ExperimentError(
            f"{where}: rollouts is {test.rollouts}; a prescription is tested above the sweep's {sweep.rollouts}"
        )
    if test.seeds and len(test.seeds) < 2:
        raise ExperimentError(f"{where}: one seed gives no interval: give two or more, or none to leave the test out")
    used = sorted(set(test.seeds) & {*sweep.seeds, sweep.pilot.seed})
    if used:
        raise ExperimentError(
            f"{where}.seeds holds {used[0]}, which chose the prescription: what selects never measures"
        )


def _batch(preset: Preset, name: str, n: int, size: int, where: str) -> None:
    if n < 2:
        raise ExperimentError(f"{where}: rollouts_per_problem {n}: a group baseline needs 2 or more")
    most = preset.difficulty.sets[name].train
    if not 1 <= size <= most:
        raise ExperimentError(f"{where}: problems_per_batch {size} must lie between 1 and the {most} training problems")


def _fits(rollouts: int, evaluate_every: int, batch: int, where: str) -> None:
    if batch > rollouts:
        raise ExperimentError(
            f"{where}: one step is {batch} rollouts, and the budget {rollouts}: no step could be taken"
        )
    if evaluate_every < 1 or evaluate_every % batch or rollouts % evaluate_every:
        raise ExperimentError(
            f"{where}: evaluate_every ({evaluate_every}) must be a multiple of every batch ({batch}) and divide "
            f"rollouts ({rollouts})"
        )


def _distinct(values: Iterable[float], where: str) -> None:
    held = list(values)
    if not held:
        raise ExperimentError(f"{where} is empty")
    if len(set(held)) < len(held):
        raise ExperimentError(f"{where} holds a value twice")


def _is_commit(revision: str) -> bool:
    return re.fullmatch("[0-9a-f]{40}", revision) is not None
