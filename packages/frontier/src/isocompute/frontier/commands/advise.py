"""``advise``: which n to start with before any training."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from ..answers.advice import FLAGS, Question, advise, lines
from ..answers.signal import Histogram, Spread, of_mean, of_table
from ..contract.command_line import new_file
from ..data.sweeps import FILE, read_sweeps
from ..errors import FrontierError
from .arguments import positive, write_json

EXAMPLES = """GPU-hours and tokens: `isocompute-budget show` sums up what a run generated and its device-hours, and
`isocompute-budget plan --cells --model-parameters 7B --response-tokens 1000 --device h100` estimates both.
example: isocompute-frontier advise --budget 1M --pass-rate 0.3 --problems 8000 --max-batch 2048
example: isocompute-frontier advise --budget 500k --pass-rate 0:120,0.25:300,0.5:280,1:90 --metric best@4
example: isocompute-frontier advise --budget 64 --unit gpu_hours --rollouts-per-gpu-hour 4k --pass-rate 0.3"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "advise",
        help="which n to begin with, from what other sweeps found",
        description="Say which n to begin with before anything was trained, by what other sweeps found, and what to "
        "measure.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--budget", type=positive, required=True, help="how much may be spent, in --unit")
    units = ["rollouts", "tokens", "gpu_hours"]
    parser.add_argument("--unit", choices=units, default="rollouts", help="of the budget (default: %(default)s)")
    parser.add_argument("--tokens-per-rollout", type=positive, metavar="T", help="for --unit tokens")
    parser.add_argument(
        "--rollouts-per-gpu-hour", type=positive, metavar="R", help="for --unit gpu_hours, and for costs"
    )
    difficulty = parser.add_mutually_exclusive_group(required=True)
    difficulty.add_argument(
        "--pass-rate", type=_spread, metavar="P", help="of the base model: their mean, or a histogram RATE:PROBLEMS,…"
    )
    difficulty.add_argument("--pass-rates", metavar="SOURCE", help="pass_rates of the base model, as measured")
    parser.add_argument("--problems", type=positive, metavar="D", help="training problems")
    parser.add_argument("--model-size", type=positive, metavar="N", help="parameters, such as 7B")
    parser.add_argument("--max-batch", type=positive, metavar="B_max", help="most rollouts of one update")
    parser.add_argument("--metric", type=_metric, default="avg", help="avg, best@k or worst@k (default: %(default)s)")
    parser.add_argument("--anchor", type=positive, metavar="RATE", help="a learning rate that worked")
    parser.add_argument("--anchor-batch", type=positive, metavar="B", help="the batch, in rollouts, at which it did")
    parser.add_argument(
        "--trainer", choices=[*FLAGS], default="trl", help="whose flags are printed (default: %(default)s)"
    )
    parser.add_argument("--also", type=Path, metavar="FILE", help="further sweeps, a CSV file as in docs/sweeps.md")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write all of it here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print what to start with, and the source of each part."""
    if (arguments.anchor is None) != (arguments.anchor_batch is None):
        raise FrontierError("a rate that worked did so at a batch: give --anchor and --anchor-batch together")
    sweeps = read_sweeps(FILE) + (read_sweeps(arguments.also) if arguments.also else ())
    spread = of_table(arguments.pass_rates) if arguments.pass_rates else arguments.pass_rate
    problems = arguments.problems or (len(spread.answers) if arguments.pass_rates else None)
    question = Question(
        budget=_rollouts(arguments),
        spread=spread,
        problems=None if problems is None else int(problems),
        parameters=arguments.model_size,
        max_batch=None if arguments.max_batch is None else int(arguments.max_batch),
        metric=arguments.metric,
        anchor=None if arguments.anchor is None else (arguments.anchor, arguments.anchor_batch),
    )
    advice = advise(question, sweeps)
    yield from lines(advice, arguments.trainer, cost=arguments.rollouts_per_gpu_hour)
    if arguments.json:
        write_json(advice.as_dict(), arguments.json)


def _rollouts(arguments: argparse.Namespace) -> float:
    """The budget in rollouts."""
    budget = float(arguments.budget)
    if arguments.unit == "tokens":
        if arguments.tokens_per_rollout is None:
            raise FrontierError(
                "a budget in tokens needs --tokens-per-rollout: prompt and response, as `isocompute-budget show` sums "
                "them up"
            )
        return budget / float(arguments.tokens_per_rollout)
    if arguments.unit == "gpu_hours":
        if arguments.rollouts_per_gpu_hour is None:
            raise FrontierError(
                "a budget in GPU-hours needs --rollouts-per-gpu-hour: as `isocompute-budget show` measured, or `plan "
                "--cells --model-parameters 7B --response-tokens 1000 --device h100` estimates"
            )
        return budget * float(arguments.rollouts_per_gpu_hour)
    return budget


def _spread(text: str) -> Spread:
    """A pass rate, or a histogram of pass rates such as 0.1:300,0.5:500."""
    try:
        if ":" not in text:
            mean = float(text)
            if 0 < mean < 1:
                return of_mean(mean)
        else:
            pairs = [pair.split(":") for pair in text.split(",")]
            counts = {float(rate): float(count) for rate, count in pairs}
            spread = Histogram(counts=counts, said="averaged over the histogram")
            whole = len(counts) == len(pairs) and all(0 <= p <= 1 and 0 < c < float("inf") for p, c in counts.items())
            if whole and 0 < spread.mean < 1:
                return spread
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a pass rate between 0 and 1, such as 0.3, nor a histogram RATE:PROBLEMS, such as "
        "0:50,0.25:300,0.5:200"
    )


def _metric(text: str) -> str:
    """avg, best or worst, with or without @k."""
    found = re.fullmatch(r"(avg|best|worst)(?:(?:@|_at_)(?:k|\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not avg, best@k or worst@k")
    return found[1]
