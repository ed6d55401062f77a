"""What a running server can do: each finding says what follows from it for a sampler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import RolloutError
from ..models import load_tokenizer
from ..sampling import Response
from . import chat, completions
from .client import Client, Failed, Refused
from .probe import SEEDS, Probe
from .served import served_name
from .several import Servers
from .workers import in_parallel

OK, NO, NOT_KNOWN = "ok", "no", "not known"

NEEDED = ("reachable", "model", "a protocol", "seeds differ", "max_tokens")
"""Without these a server measures neither difficulty nor quality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found out.

    Attributes:
        name: What was asked.
        verdict: ``ok``, ``no`` or ``not known``.
        meaning: What follows from it.
    """

    name: str
    verdict: str
    meaning: str


def usable(findings: list[Finding]) -> bool:
    """Return whether a server can measure difficulty and evaluate.

    Args:
        findings: What ``check`` found.
    """
    verdicts = {finding.name: finding.verdict for finding in findings}
    return all(verdicts.get(name, NOT_KNOWN) == OK for name in NEEDED)


def check(
    base_url: str, model: str, *, api_key: str | None = None, served_model: str | None = None,
    timeout_seconds: float = 60.0,
) -> list[Finding]:  # fmt: skip
    """Ask a server what it can do; about 100 requests of at most 8 tokens.

    Args:
        model: Directory or name of the model whose tokenizer is used with it.
        api_key: Sent as a bearer token.
        served_model: The model's name there.
        timeout_seconds: Deadline of one answer.

    Returns:
        The findings; they end where the server cannot be used.

    Raises:
        RolloutError: The address is not valid or the tokenizer cannot be loaded.
    """
    client = Client(base_url, api_key=api_key, timeout_seconds=timeout_seconds)
    tokenizer = load_tokenizer(model)
    findings = []
    try:
        name = served_name(Servers([client]), model, served_model)
    except RolloutError as error:
        reached = "has no model" in str(error)
        findings.append(Finding(name="reachable", verdict=OK if reached else NO, meaning=str(error)))
        return [*findings, Finding(name="model", verdict=NO, meaning=str(error))] if reached else findings
    findings.append(Finding(name="reachable", verdict=OK, meaning=f"{client.base_url} answers"))
    findings.append(Finding(name="model", verdict=OK, meaning=f"it is asked for {name}"))
    probe = Probe(client, tokenizer, model=model, served_model=name)
    try:
        findings += _protocols(probe)
        if findings[-1].verdict == OK:
            for question, ask in _QUESTIONS.items():
                findings += _asked(question, ask, probe)
    finally:
        client.close()
    return findings


def _asked(question: str, ask: Callable[[Probe], Iterator[Finding]], probe: Probe) -> list[Finding]:
    """Return what one question finds; a server that fails at it cannot do it."""
    found: list[Finding] = []
    try:
        found.extend(ask(probe))
    except (RolloutError, Refused, Failed) as error:
        found.append(Finding(name=question, verdict=NO, meaning=str(error)))
    return found


def _protocols(probe: Probe) -> Iterator[Finding]:
    """Try both protocols, and go on with completions where there is a choice."""
    works = []
    for protocol in (chat, completions):
        name = protocol.ROUTE.partition("/")[0]
        probe.protocol = protocol
        try:
            probe.sample()
        except (RolloutError, Refused, Failed) as error:
            yield Finding(name=name, verdict=NO, meaning=str(error))
        else:
            works.append(protocol)
            yield Finding(name=name, verdict=OK, meaning=f"--protocol {name} can be used")
    if works:
        probe.protocol = works[-1]
    yield Finding(
        name="a protocol", verdict=OK if works else NO,
        meaning="the rest was asked with " + works[-1].ROUTE if works else "nothing can be sampled",
    )  # fmt: skip


def _tokens(probe: Probe) -> Iterator[Finding]:
    response = probe.sample()
    yield Finding(
        name="token ids", verdict=NO if response.retokenized else OK,
        meaning="texts are tokenized here, which may split them differently than the policy did (column retokenized)"
        if response.retokenized else "responses are what the policy sampled",
    )  # fmt: skip
    yield Finding(
        name="log-probabilities", verdict=OK if len(response.logprobs) else NO,
        meaning="one per token" if len(response.logprobs) else "the column logprobs stays empty",
    )  # fmt: skip


def _tempered(probe: Probe) -> Iterator[Finding]:
    """A token that is sampled at two temperatures has two log-probabilities, if they are those it is sampled with."""
    name = "tempered log-probabilities"
    values: list[dict[int, float]] = []
    for temperature in (1.0, 0.5):
        first = [probe.sample(seed=seed, tokens=1, temperature=temperature) for seed in SEEDS]
        values.append({int(r.ids[0]): float(r.logprobs[0]) for r in first if len(r.ids) and len(r.logprobs)})
    shared = values[0].keys() & values[1].keys()
    if not shared or max(abs(values[0][token]) for token in shared) < 0.01:
        yield Finding(name=name, verdict=NOT_KNOWN, meaning="treat them as those of temperature 1")
        return
    apart = max(abs(values[0][token] - values[1][token]) for token in shared)
    yield Finding(
        name=name, verdict=OK if apart > 0.001 else NO,
        meaning="they are those of the distribution sampled from" if apart > 0.001
        else "they are those of temperature 1; start vLLM with --logprobs-mode processed_logprobs",
    )  # fmt: skip


def _seeds(probe: Probe) -> Iterator[Finding]:
    once = probe.alone
    repeated = all(map(_same, once, [probe.sample(seed=seed) for seed in SEEDS]))
    yield Finding(
        name="seeds repeat", verdict=OK if repeated else NO,
        meaning="the same seeds give the same tokens" if repeated else "runs cannot be repeated token for token",
    )  # fmt: skip
    differ = len({tuple(r.ids.tolist()) for r in once}) > 1
    yield Finding(
        name="seeds differ", verdict=OK if differ else NO,
        meaning="other seeds give other tokens" if differ
        else "responses to one problem are copies of each other, so pass rates would be 0 or 1",
    )  # fmt: skip


def _lengths(probe: Probe) -> Iterator[Finding]:
    for seed in SEEDS:
        # The reader refuses a response that is longer, or shorter though it ended by its length.
        probe.sample(seed=seed, tokens=1 + seed % 4)
    yield Finding(name="max_tokens", verdict=OK, meaning="no response is longer than was asked for")


def _stops(probe: Probe) -> Iterator[Finding]:
    name = "stop texts"
    for text in (_text(probe, response) for response in probe.alone):
        stop = text[len(text) // 2 : len(text) // 2 + 1]
        if stop.isalnum():
            stopped = [_text(probe, probe.sample(seed=s, stop=(stop,))) for s in SEEDS]
            right = not any(stop in one for one in stopped)
            yield Finding(
                name=name, verdict=OK if right else NO,
                meaning="responses end before them" if right else "responses go on after them; do not use --stop",
            )  # fmt: skip
            return
    yield Finding(name=name, verdict=NOT_KNOWN, meaning="no response had a letter or digit to stop at")


def _greedy(probe: Probe) -> Iterator[Finding]:
    responses = [probe.sample(seed=seed, temperature=0.0) for seed in (1, 2)]
    same = _same(*responses)
    yield Finding(
        name="temperature 0", verdict=OK if same else NO,
        meaning="gives one response whatever the seed" if same else "is not greedy: responses differ",
    )  # fmt: skip


def _parallel(probe: Probe) -> Iterator[Finding]:

    def one(index: int, halt: threading.Event) -> Response:
        del halt
        return probe.sample(seed=SEEDS[index])

    together = dict(in_parallel(len(SEEDS), one, threads=len(SEEDS)))
    same = all(_same(response, together[index]) for index, response in enumerate(probe.alone))
    yield Finding(
        name="in parallel", verdict=OK if same else NO,
        meaning="responses do not depend on other requests" if same
        else "tokens depend on the batch, so runs cannot be repeated token for token",
    )  # fmt: skip


def _defaults(probe: Probe) -> Iterator[Finding]:
    """Whether a generation config of the server restricts what is sampled, or each request overrides it."""
    name = "no hidden defaults"
    try:
        first, *others = (probe.sample(seed=seed, top_k=1) for seed in SEEDS)
        narrowed = all(_same(first, other) for other in others)
    except RolloutError:
        narrowed = False
    yield Finding(
        name="top_k", verdict=OK if narrowed else NO,
        meaning="is respected" if narrowed else "is not respected; do not use --top-k or --min-p",
    )  # fmt: skip
    again, bare = ([probe.sample(seed=seed, explicit=explicit) for seed in SEEDS] for explicit in (True, False))
    repeats, same = (all(map(_same, probe.alone, other)) for other in (again, bare))
    if not (repeats and narrowed and probe.takes_neutral):
        yield Finding(
            name=name, verdict=NOT_KNOWN,
            meaning="responses may come from a narrower distribution; start vLLM with --generation-config vllm",
        )  # fmt: skip
    else:
        yield Finding(
            name=name, verdict=OK,
            meaning="requests that set no top_k or penalties are not restricted" if same
            else "the generation config restricts requests that set nothing; those of this sampler override it",
        )  # fmt: skip


def _tokenizer(probe: Probe) -> Iterator[Finding]:
    theirs, mine = probe.tokenized()
    agree = theirs in (mine, len(mine))
    verdict = NOT_KNOWN if theirs is None else OK if agree else NO
    meaning = {
        OK: "splits a prompt like the tokenizer of --model",
        NO: f"it makes {theirs} of a prompt, the tokenizer of --model {mine}: --model must name the model it serves",
        NOT_KNOWN: "the server does not say how it splits a prompt",
    }
    yield Finding(name="tokenizer", verdict=verdict, meaning=meaning[verdict])


_QUESTIONS = {
    "token ids": _tokens, "tempered log-probabilities": _tempered, "seeds repeat": _seeds, "max_tokens": _lengths,
    "stop texts": _stops, "temperature 0": _greedy, "in parallel": _parallel, "no hidden defaults": _defaults,
    "tokenizer": _tokenizer,
}  # fmt: skip


def _same(left: Response, right: Response) -> bool:
    return bool(np.array_equal(left.ids, right.ids))


def _text(probe: Probe, response: Response) -> str:
    return (
        str(probe.tokenizer.decode(response.ids, skip_special_tokens=True)) if response.text is None else response.text
    )
