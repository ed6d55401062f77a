"""``prescribe`` and ``next``: what a saved fit says about a budget, and what to run before deciding."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..answers.next import plan, plan_document, plan_lines
from ..answers.steps import three_steps
from ..contract.command_line import new_file
from ..notebook import load_fitted
from .arguments import positive, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    example = (
        "example: isocompute-frontier prescribe fitted --budget 1M\n"
        "example: isocompute-frontier prescribe fitted --budget 1M --three-steps"
    )
    parser = commands.add_parser("prescribe", help="split a budget", epilog=example)
    parser.add_argument("folder", type=Path, help="what `fit --out` wrote")
    parser.add_argument("--budget", type=positive, required=True, help="how much may be spent, in --unit")
    said = "what it is counted in (default: %(default)s)"
    parser.add_argument("--unit", choices=["rollouts", "tokens", "gpu_hours"], default="rollouts", help=said)
    parser.add_argument(
        "--tokens-per-rollout",
        type=positive,
        help="mean response tokens, for --unit tokens where the fit does not know them",
    )
    said = "the Playbook's Appendix C instead: n*, the smallest stable B_p, the rest to M"
    parser.add_argument("--three-steps", action="store_true", help=said)
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write the answer here")
    parser.set_defaults(run=prescribe)
    example = "example: isocompute-frontier next fitted --budget 1M --tell 8 32"
    then = commands.add_parser("next", help="what to run next, by what a decision would gain from it", epilog=example)
    then.add_argument("folder", type=Path, help="what `fit --out` wrote")
    then.add_argument("--budget", type=positive, help="of the decision; by default the largest that was measured")
    then.add_argument("--most", type=int, default=5, help="actions printed (default: %(default)s)")
    then.add_argument(
        "--tell", type=int, nargs=2, metavar="N", help="how many seeds tell these two n apart (default: the first two)"
    )
    then.add_argument("--price", type=positive, help="of a GPU-hour, for a fit with --timings")
    then.add_argument("--json", type=new_file, metavar="FILE", help="also write the actions here")
    then.set_defaults(run=what_next)


def prescribe(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the answer at a budget."""
    fitted = load_fitted(arguments.folder)
    budget, unit = arguments.budget, arguments.unit
    if arguments.tokens_per_rollout is not None:
        budget, unit = budget / arguments.tokens_per_rollout, "rollouts"
    answer = fitted.answer(budget, unit=unit)
    steps = three_steps(fitted, budget, unit=unit) if arguments.three_steps else None
    yield from (steps or answer).lines()
    if arguments.json:
        write_json(answer.as_dict() | ({"three_steps": steps.as_dict()} if steps else {}), arguments.json)


def what_next(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the actions, the most useful per unit of compute first."""
    fitted = load_fitted(arguments.folder)
    found = plan(fitted, arguments.budget or fitted.largest, tell=arguments.tell)
    yield from plan_lines(found, fitted.unit, metric=fitted.metric, most=arguments.most, price=arguments.price)
    if arguments.json:
        write_json(plan_document(found, fitted.unit), arguments.json)
