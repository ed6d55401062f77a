"""What is to be sampled, as the flags of a command say it: model, sampling, prompts, engine, server, scoring."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RolloutError
from ..samplers.base import Sampler
from ..samplers.prompts import TEMPLATES, Prompting
from ..samplers.registry import KINDS, open_sampler
from ..samplers.sampling import EngineConfig, Interruption, Sampling, engine_from, sampling_from
from ..scoring.config import scoring_from
from ..scoring.scorer import Scorer, default_scorer
from .values import add_scoring, error_of, pairs, scorer_of, yaml_mapping

TRANSFORMERS = ("device", "dtype", "batch_size")
"""Settings of the engine, where it is transformers."""
SAMPLING = Sampling()
PROMPTING = Prompting()
INTERRUPTION = Interruption()
PROTOCOLS = ("completions", "chat")
OF_SAMPLING = (
    "samples",
    "seed",
    "sampler",
    "limit",
    "shard",
    "overwrite",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_new_tokens",
    "max_prompt_tokens",
    "stop",
    "stop_token_id",
    "keep_text",
    "interrupt",
    "interrupt_phrase",
    "template",
    "system",
    "few_shot",
    "separator",
    "bos",
    "chat_option",
    "date",
    "engine",
    "engine_config",
    "base_url",
    "protocol",
    "served_model",
    "concurrency",
    "timeout",
    "scoring",
)
"""Flags that say nothing where nothing is sampled."""


def add_sampling(command: argparse.ArgumentParser, *, required: bool, samples: int) -> None:
    """Add the flags.

    Args:
        required: Whether the command cannot do without a model.
        samples: Responses per problem by default.
    """
    command.add_argument(
        "--model",
        required=required,
        help="folder or name of a model in the Hugging Face format; with --sampler openai, of its tokenizer",
    )
    command.add_argument("--samples", type=int, default=samples, help=f"responses per problem (default {samples})")
    command.add_argument("--seed", type=int, default=0, help="of the sampling (default 0)")
    command.add_argument("--sampler", default="vllm", choices=KINDS, help="what generates (default vllm)")
    command.add_argument("--limit", type=int, metavar="N", help="only the first N problems by problem_id")
    command.add_argument("--overwrite", action="store_true", help="replace --out where it is there already")
    _add_draws(command)
    _add_prompts(command)
    engine = command.add_argument_group("engine")
    engine.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"a setting of the engine (repeatable; vllm: {', '.join(f.name for f in fields(EngineConfig))}; "
        f"transformers: {', '.join(TRANSFORMERS)})",
    )
    engine.add_argument("--engine-config", type=Path, metavar="FILE", help="settings of the engine, as YAML")
    add_scoring(command)
    server = command.add_argument_group("with --sampler openai", "The API key, if any, is read from OPENAI_API_KEY.")
    server.add_argument(
        "--base-url",
        action="append",
        metavar="URL",
        help="address of the server, such as http://localhost:8000/v1 (repeatable: several that serve the same model)",
    )
    server.add_argument("--protocol", choices=PROTOCOLS, help="of the server (default completions)")
    server.add_argument("--served-model", metavar="NAME", help="the model's name there, if it is another")
    server.add_argument("--concurrency", type=int, metavar="N", help="requests in flight at a time")
    server.add_argument("--timeout", type=float, metavar="SECONDS", help="deadline of one answer (default 600)")


def refuse_unused(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse flags of sampling that a command without a model would ignore.

    Raises:
        RolloutError: One of them is given.
    """
    for name in OF_SAMPLING:
        if getattr(arguments, name, None) != parser.get_default(name):
            raise RolloutError(f"--{name.replace('_', '-')} needs --model: nothing is sampled without it")


def add_shard(command: argparse.ArgumentParser) -> None:
    """Add the flag that makes a run one of several."""
    command.add_argument(
        "--shard",
        metavar="I/K",
        help="only the I-th of K parts of the problems, by a hash of problem_id; --out is then the folder of all K",
    )


def _add_draws(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("sampling")
    numbers: Sequence[tuple[str, type[int] | type[float], str]] = [
        ("temperature", float, "0 takes the most probable token each time"),
        ("top_p", float, "share of the probability sampled from"),
        ("top_k", int, "most probable tokens sampled from, 0 for all"),
        ("min_p", float, "least probability of a token, as a share of the most probable one's"),
        ("max_new_tokens", int, "longest response"),
        ("max_prompt_tokens", int, "longest prompt"),
    ]
    for name, kind, meaning in numbers:
        default = getattr(SAMPLING, name)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=default,
            metavar="N",
            help=f"{meaning} (default {default:g})",
        )
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="text at which a response ends (repeatable)"
    )
    group.add_argument(
        "--stop-token-id",
        type=int,
        action="append",
        default=[],
        metavar="ID",
        help="token at which a response ends, besides those of the model (repeatable)",
    )
    group.add_argument("--keep-text", action="store_true", help="add a column with the text of each response")
    group.add_argument(
        "--interrupt",
        type=int,
        nargs=2,
        metavar=("LOWEST", "HIGHEST"),
        help="cut a response at a length drawn between the two and ask for its answer (forced interruption)",
    )
    group.add_argument("--interrupt-phrase", metavar="TEXT", help=f"what asks for it (default {INTERRUPTION.phrase!r})")


def _add_prompts(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("prompts")
    group.add_argument(
        "--template",
        default=PROMPTING.template,
        choices=TEMPLATES,
        help="render the tokenizer's chat template, take the text as it is, or the first where there is one (auto)",
    )
    group.add_argument("--system", default=PROMPTING.system, metavar="TEXT", help="system prompt")
    group.add_argument(
        "--few-shot", type=Path, metavar="FILE", help="examples: a .jsonl file with the keys prompt and answer"
    )
    group.add_argument(
        "--separator",
        default=PROMPTING.separator,
        metavar="TEXT",
        help="text between the parts of a plain prompt (default: an empty line)",
    )
    group.add_argument(
        "--bos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="begin a plain prompt with the beginning-of-sequence token, or not (by default as the tokenizer does)",
    )
    group.add_argument(
        "--chat-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a further argument of the chat template, such as enable_thinking=false (repeatable)",
    )
    group.add_argument(
        "--date",
        default=PROMPTING.date,
        metavar="YYYY-MM-DD",
        help=f"the date that a chat template writes for today's (default {PROMPTING.date})",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What is to be sampled, besides the problems.

    Attributes:
        kind: Which sampler (``samplers.registry.KINDS``).
        server: Settings of the server, for kind ``openai``.
        scorer: Scores with the settings ``scoring``.
        samples: Responses per problem.

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


def settings_from(arguments: argparse.Namespace) -> RunSettings:
    """Return what the flags ask for.

    Raises:
        RolloutError: A value is out of its range, a key is unknown, or flags contradict each other.
    """
    names = ("base_url", "protocol", "served_model", "concurrency", "timeout")
    given = {name: getattr(arguments, name) for name in names}
    return RunSettings(
        model=arguments.model,
        kind=arguments.sampler,
        sampling=_sampling(arguments),
        prompting=Prompting(
            template=arguments.template,
            system=arguments.system,
            separator=arguments.separator,
            bos=arguments.bos,
            examples=_examples(arguments.few_shot),
            chat_options=pairs(arguments.chat_option, flag="--chat-option"),
            date=arguments.date,
        ),
        engine=_engine(arguments),
        scoring=pairs(arguments.scoring, flag="--scoring"),
        scorer=scorer_of(arguments),
        server={name: value for name, value in given.items() if value is not None},
        samples=arguments.samples,
        seed=arguments.seed,
    )


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
