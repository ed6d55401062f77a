"""Console script ``isocompute-rollout``."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from .contract import tables
from .difficulty import DifficultySplit, split, with_pass_rates
from .errors import RolloutError
from .samplers import KINDS, Sampling, open_sampler
from .sources import load_checked, source_from
from .verifiers import verifier

PHASES = ("difficulty", "baseline", "eval")
NAMED = 3
"""Dropped problems that are named."""
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
            from .contract import tracking

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
    from .contract import tracking

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
    two.add_argument(
        "--phase", default="difficulty", choices=PHASES,
        help="what the responses are for: to select problems (difficulty, the default), to measure those selected "
        "(baseline) or to evaluate; each has seeds of its own",
    )  # fmt: skip
    two.add_argument("--temperature", type=float, default=1.0)
    two.add_argument("--top-p", type=float, default=1.0, help="share of the probability sampled from (default 1)")
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
    four.add_argument("--fresh", action="store_true", help="responses that selected nothing: add fresh pass rates")
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
        raise RolloutError(f"{arguments.config}: must be a mapping with the key kind")
    loaded = load_checked(source_from(settings))
    said = f"{len(loaded.problems):,} problems"
    if len(loaded.dropped):
        some = ", ".join(
            f"{row['problem_id']} ({row['reason']}: {row['answer'][:40]!r})"
            for row in loaded.dropped.head(NAMED).iter_rows(named=True)
        )
        said = f"{len(loaded.dropped):,} dropped, such as {some}; {said}"
    return Made(
        name="problems", table=loaded.problems, said=said, params=settings,
        metrics={"dropped_problems": float(len(loaded.dropped))},
    )  # fmt: skip


def _generate(arguments: argparse.Namespace) -> Made:
    problems = tables.read(arguments.problems, "problems")
    sampling = Sampling(
        temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens,
        max_prompt_tokens=arguments.max_prompt_tokens, top_p=arguments.top_p,
    )  # fmt: skip
    if arguments.samples < 1:
        raise RolloutError(f"--samples is {arguments.samples}; it must be at least 1")
    sampler = open_sampler(arguments.sampler, arguments.model, sampling, **_server(arguments))
    with contextlib.closing(sampler):
        rollouts = sampler.sample(
            problems, samples=arguments.samples, seed=arguments.seed, step=0, phase=arguments.phase,
            run_id=_run_id(arguments, problems, sampling),
        )  # fmt: skip
    params = {
        name: getattr(arguments, name)
        for name in ("model", "sampler", "samples", "phase", "temperature", "top_p", "max_new_tokens", "seed")
    }
    return _rewarded(rollouts, sources={"problems": arguments.problems}, params=params)


def _run_id(arguments: argparse.Namespace, problems: pl.DataFrame, sampling: Sampling) -> str:
    """Hash of what was asked, so that responses of two seeds, say, are two runs and read as one table."""
    columns = [name for name in ("problem_id", "prompt", "answer", "verifier", "metadata") if name in problems.columns]
    asked = {
        **{name: getattr(arguments, name) for name in ("model", "sampler", "samples", "seed", "phase")},
        "served_model": arguments.served_model,
        "sampling": asdict(sampling),
        "problems": hashlib.sha256(problems.select(columns).write_json().encode()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


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
    from .samplers.base import load_tokenizer, metadata_of

    rollouts = tables.read(arguments.rollouts, "rollouts")
    known = tables.read(arguments.problems, "problems")
    known = known.select("problem_id", "answer", "verifier", metadata=pl.Series(metadata_of(known), dtype=pl.String))
    joined = rollouts.join(known, on="problem_id", how="left", maintain_order="left")
    lost = joined.filter(pl.col("verifier").is_null())["problem_id"].unique()
    if len(lost):
        raise RolloutError(f"{arguments.problems}: lacks {len(lost)} problems answered, such as {lost[0]}")
    tokenizer = load_tokenizer(arguments.model)
    texts = tokenizer.batch_decode(joined["response_ids"].to_list(), skip_special_tokens=True)
    columns = (joined[name].to_list() for name in ("answer", "verifier", "metadata", "finish_reason"))
    rewards = [
        float(reason != "aborted" and verifier(rule)(text, answer, metadata))
        for text, answer, rule, metadata, reason in zip(texts, *columns, strict=True)
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
    measured = with_pass_rates(problems, tables.read(arguments.rollouts, "rollouts"), fresh=arguments.fresh)
    if measured.is_empty():
        raise RolloutError(f"{arguments.rollouts}: answers none of the problems of {arguments.problems}")
    name = "fresh_pass_rate" if arguments.fresh else "pass_rate"
    mean = float(measured[name].to_numpy().mean())
    return Made(
        name="problems", table=measured, said=f"{len(measured):,} problems, mean {name.replace('_', ' ')} {mean:.3f}",
        metrics={f"mean_{name}": mean},
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
