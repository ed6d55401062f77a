"""Tokenizers and prompts: chat template, system prompt, few-shot examples, beginning of sequence."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..contract.files import reason_of
from ..contract.settings import made_of, settings
from ..errors import RolloutError, library
from . import template_trial

if TYPE_CHECKING:
    import polars as pl

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Libraries that vLLM asks for and this package does not need: beside the CPU build of torch, registries often give
their CUDA builds, with which importing vLLM and parts of transformers fails."""
CPU_SECONDS, MEMORY = 5, 2**30
"""Most of both that the rendering of a short message may take; a healthy one takes milliseconds and kilobytes."""
_MAY_GROW = re.compile(r"\brange\b|\bmacro\b|\bformat\b|\*")
"""Parts of a chat template without which it goes through its messages alone."""
Template = Literal["auto", "chat", "plain"]
TEMPLATES: tuple[Template, ...] = get_args(Template)
RESERVED = (
    "add_generation_prompt",
    "continue_final_message",
    "conversation",
    "return_dict",
    "return_tensors",
    "tokenize",
)
"""Arguments of a chat template's rendering that are not options of the template."""


@settings(RolloutError)
class Prompting:
    """Settings of prompts."""

    template: Template = "auto"
    """``chat`` renders the tokenizer's chat template, ``plain`` takes the text as it is, ``auto`` is ``chat`` where the
    tokenizer has a template."""
    system: str = ""
    """System prompt; in a plain prompt the text that it begins with."""
    examples: tuple[tuple[str, str], ...] = ()
    """Few-shot examples, pairs of a prompt and its answer."""
    separator: str = "\n\n"
    """For a plain prompt: what stands between the system prompt, the examples and the problem."""
    bos: bool | None = None
    """Whether a prompt begins with the beginning-of-sequence token, which then stands there once. None leaves it to the
    chat template, and for a plain prompt to what the tokenizer does by itself."""
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, such as ``{"enable_thinking": False}``."""
    date: str = "2024-07-26"
    """The date that a chat template writes for today's (``strftime_now``), as 2024-07-26, which is the one that Llama
    3's falls back on; today's would make other prompts from midnight on."""

    def __post_init__(self) -> None:
        try:
            written = datetime.fromisoformat(self.date).strftime("%Y-%m-%d")
        except ValueError:
            written = ""
        if written != self.date:
            raise RolloutError(f"date is {self.date!r}; it must be a date such as 2024-07-26")
        for name in self.chat_options:
            if name in RESERVED:
                raise RolloutError(f"chat_options holds {name!r}, which is not an option of a chat template")


def prompting_from(plain: Mapping[str, Any]) -> Prompting:
    """Make prompting from plain values, as JSON, YAML and ``dataclasses.asdict`` hold them."""
    return made_of(Prompting, plain, RolloutError, "prompting")


class PromptMaker:
    """Makes prompts with one tokenizer.

    Raises:
        RolloutError: A chat template or a beginning-of-sequence token is asked for, and the tokenizer has none; or the
            rendering of its template does not end.
    """

    def __init__(self, tokenizer: Any, prompting: Prompting, *, max_prompt_tokens: int) -> None:
        has_template = bool(getattr(tokenizer, "chat_template", None) or prompting.chat_options.get("chat_template"))
        if prompting.template == "chat" and not has_template:
            raise RolloutError(
                "the template chat is asked for, and the tokenizer has no chat template; use plain or auto"
            )
        self._bos: Any = tokenizer.bos_token_id
        if prompting.bos and self._bos is None:
            raise RolloutError("bos is true, and the tokenizer has no beginning-of-sequence token; leave it out")
        self.chat = prompting.template == "chat" or (prompting.template == "auto" and has_template)
        self._tokenizer, self._prompting, self._longest = tokenizer, prompting, max_prompt_tokens
        self._day = datetime.fromisoformat(prompting.date)
        if self.chat:
            self._try_template()
        wanted = prompting.bos
        if wanted is None and not self.chat:
            # Some end a text, too: with an end-of-sequence token, which must not stand before a response.
            wanted = tokenizer("a")["input_ids"][:1] == [self._bos] or None
        self._wants_bos = wanted
        self._made: dict[str, list[int]] = {}

    def _try_template(self) -> None:
        """Render one short prompt in a process that may be ended: a template is a program of its model's author."""
        values = {"messages": self.messages("a"), "add_generation_prompt": True, **self._prompting.chat_options}
        try:
            template = self._tokenizer.get_chat_template(self._prompting.chat_options.get("chat_template"))
            values = {**self._tokenizer.special_tokens_map, **values}
            given = json.dumps({"template": template, "values": values, "seconds": CPU_SECONDS, "bytes": MEMORY})
        except Exception:
            # Of what is no template, or no plain value, the rendering that counts says so.
            return
        if _MAY_GROW.search(template) and not _ends(given):
            raise RolloutError(
                f"the tokenizer's chat template does not end: for one short message it took more than {CPU_SECONDS} s "
                f"or {MEMORY >> 30} GiB; use another prompting, such as template: plain"
            )

    def messages(self, text: str) -> Sequence[Mapping[str, str]]:
        """Return a prompt as chat messages."""
        turns = [{"role": "system", "content": self._prompting.system}] if self._prompting.system else []
        for question, answer in self._prompting.examples:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [*turns, {"role": "user", "content": text}]

    def digest(self, problems: pl.DataFrame) -> str:
        """Return a hash of what the prompts of problems say, whatever their order and length."""
        digest = hashlib.sha256()
        for problem_id, text in sorted(problems.select("problem_id", "prompt").iter_rows()):
            digest.update(json.dumps([problem_id, self._rendered(problem_id, text), self._wants_bos]).encode())
        return digest.hexdigest()[:16]

    def ids(self, problem_id: str, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        # By text: two tables may give one id to two prompts.
        if text not in self._made:
            ids = list(self._tokenizer(self._rendered(problem_id, text), add_special_tokens=False)["input_ids"])
            # Begun with the beginning-of-sequence token once, or without it, as wanted.
            begins = ids[:1] == [self._bos]
            if self._wants_bos and not begins:
                ids = [self._bos, *ids]
            elif self._wants_bos is False and begins:
                del ids[0]
            if not 0 < len(ids) <= self._longest:
                raise RolloutError(
                    f"problem {problem_id} has a prompt of {len(ids)} tokens; it must have between 1 and "
                    f"max_prompt_tokens = {self._longest}"
                )
            self._made[text] = ids
        return self._made[text]

    def _rendered(self, problem_id: str, text: str) -> str:
        if not text:
            raise RolloutError(f"problem {problem_id} has an empty prompt; it must have a text")
        wanted = self._prompting
        if not self.chat:
            parts = [wanted.system] if wanted.system else []
            parts += [question + answer for question, answer in wanted.examples]
            return wanted.separator.join([*parts, text])
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                list(self.messages(text)),
                tokenize=False,
                add_generation_prompt=True,
                **{"strftime_now": self._day.strftime, **wanted.chat_options},
            )
        except ImportError:
            raise RolloutError(
                "the tokenizer's chat template cannot be rendered without jinja2, at least 3.1: pip install jinja2"
            ) from None
        except Exception as error:
            # A template is a program of its model's author, and may raise anything.
            raise RolloutError(
                f"problem {problem_id}: the tokenizer's chat template cannot be rendered ({reason_of(error)}); use "
                "another prompting, such as template: plain"
            ) from None
        return rendered


@cache
def _ends(given: str) -> bool:
    """Return whether a template is rendered within the limits of ``template_trial``."""
    try:
        run = [sys.executable, "-I", template_trial.__file__]
        # By the clock, where a machine is busy or has no limits.
        return (
            subprocess.run(run, input=given, text=True, capture_output=True, timeout=12 * CPU_SECONDS).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False


def load_tokenizer(model: str) -> Any:
    """Load a model's tokenizer."""
    transformers = library("transformers", extra="transformers")
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise RolloutError(f"the base model {model} cannot be loaded (there is no such folder)")
    try:
        return transformers.AutoTokenizer.from_pretrained(model)
    except Exception as error:
        # Libraries raise errors of any class for damaged files.
        raise not_loaded(model, error) from None


def stop_tokens(model: str, tokenizer: Any) -> list[int]:
    """Return the tokens at which a model's responses end: those of its generation config and of its tokenizer."""
    from transformers import GenerationConfig

    stated = {tokenizer.eos_token_id}
    try:
        ends = GenerationConfig.from_pretrained(model).eos_token_id
    except (OSError, ValueError):
        # Many models have no generation config.
        ends = None
    stated |= set(ends) if isinstance(ends, list | tuple) else {ends}
    return sorted(token for token in stated if token is not None)


def check_folder(model: str | Path) -> None:
    """Refuse a folder that holds no model; libraries would look for a model of its name on the hub."""
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise RolloutError(f"the base model {model} cannot be loaded (its folder holds no config.json)")


def not_loaded(model: str, error: BaseException) -> RolloutError:
    """Return what to raise for a model that a library could not load, or for the library that is to blame."""
    for name in COMPANIONS:
        try:
            if find_spec(name) is not None:
                import_module(name)
        except Exception as misfit:
            # A library of another build raises errors of any class.
            return RolloutError(
                f"{model} was not loaded, because the installed {name} does not fit this torch ({reason_of(misfit)}); "
                f"remove it, since nothing here needs it: pip uninstall --yes {' '.join(COMPANIONS)}"
            )
    return RolloutError(f"the base model {model} cannot be loaded ({reason_of(error)})")
