"""What samplers are asked for and what they answer: settings, draws, requests, responses."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RolloutError
from ..scoring.length_penalty import LengthPenalty


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Forced interruption (ScaleRL): a response that is still going on at a drawn length is cut.

    A phrase is inserted that asks for the answer, and the policy goes on from there.

    Attributes:
        lowest: Shortest length (tokens) at which a response is interrupted.
        highest: Longest such length; each response's own is drawn uniformly between the two, from its seed.
        phrase: Text inserted; its tokens are marked as not sampled.

    Raises:
        RolloutError: The lengths are not in order, or the phrase is empty.
    """

    lowest: int = 10_000
    highest: int = 12_000
    phrase: str = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"

    def __post_init__(self) -> None:
        for name in ("lowest", "highest"):
            _check_whole(f"interruption.{name}", getattr(self, name), least=1)
        if self.lowest > self.highest:
            raise RolloutError(
                f"interruption is drawn between {self.lowest} and {self.highest} tokens; "
                "the first must be at most the second"
            )
        if not (isinstance(self.phrase, str) and self.phrase.strip()):
            raise RolloutError(
                f"interruption.phrase is {self.phrase!r}; it must be a text that asks for the final answer"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How responses are sampled, the same for every engine.

    Attributes:
        temperature: Softmax temperature: 0, or from 0.01 to below 100. At 0 the most probable token is taken each time,
            top_p, top_k and min_p leave nothing out, and log-probabilities are those of temperature 1.
        max_new_tokens: Longest response (tokens), its end-of-sequence token included.
        max_prompt_tokens: Longest prompt (tokens).
        top_p: Sample from the most probable tokens that together have this probability, above 0 and up to 1;
            log-probabilities are those of the distribution that is left. The order is temperature, ``min_p``,
            ``top_k``, ``top_p``.
        top_k: Sample from this many of the most probable tokens; 0 for all.
        min_p: Sample from tokens at least this share as probable as the most probable one; 0 for all.
        stop: Texts at which a response ends; the text that ended it is part of the tokens, not of the text.
        stop_token_ids: Tokens at which a response ends, besides the end-of-sequence tokens of the tokenizer and of the
            model's generation config.
        keep_text: Whether the table has a column ``text``.
        interruption: Forced interruption, or None.
        length_penalty: A penalty on long right responses in phase ``train``, the rival of interruption, or None.

    Raises:
        RolloutError: A value is out of its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 1024
    max_prompt_tokens: int = 1024
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    keep_text: bool = False
    interruption: Interruption | None = None
    length_penalty: LengthPenalty | None = None

    def __post_init__(self) -> None:
        # Below 0.01, vLLM would sample at 0.01, and other engines as asked.
        if not (_is_number(self.temperature) and (self.temperature == 0 or 0.01 <= self.temperature < 100)):
            raise RolloutError(f"temperature is {self.temperature!r}; it must be 0, or at least 0.01 and below 100")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise RolloutError(f"top_p is {self.top_p!r}; it must lie above 0 and be at most 1")
        if not (_is_number(self.min_p) and 0 <= self.min_p < 1):
            raise RolloutError(f"min_p is {self.min_p!r}; it must be at least 0 and below 1")
        for name, least in (("max_new_tokens", 1), ("max_prompt_tokens", 1), ("top_k", 0)):
            _check_whole(name, getattr(self, name), least=least)
        self._check_stops()
        if not isinstance(self.keep_text, bool):
            raise RolloutError(f"keep_text is {self.keep_text!r}; it must be true or false")
        if not isinstance(self.length_penalty, LengthPenalty | None):
            raise RolloutError(
                f"length_penalty is {self.length_penalty!r}; it must have the settings {_names(LengthPenalty)}"
            )
        cut = self.interruption
        if cut is None:
            return
        if not isinstance(cut, Interruption):
            raise RolloutError(f"interruption is {cut!r}; it must have the settings {_names(Interruption)}")
        if cut.highest >= self.max_new_tokens:
            raise RolloutError(
                f"interruption comes at up to {cut.highest} tokens, and max_new_tokens is {self.max_new_tokens}: "
                "it must leave room for the phrase and an answer"
            )

    def _check_stops(self) -> None:
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise RolloutError(f"stop is {self.stop!r}; it must be a list of texts, none of them empty")
        if not isinstance(self.stop_token_ids, tuple):
            raise RolloutError(f"stop_token_ids is {self.stop_token_ids!r}; it must be a list of token ids")
        for token in self.stop_token_ids:
            _check_whole("a token of stop_token_ids", token, least=0)


def sampling_from(settings: Mapping[str, Any]) -> Sampling:
    """Make the settings of a sampler from plain values, as JSON, YAML and ``dataclasses.asdict`` hold them.

    Args:
        settings: Fields of ``Sampling``; lists for its tuples, mappings or None for ``interruption`` and
            ``length_penalty``.

    Raises:
        RolloutError: A key is unknown or a value is out of its range.
    """
    values = _known("sampling", settings, Sampling)
    for name in ("stop", "stop_token_ids"):
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name])
    if isinstance(values.get("interruption"), Mapping):
        values["interruption"] = Interruption(**_known("interruption", values["interruption"], Interruption))
    if isinstance(values.get("length_penalty"), Mapping):
        penalty = _known("length_penalty", values["length_penalty"], LengthPenalty)
        for name in ("longest", "margin"):
            if name not in penalty:
                raise RolloutError(f"length_penalty lacks the setting {name!r}; it has {_names(LengthPenalty)}")
        values["length_penalty"] = LengthPenalty(**penalty)
    return Sampling(**values)


def _known(what: str, settings: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return settings whose names a dataclass has."""
    if not isinstance(settings, Mapping):
        raise RolloutError(f"{what} is {settings!r}; it must have the settings {_names(kind)}")
    for name in settings:
        if name not in _names(kind).split(", "):
            raise RolloutError(f"{what} has no setting {name!r}; it has {_names(kind)}")
    return dict(settings)


def _names(kind: Any) -> str:
    return ", ".join(f.name for f in fields(kind))


def _is_number(value: object) -> bool:
    # YAML reads 1e-3, without a point, as text.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        all_of_them = ", where 0 takes all tokens" if name == "top_k" else ""
        raise RolloutError(f"{name} is {value!r}; it must be a whole number of at least {least}{all_of_them}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What one call of ``sample`` asks for, besides the problems; see there.

    Attributes:
        samples: Responses per problem.
        seed: The run's seed.
        step: Update step, or cumulative rollouts for phase ``eval``.
        first_sample: Index of a problem's first response.
    """

    samples: int
    seed: int
    step: int
    phase: str
    run_id: str
    first_sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One response to be sampled.

    Attributes:
        prompt_ids: Token ids of its prompt.
        seed: Its own seed (``seeds.response_seed``).
        max_new_tokens: Most tokens to sample.
        messages: The prompt as chat messages (``role``, ``content``); only for servers that take chats.
    """

    prompt_ids: list[int]
    seed: int
    max_new_tokens: int
    messages: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response.

    Attributes:
        ids: Its token ids, int32, the end-of-sequence token included where it was sampled.
        logprobs: Log-probability of each token (nats, of the distribution sampled from), float32, or none at all.
        finish_reason: Why it ended: ``stop``, ``length`` or ``aborted``.
        text: Its text where the engine gives it (a stop text is cut off); None where tokens are decoded.
        sampled: For each token whether the policy sampled it; None when it sampled all.
        retokenized: Whether the tokens were made from a server's text.
        failure: Why an aborted one has no tokens.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: str
    text: str | None = None
    sampled: NDArray[np.bool_] | None = None
    retokenized: bool = False
    failure: str | None = None


def aborted(failure: str) -> Response:
    """Return the response to a request that the engine failed."""
    return Response(
        ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), finish_reason="aborted", failure=failure
    )


Continue = Callable[[int, Response], Request | Response]
"""Called with a request's index and the response to it: either the next request for the same index (as after a forced
interruption) or the finished response."""

Finished = Generator[tuple[int, Response], None, None]
"""The indices of requests and their finished responses, in the order in which they finish; closing it ends the rest."""


def as_it_is(index: int, response: Response) -> Request | Response:
    """Take every response as finished: the ``Continue`` without any control of generation."""
    del index
    return response
