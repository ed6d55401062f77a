"""Console script ``isocompute-learner``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import polars as pl

from .config import LearnerConfig
from .contract import tables
from .errors import LearnerError
from .learner import Learner


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="isocompute-learner", description="What does the policy learn from its rollouts?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check", help="compare a sampler's log-probabilities with those of the model it should hold"
    )
    check.add_argument("model", help="folder or name of a model in the Hugging Face format")
    check.add_argument("rollouts", help="a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    check.add_argument("--temperature", type=float, default=1.0)
    check.add_argument("--tolerance", type=float, default=1e-4, help="nats; 1e-4 fits float32")
    arguments = parser.parse_args(argv)
    try:
        config = LearnerConfig(learning_rate=1.0, temperature=arguments.temperature, sync_tolerance=arguments.tolerance)
        rollouts = tables.read(arguments.rollouts, "rollouts").filter(pl.col("finish_reason") != "aborted")
        error = Learner(arguments.model, config).sync_error(rollouts)
        if not error <= config.sync_tolerance:
            raise LearnerError(
                f"{arguments.rollouts}: the log-probabilities differ by up to {error:.2g} nats from those of "
                f"{arguments.model} at temperature {config.temperature:g} (tolerance {config.sync_tolerance:g}): "
                "other weights sampled these responses, or at another temperature"
            )
    except ValueError as error_:
        print(f"error: {error_}", file=sys.stderr)
        return 2
    print(f"the log-probabilities agree to {error:.2g} nats")
    return 0


if __name__ == "__main__":
    sys.exit(main())
