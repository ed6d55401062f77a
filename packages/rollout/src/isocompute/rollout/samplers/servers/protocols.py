"""OpenAI's two protocols: completions take prompts as token ids, chat takes messages that the server renders.

A server may reject fields of a request that do not affect sampling. Its answer becomes a response once everything in it
that can be counted agrees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import RolloutError
from ..sampling import Request, Response
from .client import Failed, Refused, Server

PROTOCOLS = {"completions": "completions", "chat": "chat/completions"}
"""The protocols, and the path of each below a server's address."""
ROUNDING = 1e-3
"""Largest accepted log-probability, which may be above 0 since servers round."""
WRONG_REQUEST = {400, 422}
"""Statuses with which servers reject unknown fields."""
NEUTRAL: Mapping[str, Any] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Values that restrict nothing: servers fill in missing ones from the model's generation config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of a request.

    Attributes:
        fields: Fields that every server must accept.
        optional: Fields that a strict server may reject, since sampling does not depend on them.
        own: Names in ``fields`` that OpenAI's protocol does not have and that affect sampling.
    """

    fields: Mapping[str, Any]
    optional: Mapping[str, Any]
    own: tuple[str, ...]

    def without(self, refused: frozenset[str]) -> dict[str, Any]:
        """Return the body without some optional fields."""
        sent = {**self.fields, **{name: value for name, value in self.optional.items() if name not in refused}}
        if "max_tokens" in self.optional.keys() & refused:
            # Servers that know only the newer name reject the older one; those that know only the older would ignore
            # the newer.
            sent["max_completion_tokens"] = self.optional["max_tokens"]
        return sent

    def blamed(self, reason: str, refused: frozenset[str]) -> frozenset[str]:
        """Return the optional fields to leave out next: those that a rejection names, or else all."""
        words, left = set(re.findall(r"\w+", reason)), self.optional.keys() - refused
        named = left & words
        for name in self.own:
            if name in words and not named:
                raise RolloutError(
                    f"the server refuses {name} ({reason}), and without it the responses would be others: do not ask "
                    "for it, or use a server that knows it, such as vLLM's"
                )
        return frozenset(named or left)


async def ask(server: Server, route: str, body: Body) -> Any:
    """Send a request without the optional fields that the server has rejected, and remember new rejections.

    Raises:
        RolloutError: The server rejects a field that affects sampling.
        Refused: The server says that the request is wrong even without the optional fields.
        Failed: The server failed.
    """
    refused, first = server.refused, None
    while True:
        try:
            answer = await server.ask(route, body.without(refused))
        except Refused as error:
            first = first or error
            more = body.blamed(str(error), refused) if error.status in WRONG_REQUEST else frozenset()
            if not more:
                raise first from None
            refused |= more
        else:
            server.refused |= refused
            return answer


class Wrong(Failed):
    """An answer that cannot be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The contents of an answer in both protocols; None for anything that the server does not report.

    Attributes:
        ids: Its token ids, as vLLM returns them.
        tokens: The text of each token.
        logprobs: The log-probability of each token.
        completion_tokens: The server's count of tokens.
        stopped_at: The stop text or the token that ended it.
    """

    finish_reason: str
    text: str | None
    ids: Sequence[int] | None
    tokens: Sequence[str]
    logprobs: Sequence[float | None]
    completion_tokens: int | None
    stopped_at: str | int | None


def read(answer: Any, request: Request, *, protocol: str) -> Reply:
    """Parse an answer."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise Wrong("its answer has no choices, so it is not OpenAI's protocol")
    if len(choices) != 1:
        raise Wrong(f"its answer has {len(choices)} choices, and 1 was asked for")
    [choice] = choices
    ids, stop = choice.get("token_ids"), choice.get("stop_reason", choice.get("matched_stop"))
    try:
        logprobs, count = choice.get("logprobs") or {}, (answer.get("usage") or {}).get("completion_tokens")
        if protocol == "chat":
            prompt_ids, message = answer.get("prompt_token_ids"), choice["message"]
            reported = logprobs.get("content") or []
            tokens, numbers = [entry["token"] for entry in reported], [entry["logprob"] for entry in reported]
            # A reasoning parser removes the thinking from the text; if there are token ids, they are decoded instead.
            parsed = message.get("reasoning") or message.get("reasoning_content") or message.get("tool_calls")
            text = None if ids is not None and parsed else message.get("content") or ""
        else:
            prompt_ids, text = choice.get("prompt_token_ids"), choice.get("text")
            tokens, numbers = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
        reply = Reply(
            finish_reason=str(choice["finish_reason"]),
            text=text,
            ids=ids,
            tokens=tokens,
            logprobs=numbers,
            completion_tokens=count if isinstance(count, int) else None,
            stopped_at=stop if isinstance(stop, str | int) else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"its answer is not one of the protocol {protocol} ({error})") from None
    if prompt_ids in (None, request.prompt_ids):
        return reply
    if protocol == "chat":
        raise RolloutError(
            f"the server's chat template makes a prompt of {len(prompt_ids)} tokens where the one of --model makes "
            f"{len(request.prompt_ids)}, or other tokens: use the protocol completions, or the same template"
        )
    raise Wrong("it answers another prompt than the one that was sent")


def response_of(
    answer: Reply, request: Request, *, tokenizer: Any, vocabulary: int, ends: Sequence[int], stops: bool
) -> Response:
    """Return the response in an answer; one with inconsistent counts is ``Wrong``.

    Args:
        vocabulary: Number of the model's tokens.
        ends: Tokens that end a response.
        stops: Whether stop texts were requested.
    """
    if answer.finish_reason not in {"stop", "length"}:
        raise Wrong(f"its response finished with {answer.finish_reason!r} instead of 'stop' or 'length'")
    if answer.ids is None and answer.text is None:
        raise Wrong("its answer holds neither text nor token ids")
    given = answer.ids is not None
    if answer.ids is not None:
        ids, split = np.asarray(answer.ids if len(answer.ids) else np.zeros(0, np.int64)), True
        if ids.ndim != 1 or ids.dtype.kind != "i":
            raise Wrong("its token_ids are not a list of integers")
        for token in ids[(ids < 0) | (ids >= vocabulary)][:1]:
            raise Wrong(f"its response holds token {token}, and the vocabulary has {vocabulary}")
    else:
        ids, split = _tokenized(answer, tokenizer, stops=stops)
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
    # Tokens are decoded as for every other engine; only the server knows where a stop text began.
    at_text = stops and answer.finish_reason == "stop" and not (len(ids) and ids[-1] in ends)
    return Response(
        ids=ids.astype(np.int32),
        logprobs=_logprobs(answer, len(ids)) if split else np.zeros(0, np.float32),
        finish_reason=answer.finish_reason,
        text=answer.text if at_text or not given else None,
        retokenized=not given,
    )


def _tokenized(answer: Reply, tokenizer: Any, *, stops: bool) -> tuple[NDArray[Any], bool]:
    """Tokenize a text, and add the end-of-sequence token, which a text does not show, if it was sampled.

    Returns the tokens, and whether the server reports that it sampled the same ones.
    """
    text, reported = answer.text or "", list(answer.tokens)
    if tokenizer.is_fast:
        made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, places = list(made["input_ids"]), [end for _, end in made["offset_mapping"]]
    else:
        ids, places = list(tokenizer(text, add_special_tokens=False)["input_ids"]), []
    end = tokenizer.eos_token_id
    if isinstance(answer.stopped_at, int):
        end = answer.stopped_at
    elif stops:
        # A stop text may have ended it; only some servers say which.
        end = None
    ended = answer.finish_reason == "stop" and end is not None
    # The end-of-sequence token has many spellings, and some servers leave it empty.
    seen = reported[:-1] if ended else reported
    same = "".join(seen) == text and list(accumulate(len(token) for token in seen)) == places
    return np.array([*ids, end] if ended else ids, np.int32), same


def _logprobs(answer: Reply, count: int) -> NDArray[np.float32]:
    """Return the log-probabilities, if there is one per token."""
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
