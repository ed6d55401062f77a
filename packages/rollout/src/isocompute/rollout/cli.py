"""Console script ``isocompute-rollout``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from . import tables
from .difficulty import DifficultySplit, split, with_pass_rates
from .errors import RolloutError
from .samplers import KINDS, Sampling, open_sampler
from .sources import load_problems, source_from
from .verifiers import verifier


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; an error a user can act on is one line and exit code 2."""
    arguments = _parser().parse_args(argv)
    try:
        commands = {
            "problems": _problems, "generate": _generate, "score": _score, "difficulty": _difficulty,
            "split": _split,
        }  # fmt: skip
        commands[arguments.command](arguments)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isocompute-rollout", description="What does the policy answer, and is it right?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("problems", help="make a problems table from a YAML or JSON description")
    one.add_argument("config", type=Path)
    two = commands.add_parser("generate", help="answer problems with a model")
    two.add_argument("--model", required=True, help="folder or name of a model in the Hugging Face format")
    two.add_argument("--problems", required=True)
    two.add_argument("--samples", type=int, default=16)
    two.add_argument("--sampler", default="vllm", choices=KINDS)
    two.add_argument("--temperature", type=float, default=1.0)
    two.add_argument("--max-new-tokens", type=int, default=16)
    two.add_argument("--max-prompt-tokens", type=int, default=48)
    two.add_argument("--seed", type=int, default=0)
    two.add_argument("--log", metavar="EXPERIMENT", help="also log the rollouts to MLflow")
    three = commands.add_parser("score", help="verify rollouts again")
    three.add_argument("rollouts", help="a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    three.add_argument("--problems", required=True)
    three.add_argument("--model", required=True, help="whose tokenizer reads the responses")
    four = commands.add_parser("difficulty", help="add pass rates to problems")
    four.add_argument("rollouts", help="a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID")
    four.add_argument("--problems", required=True)
    five = commands.add_parser("split", help="choose the problems of an interval of pass rates")
    five.add_argument("problems")
    five.add_argument("--interval", type=float, nargs=2, required=True, metavar=("LOWEST", "HIGHEST"))
    five.add_argument("--train", type=int, required=True)
    five.add_argument("--validation", type=int, default=300)
    for command in (one, two, three, four, five):
        command.add_argument("--out", required=True, type=Path)
    return parser


def _problems(arguments: argparse.Namespace) -> None:
    import yaml

    try:
        settings = yaml.safe_load(arguments.config.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise RolloutError(f"{arguments.config}: cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(settings, dict):
        raise RolloutError(f"{arguments.config}: has to be a mapping with the key kind")
    table = load_problems(source_from(settings))
    print(f"{len(table):,} problems in {tables.write(table, 'problems', arguments.out)}")


def _generate(arguments: argparse.Namespace) -> None:
    problems = tables.read(arguments.problems, "problems")
    sampling = Sampling(
        temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens,
        max_prompt_tokens=arguments.max_prompt_tokens,
    )  # fmt: skip
    sampler = open_sampler(arguments.sampler, arguments.model, sampling)
    rollouts = sampler.sample(
        problems, samples=arguments.samples, seed=arguments.seed, step=0, phase="eval", run_id="generate"
    )
    tables.write(rollouts, "rollouts", arguments.out)
    print(f"{len(rollouts):,} rollouts, mean reward {rollouts['reward'].to_numpy().mean():.3f}, in {arguments.out}")
    if arguments.log:
        from . import tracking

        run = tracking.log_artifacts(
            arguments.log, {"rollouts": arguments.out}, run_name="generate",
            params={"samples": arguments.samples, "temperature": arguments.temperature},
        )  # fmt: skip
        print(f"logged as runs:/{run}")


def _score(arguments: argparse.Namespace) -> None:
    from .samplers.base import load_tokenizer

    rollouts = tables.read(arguments.rollouts, "rollouts")
    known = tables.read(arguments.problems, "problems").select("problem_id", "answer", "verifier")
    joined = rollouts.join(known, on="problem_id", how="left", maintain_order="left")
    lost = joined.filter(pl.col("verifier").is_null())["problem_id"].unique()
    if len(lost):
        raise RolloutError(f"{arguments.problems}: lacks {len(lost)} problems answered, such as {lost[0]}")
    tokenizer = load_tokenizer(arguments.model)
    texts = tokenizer.batch_decode(joined["response_ids"].to_list(), skip_special_tokens=True)
    answers = zip(texts, joined["answer"].to_list(), joined["verifier"].to_list(), strict=True)
    rewards = [float(verifier(rule)(text, answer)) for text, answer, rule in answers]
    scored = rollouts.with_columns(reward=pl.Series(rewards, dtype=pl.Float32))
    tables.write(scored, "rollouts", arguments.out)
    print(f"{len(scored):,} rollouts, mean reward {scored['reward'].to_numpy().mean():.3f}, in {arguments.out}")


def _difficulty(arguments: argparse.Namespace) -> None:
    problems = tables.read(arguments.problems, "problems")
    measured = with_pass_rates(problems, tables.read(arguments.rollouts, "rollouts"))
    tables.write(measured, "problems", arguments.out)
    print(
        f"{len(measured):,} problems, mean pass rate {measured['pass_rate'].to_numpy().mean():.3f}, in {arguments.out}"
    )


def _split(arguments: argparse.Namespace) -> None:
    problems = tables.read(arguments.problems, "problems")
    if "pass_rate" not in problems.columns:
        raise RolloutError(f"{arguments.problems}: has no pass rates; add them with `difficulty` first")
    wanted = DifficultySplit(
        name=arguments.out.stem, lowest=arguments.interval[0], highest=arguments.interval[1],
        train=arguments.train, validation=arguments.validation,
    )  # fmt: skip
    chosen = split(problems, wanted)
    print(f"{len(chosen):,} problems in {tables.write(chosen, 'problems', arguments.out)}")


if __name__ == "__main__":
    sys.exit(main())
