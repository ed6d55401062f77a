"""``check``: compare a sampler's log-probabilities with those of the model it should hold."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..config import CHECKS, TOLERANCES, LearnerConfig, SyncConfig
from ..errors import SyncError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    check = commands.add_parser(
        "check",
        help="compare a sampler's log-probabilities with those of the model it should hold",
        epilog="example: isocompute-learner check Qwen/Qwen2.5-0.5B rollouts.parquet --dtype bfloat16",
    )
    check.add_argument("model", help="folder or name of a model in the Hugging Face format")
    check.add_argument("rollouts", help="a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    check.add_argument("--temperature", type=float, default=1.0, help="of the sampling (default: 1)")
    check.add_argument(
        "--dtype", choices=list(TOLERANCES), default="float32", help="type of the sampler's weights (default: float32)"
    )
    check.add_argument(
        "--tolerance", type=float, help="largest difference of a token, nats; where no figure is given, --dtype's"
    )
    check.add_argument("--mean", type=float, help="largest mean |difference|, nats per token")
    check.add_argument("--k3", type=float, help="largest estimate of KL(sampler || model), nats per token")
    check.add_argument("--quantile", type=float, help="largest 0.99 quantile of |difference|, nats")
    check.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print how much the log-probabilities differ.

    Raises:
        SyncError: A figure is above its tolerance.
        IsoComputeError: The model cannot be loaded, or the rollouts cannot be read or do not fit it.
    """
    import polars as pl

    from ..contract import tables
    from ..updates.learner import Learner
    from ..updates.sync import described, exceeded

    given = (arguments.tolerance, arguments.mean, arguments.k3, arguments.quantile)
    config = LearnerConfig(
        learning_rate=1.0,
        temperature=arguments.temperature,
        sampler_dtype=arguments.dtype,
        sync=SyncConfig(**dict(zip(CHECKS, given, strict=True))),
    )
    rollouts = tables.read(arguments.rollouts, "rollouts").filter(pl.col("finish_reason") != "aborted")
    found = Learner(arguments.model, config).agreement(rollouts)
    if exceeded(found, config):
        raise SyncError(
            f"{arguments.rollouts}: the log-probabilities differ by {described(found, config)} from those of "
            f"{arguments.model} at temperature {config.temperature:g}: other weights sampled these responses, or at "
            "another temperature"
        )
    yield (
        f"the log-probabilities agree to {found.maximum:.2g} nats (mean {found.mean:.2g}, 0.99 quantile "
        f"{found.quantile:.2g}, k3 {found.k3:.2g})"
    )
