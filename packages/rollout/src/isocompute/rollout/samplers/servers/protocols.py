"""OpenAI's two protocols: with completions prompts go out as token ids, with chat as messages that the server renders.

A server may refuse the fields of a request that change nothing that is sampled. Its answer becomes a response once
everything that can be counted in it agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import RolloutError
from ..sampling import Request, Response, Sampling
from .client import Failed, Refused, Server

ROUNDING = 1e-3
"""A log-probability may lie above 0 by so much: servers round."""


class Wrong(Failed):
    """An answer that cannot be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The statements of both protocols about a response; None where a server makes none.

    Attributes:
        ids: Its token ids, as vLLM gives them.
        tokens: The text of each token.
        logprobs: The log-probability of each token.
        prompt_ids: The prompt's token ids, as vLLM gives them.
        completion_tokens: How many tokens the server counts.
        stopped_at: The stop text or the token that ended it.
    """

    finish_reason: str
    text: str | None
    ids: Sequence[int] | None
    tokens: Sequence[str]
    logprobs: Sequence[float | None]
    prompt_ids: Sequence[int] | None
    completion_tokens: int | None
    stopped_at: str | int | None


def only_choice(answer: Any) -> Mapping[str, Any]:
    """Return an answer's one choice.

    Raises:
        Wrong: It is not an answer, or has another number of choices.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
        raise Wrong("its answer has no choices, so it is not OpenAI's protocol")
    if len(choices) != 1:
        raise Wrong(f"its answer has {len(choices)} choices, and 1 was asked for")
    choice: Mapping[str, Any] = choices[0]
    return choice


def counted(answer: Mapping[str, Any]) -> int | None:
    """Return how many tokens a server says that it sampled, or None."""
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def stopped_at(choice: Mapping[str, Any]) -> str | int | None:
    """Return the stop text or the token that ended a response, where a server says so."""
    stop = choice.get("stop_reason", choice.get("matched_stop"))
    return stop if isinstance(stop, str | int) else None


class Reader:
    """Turns answers into responses.

    Args:
        tokenizer: Tokenizes the text of servers that give no token ids.
        vocabulary: Tokens that the model has.
        ends: Tokens at which a response ends.
        stops: Whether stop texts were asked for.
    """

    def __init__(self, tokenizer: Any, *, vocabulary: int, ends: Sequence[int], stops: bool) -> None:
        self._tokenizer, self._vocabulary, self._ends, self._stops = tokenizer, vocabulary, ends, stops

    def response(self, answer: Reply, request: Request) -> Response:
        """Return the response that an answer holds.

        Raises:
            Wrong: It ended for another reason than ``stop`` or ``length``, or its counts do not agree.
        """
        if answer.finish_reason not in {"stop", "length"}:
            raise Wrong(f"its response finished with {answer.finish_reason!r} instead of 'stop' or 'length'")
        if answer.ids is None and answer.text is None:
            raise Wrong("its answer holds neither text nor token ids")
        given = answer.ids is not None
        ids, split = (self._given(answer.ids), True) if answer.ids is not None else self._tokenized(answer)
        count = len(ids) if given else answer.completion_tokens
        if given and answer.completion_tokens not in {None, len(ids)}:
            raise Wrong(f"it counts {answer.completion_tokens} tokens and gives {len(ids)}")
        if count is not None and count > request.max_new_tokens:
            raise Wrong(f"its response has {count} tokens, and at most {request.max_new_tokens} were asked for")
        if count is not None and answer.finish_reason == "length" and count < request.max_new_tokens:
            raise Wrong(
                f"its response was cut off after {count} of {request.max_new_tokens} tokens; the server has a limit "
                "of its own, such as max_new_tokens of a generation config"
            )
        # Tokens are decoded as those of every other engine; only the server knows where a stop text began.
        at_text = self._stops and answer.finish_reason == "stop" and not (len(ids) and ids[-1] in self._ends)
        return Response(
            ids=ids,
            logprobs=self._logprobs(answer, len(ids)) if split else np.zeros(0, np.float32),
            finish_reason=answer.finish_reason,
            text=answer.text if at_text or not given else None,
            retokenized=not given,
        )

    def _given(self, ids: Sequence[int]) -> NDArray[np.int32]:
        """Check token ids."""
        array = np.asarray(ids if len(ids) else np.zeros(0, np.int64))
        if array.ndim != 1 or array.dtype.kind != "i":
            raise Wrong("its token_ids are not a list of integers")
        for token in array[(array < 0) | (array >= self._vocabulary)][:1]:
            raise Wrong(f"its response holds token {token}, and the vocabulary has {self._vocabulary}")
        return array.astype(np.int32)

    def _tokenized(self, answer: Reply) -> tuple[NDArray[np.int32], bool]:
        """Tokenize a text; the end-of-sequence token, which a text does not show, is added where it was sampled.

        Returns:
            The tokens, and whether the server says that it sampled the same ones.
        """
        text, reported = answer.text or "", list(answer.tokens)
        if self._tokenizer.is_fast:
            made = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ids, places = list(made["input_ids"]), [end for _, end in made["offset_mapping"]]
        else:
            ids, places = list(self._tokenizer(text, add_special_tokens=False)["input_ids"]), []
        end = self._tokenizer.eos_token_id
        if isinstance(answer.stopped_at, int):
            end = answer.stopped_at
        elif self._stops:
            # A stop text may have ended it: only some servers say which it was.
            end = None
        ended = answer.finish_reason == "stop" and end is not None
        # It has many spellings, and some servers give it none.
        seen = reported[:-1] if ended else reported
        same = "".join(seen) == text and list(accumulate(len(token) for token in seen)) == places
        return np.array([*ids, end] if ended else ids, np.int32), same

    def _logprobs(self, answer: Reply, count: int) -> NDArray[np.float32]:
        """Return the log-probabilities, if there is one for each token."""
        none = np.zeros(0, np.float32)
        if not len(answer.logprobs):
            return none
        try:
            values = np.asarray(answer.logprobs, np.float64)
        except (TypeError, ValueError):
            raise Wrong("its log-probabilities are not numbers") from None
        if len(values) != count:
            raise Wrong(f"it gives {len(values)} log-probabilities for {count} tokens")
        if (values > ROUNDING).any():
            raise Wrong(f"it gives a log-probability of {values[values > ROUNDING][0]:g}; none may be above 0")
        return values.astype(np.float32) if np.isfinite(values).all() else none


WRONG_REQUEST = {400, 422}
"""Statuses with which servers refuse fields that they do not know."""

NEUTRAL: Mapping[str, Any] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Servers fill in what a request does not set from the model's generation config; these values restrict nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of a request.

    Attributes:
        fields: Those that every server must take.
        optional: Groups of fields that a strict server may refuse, since nothing that is sampled depends on them: the
            name of a group and its fields.
        instead: For some groups the fields sent where they are refused.
        own: Names in ``fields`` that OpenAI's protocol does not have; what is sampled depends on them.
    """

    fields: Mapping[str, Any]
    optional: Mapping[str, Mapping[str, Any]]
    instead: Mapping[str, Mapping[str, Any]]
    own: tuple[str, ...] = ()

    def without(self, refused: frozenset[str]) -> dict[str, Any]:
        """Return the body without some groups."""
        sent = dict(self.fields)
        for group, fields in self.optional.items():
            sent |= self.instead.get(group, {}) if group in refused else fields
        return sent

    def blamed(self, reason: str, refused: frozenset[str]) -> frozenset[str]:
        """Return the groups to leave out next: those that a refusal names, or else all.

        Args:
            refused: Groups already left out.

        Raises:
            RolloutError: The refusal names a field that changes what is sampled.
        """
        words = set(re.findall(r"\w+", reason))
        left = {group: fields for group, fields in self.optional.items() if group not in refused}
        named = frozenset(group for group, fields in left.items() if words & set(fields))
        for name in self.own:
            if name in words and not named:
                raise RolloutError(
                    f"the server refuses {name} ({reason}), and without it the responses would be others: do not ask "
                    "for it, or use a server that knows it, such as vLLM's"
                )
        return named or frozenset(left)


def body(
    sampling: Sampling, request: Request, *, served_model: str, stop_token_ids: list[int], length: str = "max_tokens"
) -> Body:
    """Return what both protocols have in common.

    Args:
        length: The field that limits the length.
    """
    fields: dict[str, Any] = {
        "model": served_model,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "n": 1,
    }
    own = {name: value for name in ("top_k", "min_p") if (value := getattr(sampling, name))}
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    optional = {name: {name: value} for name, value in NEUTRAL.items() if name not in own}
    if sampling.stop_token_ids:
        own["stop_token_ids"] = stop_token_ids
    elif stop_token_ids:
        # A server ends at its model's own end-of-sequence tokens without being told.
        optional["stop_token_ids"] = {"stop_token_ids": stop_token_ids}
    optional["return_token_ids"] = {"return_token_ids": True}
    instead: dict[str, Mapping[str, Any]] = {}
    if length == "max_tokens":
        fields["max_tokens"] = request.max_new_tokens
    else:
        optional["max_tokens"] = {"max_tokens": request.max_new_tokens}
        instead["max_tokens"] = {length: request.max_new_tokens}
    return Body(fields={**fields, **own}, optional=optional, instead=instead, own=tuple(own))


def ask(server: Server, route: str, body: Body, *, halt: Any) -> Any:
    """Ask a server, without the optional fields that it refuses.

    Args:
        server: It remembers which groups of fields it refuses.
        route: Below its address.
        halt: Ends the exchange as soon as it is set.

    Raises:
        RolloutError: The server refuses a field that changes what is sampled.
        Refused: The server says that the request is wrong even without the optional fields.
        Failed: The server failed.
    """
    refused, first = server.refused, None
    while True:
        try:
            answer = server.client.ask(route, body.without(refused), halt=halt)
        except Refused as error:
            first = first or error
            more = body.blamed(str(error), refused) if error.status in WRONG_REQUEST else frozenset()
            if not more:
                raise first from None
            refused |= more
        else:
            server.refused |= refused
            return answer


def chat_body(
    sampling: Sampling,
    request: Request,
    *,
    served_model: str,
    stop_token_ids: list[int],
    chat_options: Mapping[str, Any],
) -> Body:
    """Return what to send for a request; ``chat_options`` are further arguments of the chat template."""
    # Servers that know only the newer name say so; those that know only the older would ignore the newer.
    common = body(
        sampling, request, served_model=served_model, stop_token_ids=stop_token_ids, length="max_completion_tokens"
    )
    fields = {**common.fields, "messages": [dict(message) for message in request.messages]}
    own = common.own
    if chat_options:
        fields["chat_template_kwargs"] = dict(chat_options)
        own = (*own, "chat_template_kwargs")
    return replace(common, fields=fields, own=own, optional={**common.optional, "logprobs": {"logprobs": True}})


def read_chat(answer: Any, request: Request) -> Reply:
    """Return what an answer says.

    Raises:
        RolloutError: The server's chat template makes another prompt of the messages than the tokenizer here.
        Wrong: It is not an answer of this protocol.
    """
    choice = only_choice(answer)
    prompt_ids = answer.get("prompt_token_ids")
    if prompt_ids is not None and prompt_ids != request.prompt_ids:
        raise RolloutError(
            f"the server's chat template makes a prompt of {len(prompt_ids)} tokens where the one of --model makes "
            f"{len(request.prompt_ids)}, or other tokens: use the protocol completions, or the same template"
        )
    try:
        message = choice["message"]
        reported = (choice.get("logprobs") or {}).get("content") or []
        ids = choice.get("token_ids")
        # A reasoning parser takes the thinking out of the text; where there are token ids they are decoded instead.
        parsed = message.get("reasoning") or message.get("reasoning_content") or message.get("tool_calls")
        return Reply(
            finish_reason=str(choice["finish_reason"]),
            text=None if ids is not None and parsed else message.get("content") or "",
            ids=ids,
            tokens=[entry["token"] for entry in reported],
            logprobs=[entry["logprob"] for entry in reported],
            prompt_ids=prompt_ids,
            completion_tokens=counted(answer),
            stopped_at=stopped_at(choice),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"its answer is not one of the chat protocol ({error})") from None


def completions_body(
    sampling: Sampling,
    request: Request,
    *,
    served_model: str,
    stop_token_ids: list[int],
    chat_options: Mapping[str, Any],
) -> Body:
    """Return what to send for a request; its prompt was rendered here, with the options of the template."""
    del chat_options
    common = body(sampling, request, served_model=served_model, stop_token_ids=stop_token_ids)
    return replace(
        common,
        fields={**common.fields, "prompt": request.prompt_ids},
        optional={**common.optional, "logprobs": {"logprobs": 1}},
    )


def read_completion(answer: Any, request: Request) -> Reply:
    """Return what an answer says.

    Raises:
        Wrong: It is not an answer of this protocol, or it is one to another prompt.
    """
    choice = only_choice(answer)
    try:
        reported = choice.get("logprobs") or {}
        reply = Reply(
            finish_reason=str(choice["finish_reason"]),
            text=choice.get("text"),
            ids=choice.get("token_ids"),
            tokens=reported.get("tokens") or [],
            logprobs=reported.get("token_logprobs") or [],
            prompt_ids=choice.get("prompt_token_ids"),
            completion_tokens=counted(answer),
            stopped_at=stopped_at(choice),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"its answer is not one of the completions protocol ({error})") from None
    if reply.prompt_ids is not None and reply.prompt_ids != request.prompt_ids:
        raise Wrong("it answers another prompt than the one that was sent")
    return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One of OpenAI's two ways to ask for a response.

    Attributes:
        route: Path of its endpoint under the server's address.
        body: Makes the body of a request.
        read: Reads the JSON of an answer; raises ``Wrong`` where it is not of this protocol.
    """

    route: str
    body: Callable[..., Body]
    read: Callable[[Any, Request], Reply]


COMPLETIONS = Protocol(route="completions", body=completions_body, read=read_completion)
CHAT = Protocol(route="chat/completions", body=chat_body, read=read_chat)
PROTOCOLS = {"completions": COMPLETIONS, "chat": CHAT}
