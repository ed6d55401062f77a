"""``generate``: answer problems with a model."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import polars as pl

from ..contract import tables
from ..errors import RolloutError
from ..samplers import KINDS, Sampling, open_sampler
from .output import SOURCE, Output, add_flags, deliver, rewarded

PHASES = ("difficulty", "baseline", "eval")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    generate = commands.add_parser("generate", help="answer problems with a model")
    generate.add_argument(
        "--model", required=True,
        help="folder or name of a model in the Hugging Face format; with --sampler openai, of its tokenizer",
    )  # fmt: skip
    generate.add_argument("--problems", required=True, help=SOURCE)
    generate.add_argument("--samples", type=int, default=16, help="responses per problem (default 16)")
    generate.add_argument("--sampler", default="vllm", choices=KINDS)
    generate.add_argument(
        "--phase", default="difficulty", choices=PHASES,
        help="what the responses are for: to select problems (difficulty, the default), to measure those selected "
        "(baseline) or to evaluate; each has seeds of its own",
    )  # fmt: skip
    generate.add_argument("--temperature", type=float, default=1.0)
    generate.add_argument("--top-p", type=float, default=1.0, help="share of the probability sampled from (default 1)")
    generate.add_argument("--max-new-tokens", type=int, default=16)
    generate.add_argument("--max-prompt-tokens", type=int, default=48)
    generate.add_argument("--seed", type=int, default=0)
    server = generate.add_argument_group("with --sampler openai", "The API key, if any, is read from OPENAI_API_KEY.")
    server.add_argument("--base-url", help="address of the server, such as http://localhost:8000/v1")
    server.add_argument("--served-model", help="the model's name there, if it is another")
    server.add_argument("--concurrency", type=int, help="requests in flight at a time (default 64)")
    add_flags(generate)
    generate.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Make the rollouts and say how many there are and their mean reward."""
    return deliver(arguments, _generate)


def _generate(arguments: argparse.Namespace) -> Output:
    problems = tables.read(arguments.problems, "problems")
    sampling = Sampling(
        temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens,
        max_prompt_tokens=arguments.max_prompt_tokens, top_p=arguments.top_p,
    )  # fmt: skip
    if arguments.samples < 1:
        raise RolloutError(f"--samples is {arguments.samples}; it must be at least 1")
    sampler = open_sampler(arguments.sampler, arguments.model, sampling, **_server_options(arguments))
    with contextlib.closing(sampler):
        rollouts = sampler.sample(
            problems, samples=arguments.samples, seed=arguments.seed, step=0, phase=arguments.phase,
            run_id=_run_id(arguments, problems, sampling),
        )  # fmt: skip
    params = {
        name: getattr(arguments, name)
        for name in ("model", "sampler", "samples", "phase", "temperature", "top_p", "max_new_tokens", "seed")
    }
    return rewarded(rollouts, sources={"problems": arguments.problems}, params=params)


def _run_id(arguments: argparse.Namespace, problems: pl.DataFrame, sampling: Sampling) -> str:
    """Hash of what was asked for, so that responses of two seeds, say, are two runs and read as one table."""
    columns = [name for name in ("problem_id", "prompt", "answer", "verifier", "metadata") if name in problems.columns]
    identity = {
        **{name: getattr(arguments, name) for name in ("model", "sampler", "samples", "seed", "phase")},
        "served_model": arguments.served_model,
        "sampling": asdict(sampling),
        "problems": hashlib.sha256(problems.select(columns).write_json().encode()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _server_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampler's options that belong to a server.

    Raises:
        RolloutError: Flags of a server are given for another sampler, or a server's address is missing.
    """
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
