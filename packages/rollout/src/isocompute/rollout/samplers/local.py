"""Samplers that make prompts, rewards and tables in this process; subclasses generate.

Forced interruption is ScaleRL's length control (arXiv 2510.13786, appendix A.10; see docs/rollout.md). The phrase's
tokens are part of the response and of its length. They have log-probability 0 and are marked as not sampled in the
column ``sampled``, so they are excluded from the loss. If the phrase ends with no closing tag, every response that
reaches its length is interrupted.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import field, replace
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import pyarrow as pa

from ..contract.files import reason_of
from ..contract.settings import made_of, settings
from ..errors import ProblemError, RolloutError, library, not_loaded
from ..scoring.scorer import BUFFER_SECONDS, Item, Scorer, Verdict, default_scorer
from . import template_trial
from .base import Columns, Faults, Feed, Group, Sampler
from .sampling import (
    ABANDONED,
    Continue,
    Draw,
    Finished,
    Interruption,
    Request,
    Response,
    Sampling,
    as_it_is,
    hashed,
    joined_versions,
    response_seed,
)
from .weights import Manifest, manifest

PROBES = 4
"""Number of prompts in a probe."""
PROBE_TOKENS = 8
"""Tokens in each of them."""
TICK_SECONDS = 0.05
"""Longest wait for verdicts between two steps if there is nothing else to do."""
CPU_SECONDS, MEMORY = 5, 2**30
"""Limits on rendering a short message; a healthy template takes milliseconds and kilobytes."""
_MAY_GROW = re.compile(r"\brange\b|\bmacro\b|\bformat\b|\*")
"""Without these, a chat template only loops over its messages."""
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
"""Arguments of rendering a chat template that are not options of the template."""


class LocalSampler(Sampler):
    """A sampler with its own tokenizer; a subclass turns requests into responses (``_generate``)."""

    def __init__(
        self, model: str | Path, sampling: Sampling, *, prompting: Prompting | None = None, scorer: Scorer | None = None
    ) -> None:
        super().__init__(model, sampling)
        self.tokenizer = load_tokenizer(self.model)
        self._prompting = prompting or Prompting()
        self.prompts = PromptMaker(self.tokenizer, self._prompting, max_prompt_tokens=sampling.max_prompt_tokens)
        self.scorer = scorer or default_scorer()
        self._ends = stop_tokens(self.model, self.tokenizer)

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens that end a response: the model's own and the requested ones."""
        return sorted({*self._ends, *self.sampling.stop_token_ids})

    @cached_property
    def manifest(self) -> Manifest:
        """The tensors that the model has; see ``Sampler.manifest``."""
        return manifest(self.model)

    def use(self, sampling: Sampling) -> None:
        """Change the sampling settings; see ``Sampler.use``."""
        super().use(sampling)
        self.prompts = PromptMaker(self.tokenizer, self._prompting, max_prompt_tokens=sampling.max_prompt_tokens)

    def lengths(self, problems: pl.DataFrame) -> list[int]:
        """Return the length of each problem's prompt (tokens); see ``Sampler.lengths``."""
        return [len(prompt) for prompt in self.checked(problems)]

    def probe(self) -> list[float]:
        """Return the log-probabilities of the most probable tokens after fixed prompts; see ``Sampler.probe``."""
        sampling, length = self.sampling, min(PROBE_TOKENS, self.sampling.max_prompt_tokens)
        tokens = np.random.default_rng(0).integers(len(self.tokenizer), size=(PROBES, length))
        requests = [Request(prompt_ids=prompt, seed=0, max_new_tokens=1) for prompt in tokens.tolist()]
        self.sampling = Sampling(temperature=0.0, max_new_tokens=1, max_prompt_tokens=length)
        try:
            answered = dict(filter(None, self._generate(requests, as_it_is)))
        finally:
            self.sampling = sampling
        return [float(answered[index].logprobs[0]) for index in range(PROBES)]

    def checked(self, problems: pl.DataFrame) -> list[list[int]]:
        """Return the prompts of problems; refuse problems that cannot be answered or scored."""
        self.faults.check()
        self.scorer.check(problems["verifier"].to_list())
        named = zip(problems["problem_id"].to_list(), problems["prompt"].to_list(), strict=True)
        return [self.prompts.ids(problem_id, text) for problem_id, text in named]

    def _answers(self, feed: Feed) -> Iterator[pa.RecordBatch | None]:
        requests: list[Any] = []
        groups: list[Any] = []
        """The group of each request."""

        def take() -> None:
            for problems, draw in feed.take():
                for row, prompt in enumerate(self.checked(problems)):
                    group = OpenGroup(self, problems[row : row + 1], prompt, draw, first=len(requests))
                    requests.extend(group.requests)
                    groups.extend([group] * len(group.requests))

        def control(index: int, response: Response) -> Request | Response:
            decided: Request | Response = groups[index].control(index, response)
            return decided

        scoring = Scoring(self.scorer, self.faults, self.columns())
        failure: RolloutError | None = None
        while feed and failure is None:
            requests, groups = [], []
            try:
                take()
                # Closed here and not when garbage-collected, since its requests would continue until then.
                with closing(self._generate(requests, control)) as finished:
                    for one in finished:
                        if one is not None:
                            feed.unfinished -= 1
                            group = groups[one[0]]
                            whole = group.finished(*one)
                            if whole is not None:
                                scoring.submit(group, whole)
                                # A stream may last as long as a run, so finished groups are dropped.
                                for index in range(group.first, group.first + group.draw.samples):
                                    requests[index] = groups[index] = None
                        for _, batch in scoring.ready():
                            yield batch
                        yield None
                        take()
            except RolloutError as error:
                # If the engine fails, its complete groups are still returned.
                failure = error
            # Neither new groups nor a sync wait for verdicts.
            while scoring and (failure is not None or not feed):
                for _, batch in scoring.within(TICK_SECONDS):
                    yield batch
                yield None
        if failure is not None:
            raise failure

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        """Yield the responses to requests as they finish, each once ``control`` accepts it as finished.

        An engine that decodes in this process yields None after each step in which none has finished. If the sampler
        may be replicated, requests may be added whenever this is suspended. Closing the iterator early must free what
        unfinished requests hold.
        """
        raise NotImplementedError


class OpenGroup:
    """A problem of a feed being answered: its requests, and the group that their responses form."""

    def __init__(
        self, sampler: LocalSampler, problem: pl.DataFrame, prompt: list[int], draw: Draw, *, first: int
    ) -> None:
        self.problem, self.first, self.draw = problem, first, draw
        self._sampler, self._sampling, self._prompt = sampler, sampler.sampling, prompt
        self._row = problem.row(0, named=True)
        most = sampler.sampling.max_new_tokens
        requests = [
            Request(
                prompt_ids=prompt,
                seed=response_seed(draw.seed, draw.phase, draw.step, self._row["problem_id"], sample),
                max_new_tokens=min(draw.max_new_tokens or most, most),
                messages=sampler.prompts.messages(self._row["prompt"]) if sampler.prompts.chat else (),
            )
            for sample in range(draw.first_sample, draw.first_sample + draw.samples)
        ]
        if draw.max_new_tokens is None:
            self.requests, self._control = controlled(requests, sampler.sampling, sampler.tokenizer)
        else:
            self.requests, self._control = requests, as_it_is
        self.heard: list[tuple[int, Response]] = []
        """The engine's answers with the indices of their requests; they determine the state of the group."""
        self._finished: dict[int, Response] = {}

    def control(self, index: int, response: Response) -> Request | Response:
        """The ``Continue`` of these requests."""
        self.heard.append((index, response))
        return self._control(index - self.first, response)

    def finished(self, index: int, response: Response) -> Group | None:
        """Record a finished response; return the group if it is complete."""
        self._finished[index] = response
        if len(self._finished) < self.draw.samples:
            return None
        responses = [response for _, response in sorted(self._finished.items())]
        # Batch decoding is several times cheaper than one call per response.
        unread = [r.ids for r in responses if r.text is None]
        decoded = iter(self._sampler.tokenizer.batch_decode(unread, skip_special_tokens=True))
        return Group(
            problem_id=self._row["problem_id"],
            prompt_ids=self._prompt,
            responses=responses,
            texts=[next(decoded) if r.text is None else r.text for r in responses],
        )

    def items(self, group: Group) -> list[Item]:
        """Return the responses to score: aborted ones earn 0 and are not scored."""
        verifier, answer, metadata = self._row["verifier"], self._row["answer"], self._row.get("metadata") or ""
        return [
            Item(verifier=verifier, response=text, answer=answer, metadata=metadata)
            for response, text in zip(group.responses, group.texts, strict=True)
            if response.finish_reason != "aborted"
        ]

    def rows(self, columns: Columns, group: Group, verdicts: Sequence[Verdict]) -> pa.RecordBatch:
        """Return the rows of the group; a length penalty is subtracted from the rewards of right responses."""
        penalty, phase = self._sampling.length_penalty, self.draw.phase
        if penalty is not None:
            verdicts = [
                replace(verdict, reward=penalty.reward(verdict.reward, tokens=len(response.ids), phase=phase))
                for verdict, response in zip(verdicts, group.responses, strict=True)
            ]
        return columns.batch(group, verdicts, draw=self.draw, version=self._sampler.weights_version)


class Scoring:
    """Groups that are being scored; scored groups are yielded as rows."""

    def __init__(self, scorer: Scorer, faults: Faults, columns: Columns) -> None:
        self._scorer, self._faults, self._columns = scorer, faults, columns
        self._waiting: dict[Future[list[Verdict]], tuple[OpenGroup, Group]] = {}

    def submit(self, group: OpenGroup, whole: Group) -> None:
        """Start scoring a complete group."""
        self._waiting[self._scorer.submit(group.items(whole), hold=True)] = group, whole

    def ready(self) -> Iterator[tuple[OpenGroup, pa.RecordBatch]]:
        """Yield the groups scored by now; a group with responses that hang does not block others."""
        if self._waiting:
            self._scorer.flush(held=BUFFER_SECONDS)
        for future in [waiting for waiting in self._waiting if waiting.done()]:
            group, whole = self._waiting.pop(future)
            try:
                verdicts = future.result()
            except ProblemError as error:
                whole, verdicts = self._faults.lost(whole, error), []
            else:
                self._faults.add({}, scored=bool(verdicts))
            scored = iter(verdicts)
            # Aborted responses were not scored.
            every = [Verdict(reward=0.0) if r.finish_reason == "aborted" else next(scored) for r in whole.responses]
            yield group, group.rows(self._columns, whole, every)

    def within(self, seconds: float | None) -> Iterator[tuple[OpenGroup, pa.RecordBatch]]:
        """Wait for a verdict for at most ``seconds``, and yield the groups scored by then."""
        self._scorer.flush()
        wait(self._waiting, timeout=seconds, return_when=FIRST_COMPLETED)
        yield from self.ready()

    def rest(self) -> Iterator[tuple[OpenGroup, pa.RecordBatch]]:
        """Wait for all remaining groups and yield each once it is scored."""
        while self._waiting:
            yield from self.within(None)

    def __bool__(self) -> bool:
        return bool(self._waiting)


def controlled(requests: Sequence[Request], sampling: Sampling, tokenizer: Any) -> tuple[list[Request], Continue]:
    """Apply the generation control of the settings to requests.

    Args:
        requests: Requests to sample; ``max_new_tokens`` of each is its whole budget, including an inserted phrase.

    Returns:
        The initial requests, and the function that decides whether a response is finished.
    """
    cut = sampling.interruption
    if cut is None:
        return list(requests), as_it_is
    phrase = list(tokenizer(cut.phrase, add_special_tokens=False)["input_ids"])
    if not phrase:
        raise RolloutError(f"interruption.phrase is {cut.phrase!r}, of which the tokenizer makes no token")
    needed = cut.highest + len(phrase) + 1
    if any(request.max_new_tokens < needed for request in requests):
        raise RolloutError(
            f"interruption comes at up to {cut.highest} tokens and inserts {len(phrase)}; max_new_tokens must be at "
            f"least {needed}, which leaves one for the answer"
        )
    tag = re.search(r"</[^<>\s]+>$", cut.phrase.strip())
    begun: dict[int, tuple[Response, list[int]]] = {}

    def follow(index: int, response: Response) -> Request | Response:
        if index in begun:
            first, inserted = begun.pop(index)
            lost = response.finish_reason == "aborted" and not len(response.ids)
            if lost and response.failure == ABANDONED:
                # The first part was generated all the same.
                return replace(first, finish_reason="aborted", failure=ABANDONED)
            return response if lost else _joined(first, inserted, response, tokenizer)
        if response.finish_reason != "length":
            return response
        # A closing tag may be a special token.
        closed = tag is not None and tag[0] in tokenizer.decode(response.ids, skip_special_tokens=False)
        request, inserted = requests[index], [] if closed else phrase
        left = request.max_new_tokens - len(response.ids) - len(inserted)
        # A response tokenized from a server's text may be longer than requested.
        if left < 1:
            return response
        begun[index] = response, inserted
        return Request(
            prompt_ids=[*request.prompt_ids, *response.ids.tolist(), *inserted],
            seed=hashed(f"{request.seed}/continued") >> 1,
            max_new_tokens=left,
        )

    return [replace(r, max_new_tokens=drawn_length(r.seed, cut)) for r in requests], follow


def _joined(first: Response, inserted: Sequence[int], last: Response, tokenizer: Any) -> Response:
    """Join the part before an interruption, the inserted tokens and the part after it."""
    before = np.concatenate([first.ids, np.array(inserted, np.int32)])
    ids = np.concatenate([before, last.ids])
    scored = len(first.logprobs) == len(first.ids) and len(last.logprobs) == len(last.ids)
    parts = [first.logprobs, np.zeros(len(inserted), np.float32), last.logprobs]
    sampled = np.ones(len(ids), np.bool_)
    sampled[len(first.ids) : len(before)] = False
    # Only the engine knows where a stop text cut the second part.
    text = None if last.text is None else tokenizer.decode(before, skip_special_tokens=True) + last.text
    return Response(
        ids=ids,
        logprobs=np.concatenate(parts) if scored else np.zeros(0, np.float32),
        finish_reason=last.finish_reason,
        text=text,
        sampled=sampled if inserted else None,
        retokenized=first.retokenized or last.retokenized,
        failure=last.failure,
        versions=joined_versions(first.versions, last.versions, at=len(before)),
    )


def drawn_length(seed: int, cut: Interruption) -> int:
    """Return the length (tokens) at which a response is interrupted: uniform, and determined by its seed alone."""
    return cut.lowest + hashed(f"{seed}/interrupted") % (cut.highest - cut.lowest + 1)


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
        RolloutError: A chat template or a beginning-of-sequence token was requested and the tokenizer has none; or
            rendering its template does not end.
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
            # Some tokenizers also append an end-of-sequence token, which must not come before a response.
            wanted = tokenizer("a")["input_ids"][:1] == [self._bos] or None
        self._wants_bos = wanted
        self._made: dict[str, list[int]] = {}

    def _try_template(self) -> None:
        """Render one short prompt in a process with limits: a template is a program by the model's author."""
        values = {"messages": self.messages("a"), "add_generation_prompt": True, **self._prompting.chat_options}
        try:
            template = self._tokenizer.get_chat_template(self._prompting.chat_options.get("chat_template"))
            values = {**self._tokenizer.special_tokens_map, **values}
            given = json.dumps({"template": template, "values": values, "seconds": CPU_SECONDS, "bytes": MEMORY})
        except Exception:
            # If this is not a template or a plain value, the real rendering reports that.
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
        """Return a hash of the texts of problems' prompts, independent of their order and length."""
        digest = hashlib.sha256()
        for problem_id, text in sorted(problems.select("problem_id", "prompt").iter_rows()):
            digest.update(json.dumps([problem_id, self._rendered(problem_id, text), self._wants_bos]).encode())
        return digest.hexdigest()[:16]

    def ids(self, problem_id: str, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        # Keyed by text, since two tables may use one id for two prompts.
        if text not in self._made:
            ids = list(self._tokenizer(self._rendered(problem_id, text), add_special_tokens=False)["input_ids"])
            # Start with the beginning-of-sequence token once, or without it, as wanted.
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
            # A template is a program by the model's author and may raise anything.
            raise RolloutError(
                f"problem {problem_id}: the tokenizer's chat template cannot be rendered ({reason_of(error)}); use "
                "another prompting, such as template: plain"
            ) from None
        return rendered


@cache
def _ends(given: str) -> bool:
    """Return whether a template renders within the limits of ``template_trial``."""
    try:
        run = [sys.executable, "-I", template_trial.__file__]
        # Use wall time, too, since a machine may be busy or have no limits.
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
    """Return the tokens that end a model's responses: those of its generation config and of its tokenizer."""
    from transformers import GenerationConfig

    stated = {tokenizer.eos_token_id}
    try:
        ends = GenerationConfig.from_pretrained(model).eos_token_id
    except (OSError, ValueError):
        # Many models have no generation config.
        ends = None
    stated |= set(ends) if isinstance(ends, list | tuple) else {ends}
    return sorted(token for token in stated if token is not None)
