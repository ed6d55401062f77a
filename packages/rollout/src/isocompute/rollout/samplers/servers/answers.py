"""A server's answer becomes a response, once everything that can be counted in it agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sampling import Request, Response
from .client import Failed

ROUNDING = 1e-3
"""A log-probability may lie above 0 by so much: servers round."""


class Wrong(Failed):
    """An answer that cannot be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What both protocols say about a response; None where a server does not.

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
    found: Mapping[str, Any] = choices[0]
    return found


def counted(answer: Mapping[str, Any]) -> int | None:
    """Return how many tokens a server says that it sampled, or None."""
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def stopped_at(choice: Mapping[str, Any]) -> str | int | None:
    """Return the stop text or the token that ended a response, where a server says so."""
    found = choice.get("stop_reason", choice.get("matched_stop"))
    return found if isinstance(found, str | int) else None


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

    def response(self, answer: Answer, request: Request) -> Response:
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

    def _tokenized(self, answer: Answer) -> tuple[NDArray[np.int32], bool]:
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

    def _logprobs(self, answer: Answer, count: int) -> NDArray[np.float32]:
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
