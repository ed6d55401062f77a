"""Flags of sampling runs and the settings they give: model, sampling, prompts, engine, server, scoring."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import polars as pl

from ..contract.documents import DocumentError, EndlessError, parsed
from ..contract.files import reason_of
from ..errors import RolloutError
from ..problems.rows import lines_of
from ..samplers.base import Sampler
from ..samplers.local import TEMPLATES, Prompting
from ..samplers.registry import KINDS, open_sampler
from ..samplers.sampling import EngineConfig, Interruption, Sampling, engine_from, sampling_from
from ..scoring.sandbox.process import ScoringConfig, scoring_from
from ..scoring.scorer import Scorer, default_scorer

TRANSFORMERS = ("device", "dtype", "batch_size")
"""Engine settings for transformers."""
NUMBERS = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "max_prompt_tokens")
SERVER = ("base_url", "protocol", "served_model", "concurrency", "timeout")


def add_sampling(command: argparse.ArgumentParser, *, required: bool, samples: int, shards: bool) -> None:
    """Add the flags. ``required``: whether a model is required; ``shards``: whether runs may share a folder."""
    actions: list[argparse.Action] = []
    group: Any = command

    def flag(name: str, help: str, **options: Any) -> None:
        actions.append(group.add_argument(name, help=help, **options))

    def meaning(kind: Any, name: str) -> str:
        """Return the first sentence of a setting's description."""
        said = " ".join(kind.__pydantic_fields__[name].description.replace("``", "").split())
        return said[0].lower() + said[1:].partition(". ")[0].rstrip(".")

    command.add_argument(
        "--model",
        required=required,
        help="folder or name of a model in the Hugging Face format; with --sampler openai, of its tokenizer",
    )
    flag("--samples", f"responses per problem (default {samples})", type=int, default=samples)
    flag("--seed", "of the sampling (default 0)", type=int, default=0)
    flag("--sampler", "what generates (default vllm)", default="vllm", choices=KINDS)
    flag("--limit", "only the first N problems by problem_id", type=int, metavar="N")
    flag("--overwrite", "replace --out where it is there already", action="store_true")
    if not required:
        flag("--rollouts-out", "also write the responses sampled", type=Path, metavar="FILE")
    if shards:
        parts = "only the I-th of K parts of the problems, by a hash of problem_id; --out is then the folder of all K"
        flag("--shard", parts, metavar="I/K")
    group = command.add_argument_group("sampling")
    for name in NUMBERS:
        value = getattr(Sampling(), name)
        words = f"{meaning(Sampling, name)} (default {value:g})"
        flag(f"--{name.replace('_', '-')}", words, type=type(value), default=value, metavar="N")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    flag("--stop", f"{meaning(Sampling, 'stop')} (repeatable)", metavar="TEXT", **repeated)
    ending = f"{meaning(Sampling, 'stop_token_ids')} (repeatable)"
    flag("--stop-token-id", ending, type=int, metavar="ID", **repeated)
    flag("--keep-text", meaning(Sampling, "keep_text"), action="store_true")
    cut = "cut a response at a length drawn between the two and ask for its answer (forced interruption)"
    flag("--interrupt", cut, type=int, nargs=2, metavar=("LOWEST", "HIGHEST"))
    flag("--interrupt-phrase", f"what asks for it (default {Interruption().phrase!r})", metavar="TEXT")
    group = command.add_argument_group("prompts")
    prompting = Prompting()
    flag("--template", meaning(Prompting, "template"), default=prompting.template, choices=TEMPLATES)
    flag("--system", meaning(Prompting, "system"), default=prompting.system, metavar="TEXT")
    flag("--few-shot", "examples: a .jsonl file with the keys prompt and answer", type=Path, metavar="FILE")
    flag("--separator", meaning(Prompting, "separator"), default=prompting.separator, metavar="TEXT")
    flag("--bos", meaning(Prompting, "bos"), action=argparse.BooleanOptionalAction, default=None)
    more = "a further argument of the chat template, such as enable_thinking=false (repeatable)"
    flag("--chat-option", more, metavar="KEY=VALUE", **repeated)
    flag("--date", meaning(Prompting, "date"), default=prompting.date, metavar="YYYY-MM-DD")
    group = command.add_argument_group("engine")
    known = f"vllm: {', '.join(f.name for f in fields(EngineConfig))}; transformers: {', '.join(TRANSFORMERS)}"
    flag("--engine", f"a setting of the engine (repeatable; {known})", metavar="KEY=VALUE", **repeated)
    flag("--engine-config", "settings of the engine, as YAML", type=Path, metavar="FILE")
    actions.append(add_scoring(command))
    group = command.add_argument_group("with --sampler openai", "The API key, if any, is read from OPENAI_API_KEY.")
    address = "address of the server, such as http://localhost:8000/v1 (repeatable: several that serve the same model)"
    flag("--base-url", address, action="append", metavar="URL")
    flag("--protocol", "of the server (default completions)", choices=("completions", "chat"))
    flag("--served-model", "the model's name there, if it is another", metavar="NAME")
    flag("--concurrency", "requests in flight at a time", type=int, metavar="N")
    flag("--timeout", "deadline of one answer (default 600)", type=float, metavar="SECONDS")
    command.set_defaults(sampling_flags=actions)


def refuse_unused(arguments: argparse.Namespace) -> None:
    """Refuse sampling flags that a command without a model would ignore."""
    for action in arguments.sampling_flags:
        if getattr(arguments, action.dest) != action.default:
            raise RolloutError(f"{action.option_strings[0]} needs --model: nothing is sampled without it")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run except for its problems; ``kind`` is the kind of sampler."""

    model: str
    kind: str
    sampling: Sampling
    prompting: Prompting
    engine: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
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
        if self.kind == "vllm":
            engine_from(self.engine)
        elif unknown := [name for name in self.engine if name not in TRANSFORMERS]:
            raise RolloutError(
                f"the transformers sampler has no setting {unknown[0]}; it has {', '.join(TRANSFORMERS)}"
            )

    def open(self, responses: int) -> Sampler:
        """Open the sampler, for at most ``responses`` responses at a time."""
        options: dict[str, Any] = {"prompting": self.prompting, "scorer": self.scorer}
        if self.kind == "openai":
            options |= {
                {"base_url": "base_urls", "timeout": "timeout_seconds"}.get(k, k): v for k, v in self.server.items()
            }
            options["api_key"] = os.environ.get("OPENAI_API_KEY")
        elif self.kind == "transformers":
            options |= self.engine
        else:
            options |= {"engine": engine_from(self.engine), "responses": responses}
        return open_sampler(self.kind, self.model, self.sampling, **options)


def settings_from(arguments: argparse.Namespace) -> RunSettings:
    """Return the settings given by the flags."""
    engine = {} if arguments.engine_config is None else yaml_mappings(arguments.engine_config, several=False)[0]
    sampling: dict[str, Any] = {name: getattr(arguments, name) for name in (*NUMBERS, "keep_text", "stop")}
    sampling["stop_token_ids"] = arguments.stop_token_id
    phrase = {} if arguments.interrupt_phrase is None else {"phrase": arguments.interrupt_phrase}
    if arguments.interrupt is not None:
        lowest, highest = arguments.interrupt
        sampling["interruption"] = {"lowest": lowest, "highest": highest, **phrase}
    elif phrase:
        raise RolloutError("--interrupt-phrase needs --interrupt LOWEST HIGHEST")
    return RunSettings(
        model=arguments.model,
        kind=arguments.sampler,
        sampling=sampling_from(sampling),
        prompting=Prompting(
            template=arguments.template,
            system=arguments.system,
            separator=arguments.separator,
            bos=arguments.bos,
            examples=() if arguments.few_shot is None else _examples(arguments.few_shot),
            chat_options=pairs(arguments.chat_option, flag="--chat-option"),
            date=arguments.date,
        ),
        engine=engine | pairs(arguments.engine, flag="--engine"),
        scorer=scorer_of(arguments),
        server={name: value for name in SERVER if (value := getattr(arguments, name)) is not None},
        samples=arguments.samples,
        seed=arguments.seed,
    )


def _examples(path: Path) -> tuple[tuple[str, str], ...]:
    rows = lines_of(path)
    for number, row in rows:
        if not all(isinstance(row.get(name), str) for name in ("prompt", "answer")):
            raise RolloutError(f'{path}: line {number} must be like {{"prompt": "1+1=", "answer": "2"}}')
    if not rows:
        raise RolloutError(f"{path}: holds no examples")
    return tuple((row["prompt"], row["answer"]) for _, row in rows)


def pairs(given: Sequence[str], *, flag: str) -> dict[str, Any]:
    """Return the values of a repeatable flag ``KEY=VALUE``; a value is read as YAML."""
    found: dict[str, Any] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise RolloutError(f"{flag} is {text!r}; it must be like KEY=VALUE")
        if key.strip() in found:
            raise RolloutError(f"{flag} gives {key.strip()} twice")
        try:
            found[key.strip()] = parsed(value)
        except EndlessError as error:
            raise RolloutError(f"{flag} {key.strip()} {error}") from None
        except DocumentError:
            found[key.strip()] = value
    return found


def yaml_mappings(path: Path, *, several: bool = True) -> list[dict[str, Any]]:
    """Return the mapping in a YAML (or JSON) file, or a list of them if ``several`` are allowed."""
    try:
        settings = parsed(path.read_text("utf-8"))
    except (OSError, UnicodeError) as error:
        raise RolloutError(f"{path}: cannot be read ({reason_of(error)})") from None
    except DocumentError as error:
        raise RolloutError(f"{path}: {error}") from None
    found = settings if several and isinstance(settings, list) else [settings]
    if not found or not all(isinstance(each, dict) for each in found):
        more = ", or a list of such mappings" if several else ""
        raise RolloutError(f"{path}: must be a mapping of settings{more}")
    return found


def add_scoring(command: argparse.ArgumentParser) -> argparse.Action:
    """Add the flag for the scoring settings."""
    known = ", ".join(field.name for field in fields(ScoringConfig))
    return command.add_argument(
        "--scoring",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"a setting of scoring, such as seconds=2 (repeatable; {known})",
    )


def scorer_of(arguments: argparse.Namespace) -> Scorer:
    """Return the scorer with the flag's settings, or the process's scorer without the flag."""
    settings = scoring_from(pairs(arguments.scoring, flag="--scoring"))
    return Scorer(settings) if arguments.scoring else default_scorer()


def shard_of(text: str) -> tuple[int, int]:
    """Return I and K of ``I/K``."""
    part, separator, parts = text.partition("/")
    if separator and part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts):
        return int(part), int(parts)
    raise RolloutError(f"--shard is {text!r}; it must be like 1/4, the first of four parts")


def chosen(problems: pl.DataFrame, *, limit: int | None, shard: str | None) -> pl.DataFrame:
    """Return the problems of a shard, among the first ``limit`` by ``problem_id``.

    A problem's shard depends on its id alone. The shards of a limited run partition its problems.
    """
    if limit is not None and limit < 1:
        raise RolloutError(f"--limit is {limit}; it must be at least 1")
    problems = problems.sort("problem_id") if limit is None else problems.sort("problem_id").head(limit)
    if shard is None:
        return problems
    part, parts = shard_of(shard)
    hashes = (blake2b(problem_id.encode(), digest_size=8).digest() for problem_id in problems["problem_id"])
    keep = [int.from_bytes(hashed, "big") % parts == part - 1 for hashed in hashes]
    if not any(keep):
        raise RolloutError(f"--shard {shard} holds none of the {len(problems)} problems: take fewer shards")
    return problems.filter(pl.Series(keep))
