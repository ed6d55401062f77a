"""Console script ``isocompute-rollout``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from . import tables
from .difficulty import DifficultySplit, split, with_pass_rates
from .errors import RolloutError
from .samplers import KINDS, Sampling, open_sampler
from .sources import load_problems, source_from
from .verifiers import verifier

SOURCE = "a file, a folder, mlflow:EXPERIMENT or runs:/RUN_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A table that a command made.

    Attributes:
        name: Which table it is.
        table: Its rows.
        said: What to say of it.
        metrics: Figures to log with it.
        sources: Tables it was made from: name to where that was.
        params: Settings to log with it.
    """

    name: str
    table: pl.DataFrame
    said: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; an error a user can act on is one line and exit code 2."""
    arguments = _parser().parse_args(argv)
    commands = {
        "problems": _problems, "generate": _generate, "score": _score, "difficulty": _difficulty, "split": _split,
    }  # fmt: skip
    try:
        if arguments.log:
            # A store that does not answer is better known before the work than after it.
            from . import tracking

            tracking.ensure_store()
        made = commands[arguments.command](arguments)
        tables.write(made.table, made.name, arguments.out)
        print(f"{made.said}, in {arguments.out}")
        if arguments.log:
            print(f"logged as runs:/{_log(arguments, made)}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _log(arguments: argparse.Namespace, made: Made) -> str:
    from . import tracking

    files = {name: Path(source) for name, source in made.sources.items() if Path(source).is_file()}
    return tracking.log_artifacts(
        arguments.log,
        {made.name: arguments.out},
        run_name=arguments.command,
        params={**made.params, **{f"source_{name}": source for name, source in made.sources.items()}},
        metrics=made.metrics,
        inputs=files,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isocompute-rollout", description="What does the policy answer, and is it right?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("problems", help="make a problems table from a YAML or JSON description")
    one.add_argument("config", type=Path)
    two = commands.add_parser("generate", help="answer problems with a model")
    two.add_argument(
        "--model", required=True,
        help="folder or name of a model in the Hugging Face format; with --sampler openai, of its tokenizer",
    )  # fmt: skip
    two.add_argument("--problems", required=True, help=SOURCE)
    two.add_argument("--samples", type=int, default=16, help="responses per problem (default 16)")
    two.add_argument("--sampler", default="vllm", choices=KINDS)
    two.add_argument("--temperature", type=float, default=1.0)
    two.add_argument("--max-new-tokens", type=int, default=16)
    two.add_argument("--max-prompt-tokens", type=int, default=48)
    two.add_argument("--seed", type=int, default=0)
    server = two.add_argument_group("with --sampler openai", "The API key, if any, is read from OPENAI_API_KEY.")
    server.add_argument("--base-url", help="address of the server, such as http://localhost:8000/v1")
    server.add_argument("--served-model", help="the model's name there, where it is another")
    server.add_argument("--concurrency", type=int, help="requests under way at a time (default 64)")
    three = commands.add_parser("score", help="verify rollouts again")
    three.add_argument("rollouts", help=SOURCE)
    three.add_argument("--problems", required=True, help=SOURCE)
    three.add_argument("--model", required=True, help="whose tokenizer reads the responses")
    four = commands.add_parser("difficulty", help="add pass rates to problems")
    four.add_argument("rollouts", help=SOURCE)
    four.add_argument("--problems", required=True, help=SOURCE)
    five = commands.add_parser("split", help="choose the problems of an interval of pass rates")
    five.add_argument("problems", help=SOURCE)
    five.add_argument("--interval", type=float, nargs=2, required=True, metavar=("LOWEST", "HIGHEST"))
    five.add_argument("--train", type=int, required=True, help="training problems")
    five.add_argument("--validation", type=int, default=300, help="validation problems (default 300)")
    for command in (one, two, three, four, five):
        command.add_argument("--out", required=True, type=Path, help="the .parquet or .csv file to write")
        command.add_argument("--log", metavar="EXPERIMENT", help="also log the table to MLflow (MLFLOW_TRACKING_URI)")
    return parser


def _problems(arguments: argparse.Namespace) -> Made:
    import yaml

    try:
        settings = yaml.safe_load(arguments.config.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise RolloutError(f"{arguments.config}: cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(settings, dict):
        raise RolloutError(f"{arguments.config}: has to be a mapping with the key kind")
    table = load_problems(source_from(settings))
    return Made(name="problems", table=table, said=f"{len(table):,} problems", params=settings)


def _generate(arguments: argparse.Namespace) -> Made:
    problems = tables.read(arguments.problems, "problems")
    sampling = Sampling(
        temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens,
        max_prompt_tokens=arguments.max_prompt_tokens,
    )  # fmt: skip
    if arguments.samples < 1:
        raise RolloutError(f"--samples is {arguments.samples}; it has to be at least 1")
    sampler = open_sampler(arguments.sampler, arguments.model, sampling, **_server(arguments))
    with contextlib.closing(sampler):
        rollouts = sampler.sample(
            problems, samples=arguments.samples, seed=arguments.seed, step=0, phase="eval", run_id="generate"
        )
    params = {
        name: getattr(arguments, name)
        for name in ("model", "sampler", "samples", "temperature", "max_new_tokens", "seed")
    }
    return _rewarded(rollouts, sources={"problems": arguments.problems}, params=params)


def _server(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {
        name: getattr(arguments, name)
        for name in ("base_url", "served_model", "concurrency")
        if getattr(arguments, name) is not None
    }
    if arguments.sampler != "openai":
        if given:
            raise RolloutError(f"--{next(iter(given)).replace('_', '-')} goes with --sampler openai")
        return {}
    if "base_url" not in given:
        raise RolloutError("--sampler openai needs --base-url, such as http://localhost:8000/v1")
    return {**given, "api_key": os.environ.get("OPENAI_API_KEY")}


def _score(arguments: argparse.Namespace) -> Made:
    from .samplers.base import load_tokenizer

    rollouts = tables.read(arguments.rollouts, "rollouts")
    known = tables.read(arguments.problems, "problems").select("problem_id", "answer", "verifier")
    joined = rollouts.join(known, on="problem_id", how="left", maintain_order="left")
    lost = joined.filter(pl.col("verifier").is_null())["problem_id"].unique()
    if len(lost):
        raise RolloutError(f"{arguments.problems}: lacks {len(lost)} problems answered, such as {lost[0]}")
    tokenizer = load_tokenizer(arguments.model)
    texts = tokenizer.batch_decode(joined["response_ids"].to_list(), skip_special_tokens=True)
    columns = (joined[name].to_list() for name in ("answer", "verifier", "finish_reason"))
    rewards = [
        float(reason != "aborted" and verifier(rule)(text, answer))
        for text, answer, rule, reason in zip(texts, *columns, strict=True)
    ]
    scored = rollouts.with_columns(reward=pl.Series(rewards, dtype=pl.Float32))
    return _rewarded(scored, sources={"rollouts": arguments.rollouts, "problems": arguments.problems})


def _rewarded(rollouts: pl.DataFrame, **other: Any) -> Made:
    mean = float(rollouts["reward"].to_numpy().mean())
    return Made(
        name="rollouts", table=rollouts, said=f"{len(rollouts):,} rollouts, mean reward {mean:.3f}",
        metrics={"mean_reward": mean}, **other,
    )  # fmt: skip


def _difficulty(arguments: argparse.Namespace) -> Made:
    problems = tables.read(arguments.problems, "problems")
    measured = with_pass_rates(problems, tables.read(arguments.rollouts, "rollouts"))
    if measured.is_empty():
        raise RolloutError(f"{arguments.rollouts}: answers none of the problems of {arguments.problems}")
    mean = float(measured["pass_rate"].to_numpy().mean())
    return Made(
        name="problems", table=measured, said=f"{len(measured):,} problems, mean pass rate {mean:.3f}",
        metrics={"mean_pass_rate": mean},
        sources={"rollouts": arguments.rollouts, "problems": arguments.problems},
    )  # fmt: skip


def _split(arguments: argparse.Namespace) -> Made:
    problems = tables.read(arguments.problems, "problems")
    if "pass_rate" not in problems.columns:
        raise RolloutError(f"{arguments.problems}: has no pass rates; add them with `difficulty` first")
    lowest, highest = arguments.interval
    chosen = split(
        problems,
        DifficultySplit(
            name=arguments.out.stem, lowest=lowest, highest=highest,
            train=arguments.train, validation=arguments.validation,
        ),
    )  # fmt: skip
    return Made(
        name="problems", table=chosen, said=f"{len(chosen):,} problems", sources={"problems": arguments.problems},
        params={"lowest": lowest, "highest": highest, "train": arguments.train, "validation": arguments.validation},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
