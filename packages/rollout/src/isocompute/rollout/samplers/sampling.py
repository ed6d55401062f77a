"""Settings of sampling and of engines, and the requests and responses that samplers exchange.

Every response has a seed, so that batch order, batch size, engines and restarts do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..contract.settings import Count, Positive, Whole, made_of, settings
from ..errors import RolloutError

DTYPES = ("float32", "bfloat16", "float16")
ABANDONED = "it was abandoned before its end"
"""Failure of a response whose pipe was emptied before it finished."""
CPU_BATCHED_TOKENS = 16_384
CUDA_BATCHED_TOKENS = 8_192


@settings(RolloutError)
class Interruption:
    """Forced interruption (ScaleRL): a response that reaches a randomly drawn length is cut.

    A phrase that asks for the answer is inserted, and the policy continues from there.
    """

    lowest: Count = 10_000
    """Shortest length (tokens) at which a response is interrupted."""
    highest: Count = 12_000
    """Longest such length; each response's own is drawn uniformly between the two, from its seed."""
    phrase: str = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    """Text inserted; its tokens are marked as not sampled."""

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise RolloutError(f"lowest is {self.lowest}; it must be at most highest, which is {self.highest}")
        if not self.phrase.strip():
            raise RolloutError(f"phrase is {self.phrase!r}; it must be a text that asks for the final answer")


@settings(RolloutError)
class LengthPenalty:
    """DAPO's soft over-long penalty, as ScaleRL compares it with interruption; off by default.

    A response of L tokens has the penalty clip((longest − L) / margin − 1, −1, 0): none up to ``longest − margin``
    tokens, −1 from ``longest`` on, linear between (DAPO, arXiv 2503.14476, section 3.4). As in ScaleRL (arXiv
    2510.13786, appendix A.10: 14,000 and 2,000 tokens) it applies only to right responses, those with reward 1, so that
    rewards stay between 0 and 1; DAPO applies it to all. It applies only in phase ``train``: evaluation and difficulty
    measure what is right, at any length.

    With ``longest=10`` and ``margin=4`` a right response of 6 tokens earns 1, one of 8 earns 0.5, one of 10 or more 0.
    """

    longest: Count
    """Length (tokens) from which a right response earns nothing."""
    margin: Count
    """How many tokens before it the penalty begins."""

    def __post_init__(self) -> None:
        if self.margin > self.longest:
            raise RolloutError(f"margin is {self.margin}; it must be at most longest, which is {self.longest}")

    def reward(self, reward: float, *, tokens: int, phase: str) -> float:
        """Return the reward of a response with its penalty; inserted tokens count as length."""
        if phase != "train" or reward != 1.0:
            return reward
        return reward + min(0.0, max(-1.0, (self.longest - tokens) / self.margin - 1.0))


@settings(RolloutError)
class Sampling:
    """Settings of sampling, the same for every engine."""

    temperature: float = 1.0
    """Softmax temperature: 0, or from 0.01 to below 100. At 0 the most probable token is taken each time, top_p, top_k
    and min_p leave nothing out, and log-probabilities are those of temperature 1."""
    max_new_tokens: Count = 1024
    """Longest response (tokens), its end-of-sequence token included."""
    max_prompt_tokens: Count = 1024
    """Longest prompt (tokens)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the most probable tokens that together have this probability, above 0 and up to 1; log-probabilities
    are those of the distribution that is left. The order is temperature, ``min_p``, ``top_k``, ``top_p``."""
    top_k: Whole = 0
    """Sample from this many of the most probable tokens; 0 for all."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Sample from tokens at least this share as probable as the most probable one; 0 for all."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts at which a response ends; the text that ended it is part of the tokens, not of the text."""
    stop_token_ids: tuple[Whole, ...] = ()
    """Tokens at which a response ends, besides the end-of-sequence tokens of the tokenizer and of the model's
    generation config."""
    keep_text: bool = False
    """Whether the table has a column ``text``."""
    interruption: Interruption | None = None
    """Forced interruption, or None."""
    length_penalty: LengthPenalty | None = None
    """A penalty on long right responses in phase ``train``, the rival of interruption, or None."""

    def __post_init__(self) -> None:
        # Below 0.01, vLLM would sample at 0.01, and other engines at the given temperature.
        if not (self.temperature == 0 or 0.01 <= self.temperature < 100):
            raise RolloutError(f"temperature is {self.temperature!r}; it must be 0, or at least 0.01 and below 100")
        if self.interruption is not None and self.interruption.highest >= self.max_new_tokens:
            raise RolloutError(
                f"interruption.highest is {self.interruption.highest}, and max_new_tokens is {self.max_new_tokens}: it "
                "must leave room for the phrase and an answer"
            )


def sampling_from(plain: Mapping[str, Any]) -> Sampling:
    """Make sampling settings from plain values, as in JSON, YAML and ``dataclasses.asdict``."""
    return made_of(Sampling, plain, RolloutError, "sampling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The arguments of one call of ``Sampler.sample``, except for the problems; see there."""

    samples: int
    seed: int
    step: int
    phase: str = "train"
    run_id: str = ""
    first_sample: int = 0
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One response to be sampled.

    Attributes:
        seed: ``response_seed``.
        messages: The prompt as chat messages (``role``, ``content``); only for servers that take chats.
    """

    prompt_ids: list[int]
    seed: int
    max_new_tokens: int
    messages: Sequence[Mapping[str, str]] = ()


Versions = tuple[tuple[int, int], ...]
"""Weights versions of a response's tokens: pairs of first token and version; the first pair is for token 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response.

    Attributes:
        ids: Its token ids, int32, including a sampled end-of-sequence token.
        logprobs: Log-probability of each token (nats, of the distribution sampled from), float32, or none at all.
        finish_reason: Why it ended: ``stop``, ``length`` or ``aborted``.
        text: Its text if the engine returns one (without the stop text); None if tokens are to be decoded.
        sampled: Whether the policy sampled each token; None if it sampled all.
        retokenized: Whether the tokens were made from a server's text.
        failure: Why an aborted response has no tokens.
        versions: The weights versions that sampled its tokens, if the engine reports them.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: str
    text: str | None = None
    sampled: NDArray[np.bool_] | None = None
    retokenized: bool = False
    failure: str | None = None
    versions: Versions = ()


def joined_versions(first: Versions, last: Versions, *, at: int) -> Versions:
    """Join the versions of two responses; the second one begins at token ``at`` of the whole."""
    later = [(at + start, version) for start, version in last]
    if first and later and later[0][1] == first[-1][1]:
        del later[0]
    return (*first, *later)


def aborted(failure: str) -> Response:
    """Return the response to a request at which the engine failed."""
    return Response(
        ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), finish_reason="aborted", failure=failure
    )


Continue = Callable[[int, Response], Request | Response]
"""Called with a request's index and the response to it. Returns either the next request for the same index (as after a
forced interruption) or the finished response."""

Finished = Generator[tuple[int, Response] | None, None, None]
"""Indices of requests and their finished responses, in order of completion; None after a decoding step in which none
has finished. Closing it aborts the rest."""


def as_it_is(index: int, response: Response) -> Request | Response:
    """Accept every response as finished: the ``Continue`` without generation control."""
    del index
    return response


def response_seed(seed: int, phase: str, step: int, problem_id: str, sample: int) -> int:
    """Return the seed of a response: a 63-bit hash of what identifies it within a run.

    It does not depend on n or the batch, so runs that differ only in these share random numbers (common random
    numbers). The arguments are those of ``Sampler.sample``; ``sample`` is the index of the response among those to its
    problem.
    """
    return hashed(f"{seed}/{phase}/{step}/{problem_id}/{sample}") >> 1


def hashed(key: str) -> int:
    """Hash a text to 64 bits."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


@settings(RolloutError)
class EngineConfig:
    """Settings of an engine. None takes the default of the profile, for CPU or CUDA (``resolved``)."""

    profile: Literal["auto", "cpu", "cuda"] = "auto"
    """``cpu``, ``cuda``, or ``auto``: ``cuda`` if there is a CUDA device."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    """Type of weights and KV cache: ``float32``, ``bfloat16``, ``float16``, or ``auto``: the model's own type, or 16
    bits for a model in ``float32``, as in vLLM."""
    float32_head: bool | None = None
    """Whether logits are in float32 even if ``dtype`` is not (vLLM's ``head_dtype``), for a learner with a float32
    head; off by default."""
    max_concurrent: Count | None = None
    """Most responses generated at a time."""
    max_batched_tokens: Count | None = None
    """Most tokens in one forward pass; activation memory is proportional to it."""
    chunked_prefill: bool | None = None
    """Whether long prompts are prefilled in parts. Off on CPU, where seeds need whole prompts."""
    prefix_caching: bool | None = None
    """Whether the responses to a problem share its prompt's KV cache."""
    cuda_graphs: bool | None = None
    """Whether CUDA graphs are captured, which takes a minute and speeds up small batches."""
    async_scheduling: bool | None = None
    """Whether the next step is scheduled while one runs."""
    tensor_parallel: Count | None = None
    """Number of GPUs that share a model; 1 by default."""
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of the GPU's memory that the engine may use (about 0.4 next to a learner on the same GPU); on CPU the
    fraction of the free memory."""
    kv_cache_gib: Positive | None = None
    """Size of the KV cache (GiB); by default all remaining memory on CUDA. On CPU it is enough for ``max_concurrent``
    of the longest requests, but at most half of the remaining memory."""
    sleep: Annotated[int, Field(ge=0, le=2)] | None = None
    """Whether the engine frees the GPU for a learner after each training batch. 0: no. 1: its weights move to host
    memory. 2: they are discarded, and a sync must come before anything is sampled."""

    def resolved(self, *, longest: int, cuda: bool, responses: int | None = None) -> Engine:
        """Return the settings with all defaults filled in.

        Args:
            longest: Longest request (tokens), prompt and response.
            responses: Most responses requested at a time; an engine for fewer than ``max_concurrent`` uses less memory.
        """
        if self.profile == "cuda" and not cuda:
            raise RolloutError(
                "the engine profile is cuda, and this process has no CUDA device; it must be cpu or auto"
            )
        if self.profile == "cpu" and cuda:
            raise RolloutError(
                "the engine profile is cpu, and vLLM is installed in its build for CUDA; it must be auto"
            )
        for name in () if cuda else ("chunked_prefill", "cuda_graphs", "async_scheduling"):
            if getattr(self, name):
                why = " because a seed needs a whole prompt there" if name == "chunked_prefill" else ""
                raise RolloutError(f"engine {name} is on, which the CPU profile does not have{why}; it must be off")
        chunked = cuda if self.chunked_prefill is None else self.chunked_prefill
        limit = self.max_concurrent or (512 if cuda else 1024)
        concurrent = limit if responses is None else max(1, min(limit, responses))
        default_tokens = max(CUDA_BATCHED_TOKENS if cuda else CPU_BATCHED_TOKENS, concurrent, 0 if chunked else longest)
        batched = self.max_batched_tokens or default_tokens
        if not chunked and batched < longest:
            raise RolloutError(
                f"engine max_batched_tokens is {batched}; without chunked prefill it must be at least the longest "
                f"request, max_prompt_tokens + max_new_tokens = {longest}"
            )
        if batched < concurrent:
            raise RolloutError(
                f"engine max_batched_tokens is {batched}; it must be at least max_concurrent = {concurrent}"
            )
        if not cuda and self.sleep:
            raise RolloutError(
                f"engine sleep is {self.sleep}, and vLLM on CPU frees nothing when it sleeps; it must be 0"
            )
        if not cuda and (self.tensor_parallel or 1) > 1:
            raise RolloutError(f"engine tensor_parallel is {self.tensor_parallel}; on CPU it must be 1")
        return Engine(
            device="cuda" if cuda else "cpu",
            dtype=self.dtype or ("auto" if cuda else "float32"),
            float32_head=bool(self.float32_head),
            max_concurrent=concurrent,
            max_batched_tokens=batched,
            chunked_prefill=chunked,
            prefix_caching=cuda if self.prefix_caching is None else self.prefix_caching,
            cuda_graphs=cuda if self.cuda_graphs is None else self.cuda_graphs,
            async_scheduling=self.async_scheduling if cuda else False,
            tensor_parallel=self.tensor_parallel or 1,
            memory_share=self.memory_share or 0.9,
            kv_cache_gib=self.kv_cache_gib,
            sleep=self.sleep or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Settings with defaults filled in; see ``EngineConfig``. None is left to vLLM and to the available memory."""

    device: str
    dtype: str
    float32_head: bool
    max_concurrent: int
    max_batched_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    cuda_graphs: bool
    async_scheduling: bool | None
    tensor_parallel: int
    memory_share: float
    kv_cache_gib: float | None
    sleep: int

    @property
    def block_tokens(self) -> int:
        """Tokens in one block of vLLM's KV cache."""
        return 16 if self.device == "cuda" else 128


def engine_from(plain: Mapping[str, Any]) -> EngineConfig:
    """Make engine settings from plain values, as in JSON, YAML and a command line."""
    return made_of(EngineConfig, plain, RolloutError, "engine")
