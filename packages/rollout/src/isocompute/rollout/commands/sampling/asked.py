"""What is to be sampled, as the flags of a command say it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import RolloutError
from ...samplers import Sampling
from ...samplers.base import Sampler
from ...samplers.engine import engine_from
from ...samplers.prompts import Prompting
from ...samplers.registry import open_sampler
from ...samplers.sampling import sampling_from
from ...scoring.config import scoring_from
from ...scoring.scorer import Scorer, default_scorer
from ..values import error_of, pairs, scorer_of, yaml_mapping

TRANSFORMERS = ("device", "dtype", "batch_size")
"""Settings of the engine, where it is transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be sampled, besides the problems.

    Attributes:
        model: Directory or name of the model.
        kind: Which sampler (``samplers.KINDS``).
        sampling: How responses are sampled.
        prompting: How prompts are made.
        engine: Settings of the engine.
        server: Settings of the server, for kind ``openai``.
        scoring: Settings of scoring.
        scorer: Scores with these settings.
        samples: Responses per problem.
        seed: Seed of the run.

    Raises:
        RolloutError: There are no samples, or flags of a server are given for another sampler, or its address is
            missing.
    """

    model: str
    kind: str
    sampling: Sampling
    prompting: Prompting
    engine: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    scoring: Mapping[str, Any] = field(default_factory=dict)
    scorer: Scorer = field(default_factory=default_scorer, compare=False)
    samples: int
    seed: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise RolloutError(f"--samples is {self.samples}; it must be at least 1")
        if self.kind != "openai" and self.server:
            raise RolloutError(f"--{next(iter(self.server)).replace('_', '-')} needs --sampler openai")
        if self.kind == "openai" and "base_url" not in self.server:
            raise RolloutError("--sampler openai needs --base-url, such as http://localhost:8000/v1")
        if self.kind == "openai" and self.engine:
            raise RolloutError("--engine cannot be combined with --sampler openai: a server has its engine already")
        scoring_from(self.scoring)
        if self.kind == "transformers":
            _check_keys("the transformers sampler", self.engine, TRANSFORMERS)
        elif self.engine:
            engine_from(self.engine)

    def open(self) -> Sampler:
        """Open the sampler.

        Raises:
            RolloutError: As ``open_sampler``.
        """
        options: dict[str, Any] = {}
        if self.prompting != Prompting():
            options["prompting"] = self.prompting
        if self.scoring:
            options["scorer"] = self.scorer
        if self.kind == "transformers":
            options |= self.engine
        elif self.engine:
            options["engine"] = engine_from(self.engine)
        if self.kind == "openai":
            server = dict(self.server)
            if "timeout" in server:
                options["timeout_seconds"] = server.pop("timeout")
            options |= {"base_urls": server.pop("base_url"), **server, "api_key": os.environ.get("OPENAI_API_KEY")}
        return open_sampler(self.kind, self.model, self.sampling, **options)


def asked_from(arguments: argparse.Namespace) -> Asked:
    """Return what the flags ask for.

    Args:
        arguments: The command's arguments.

    Raises:
        RolloutError: A value is out of its range, a key is unknown, or flags contradict each other.
    """
    names = ("base_url", "protocol", "served_model", "concurrency", "timeout")
    given = {name: getattr(arguments, name) for name in names}
    return Asked(
        model=arguments.model,
        kind=arguments.sampler,
        sampling=_sampling(arguments),
        prompting=Prompting(
            template=arguments.template, system=arguments.system, separator=arguments.separator, bos=arguments.bos,
            examples=_examples(arguments.few_shot), chat_options=pairs(arguments.chat_option, flag="--chat-option"),
            date=arguments.date,
        ),
        engine=_engine(arguments),
        scoring=pairs(arguments.scoring, flag="--scoring"),
        scorer=scorer_of(arguments),
        server={name: value for name, value in given.items() if value is not None},
        samples=arguments.samples,
        seed=arguments.seed,
    )  # fmt: skip


def _sampling(arguments: argparse.Namespace) -> Sampling:
    if arguments.interrupt_phrase is not None and arguments.interrupt is None:
        raise RolloutError("--interrupt-phrase needs --interrupt LOWEST HIGHEST")
    numbers = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "max_prompt_tokens", "keep_text")
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in numbers}
    settings |= {"stop": arguments.stop, "stop_token_ids": arguments.stop_token_id}
    if arguments.interrupt is not None:
        lowest, highest = arguments.interrupt
        settings["interruption"] = {"lowest": lowest, "highest": highest}
        if arguments.interrupt_phrase is not None:
            settings["interruption"]["phrase"] = arguments.interrupt_phrase
    return sampling_from(settings)


def _engine(arguments: argparse.Namespace) -> dict[str, Any]:
    settings = {} if arguments.engine_config is None else yaml_mapping(arguments.engine_config)
    settings |= pairs(arguments.engine, flag="--engine")
    return settings


def _check_keys(owner: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse an unknown key."""
    for name in given:
        if name not in known:
            raise RolloutError(f"{owner} has no setting {name}; it has {', '.join(known)}")


def _examples(path: Path | None) -> tuple[tuple[str, str], ...]:
    """Few-shot examples of a file.

    Raises:
        RolloutError: The file cannot be read, or a line is not an example.
    """
    if path is None:
        return ()
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise RolloutError(f"{path}: cannot be read ({error_of(error)})") from None
    examples = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            example = (row["prompt"], row["answer"])
        except (ValueError, KeyError, TypeError):
            example = (None, None)
        if not all(isinstance(part, str) for part in example):
            raise RolloutError(f'{path}: line {number} must be like {{"prompt": "1+1=", "answer": "2"}}')
        examples.append(example)
    if not examples:
        raise RolloutError(f"{path}: holds no examples")
    return tuple(examples)
