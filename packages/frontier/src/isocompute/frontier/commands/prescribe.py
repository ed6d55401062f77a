"""``prescribe``: split a budget."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..answers.fitted import load_fitted, option_row
from .arguments import positive, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("prescribe", help="split a budget")
    parser.add_argument("folder", type=Path, help="what `fit --out` wrote")
    parser.add_argument("--budget", type=positive, required=True, help="how much may be spent, in --unit")
    parser.add_argument("--unit", choices=["rollouts", "tokens"], default="rollouts")
    parser.add_argument(
        "--tokens-per-rollout",
        type=positive,
        help="mean response tokens, for --unit tokens where the fit does not know them",
    )
    parser.add_argument("--json", type=Path, help="also write the allocation here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the answer at a budget.

    Raises:
        FrontierError: The budget is in tokens of a fit that does not know them, or nothing can be said of it.
    """
    fitted = load_fitted(arguments.folder)
    budget, unit = arguments.budget, arguments.unit
    if arguments.tokens_per_rollout is not None:
        budget, unit = budget / arguments.tokens_per_rollout, "rollouts"
    answer = fitted.answer(budget, unit=unit)
    yield from answer.lines()
    chosen = answer.decision.chosen
    write_json(
        {
            "budget": budget,
            "unit": unit,
            "rollouts_per_problem": chosen.cell.rollouts_per_problem,
            "problems_per_batch": chosen.cell.problems_per_batch,
            "learning_rate": chosen.cell.learning_rate,
            "update_steps": int(answer.compute / chosen.cell.batch_rollouts) if fitted.unit == "rollouts" else None,
            "options": [option_row(o) for o in answer.decision.options],
        },
        arguments.json,
    )
