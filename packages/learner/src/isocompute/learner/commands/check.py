"""``check``: compare a sampler's log-probabilities with those of the model it should hold."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..config import LearnerConfig
from ..errors import SyncError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    check = commands.add_parser(
        "check", help="compare a sampler's log-probabilities with those of the model it should hold"
    )
    check.add_argument("model", help="folder or name of a model in the Hugging Face format")
    check.add_argument("rollouts", help="a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    check.add_argument("--temperature", type=float, default=1.0)
    check.add_argument("--tolerance", type=float, default=1e-4, help="nats; 1e-4 fits float32")
    check.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the largest difference.

    Raises:
        SyncError: It is above the tolerance.
        IsoComputeError: The model cannot be loaded, or the rollouts cannot be read or do not fit it.
    """
    import polars as pl

    from ..contract import tables
    from ..learner import Learner

    config = LearnerConfig(learning_rate=1.0, temperature=arguments.temperature, sync_tolerance=arguments.tolerance)
    rollouts = tables.read(arguments.rollouts, "rollouts").filter(pl.col("finish_reason") != "aborted")
    error = Learner(arguments.model, config).sync_error(rollouts)
    if not error <= config.sync_tolerance:
        raise SyncError(
            f"{arguments.rollouts}: the log-probabilities differ by up to {error:.2g} nats from those of "
            f"{arguments.model} at temperature {config.temperature:g} (tolerance {config.sync_tolerance:g}): "
            "other weights sampled these responses, or at another temperature"
        )
    yield f"the log-probabilities agree to {error:.2g} nats"
