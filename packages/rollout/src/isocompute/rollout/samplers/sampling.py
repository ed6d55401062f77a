"""Settings of sampling and of engines, and the requests and responses that samplers exchange.

Every response has a seed, so that batch order, batch size, engines and restarts do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RolloutError
from ..scoring.length_penalty import LengthPenalty

PROFILES = ("auto", "cpu", "cuda")
SLEEPS = (0, 1, 2)
DTYPES = ("auto", "float32", "bfloat16", "float16")
CPU_BATCHED_TOKENS = 16_384
CUDA_BATCHED_TOKENS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Forced interruption (ScaleRL): a response that is still going on at a drawn length is cut.

    A phrase is inserted that asks for the answer, and the policy goes on from there.

    Raises:
        RolloutError: The lengths are not in order, or the phrase is empty.
    """

    lowest: int = 10_000
    """Shortest length (tokens) at which a response is interrupted."""
    highest: int = 12_000
    """Longest such length; each response's own is drawn uniformly between the two, from its seed."""
    phrase: str = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    """Text inserted; its tokens are marked as not sampled."""

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
    """Settings of sampling, the same for every engine.

    Raises:
        RolloutError: A value is out of its range.
    """

    temperature: float = 1.0
    """Softmax temperature: 0, or from 0.01 to below 100. At 0 the most probable token is taken each time, top_p, top_k
    and min_p leave nothing out, and log-probabilities are those of temperature 1."""
    max_new_tokens: int = 1024
    """Longest response (tokens), its end-of-sequence token included."""
    max_prompt_tokens: int = 1024
    """Longest prompt (tokens)."""
    top_p: float = 1.0
    """Sample from the most probable tokens that together have this probability, above 0 and up to 1; log-probabilities
    are those of the distribution that is left. The order is temperature, ``min_p``, ``top_k``, ``top_p``."""
    top_k: int = 0
    """Sample from this many of the most probable tokens; 0 for all."""
    min_p: float = 0.0
    """Sample from tokens at least this share as probable as the most probable one; 0 for all."""
    stop: tuple[str, ...] = ()
    """Texts at which a response ends; the text that ended it is part of the tokens, not of the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens at which a response ends, besides the end-of-sequence tokens of the tokenizer and of the model's
    generation config."""
    keep_text: bool = False
    """Whether the table has a column ``text``."""
    interruption: Interruption | None = None
    """Forced interruption, or None."""
    length_penalty: LengthPenalty | None = None
    """A penalty on long right responses in phase ``train``, the rival of interruption, or None."""

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
    values = known_settings("sampling", settings, Sampling)
    for name in ("stop", "stop_token_ids"):
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name])
    if isinstance(values.get("interruption"), Mapping):
        values["interruption"] = Interruption(**known_settings("interruption", values["interruption"], Interruption))
    if isinstance(values.get("length_penalty"), Mapping):
        penalty = known_settings("length_penalty", values["length_penalty"], LengthPenalty)
        for name in ("longest", "margin"):
            if name not in penalty:
                raise RolloutError(f"length_penalty lacks the setting {name!r}; it has {_names(LengthPenalty)}")
        values["length_penalty"] = LengthPenalty(**penalty)
    return Sampling(**values)


def known_settings(what: str, settings: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return settings whose names a dataclass has.

    Args:
        what: What they are settings of, for an error.
    """
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
    """The arguments of one call of ``Sampler.sample``, besides the problems; see there."""

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
        seed: ``response_seed``.
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


def response_seed(seed: int, phase: str, step: int, problem_id: str, sample: int) -> int:
    """Return the seed of one response: a 63-bit hash of what identifies it within a run.

    n and the batch are not part of it, so runs that differ in these share their luck (common random numbers).

    Args:
        phase: What the response is for: ``train``, ``eval``, ``difficulty``, ``baseline`` or ``canary``.
        step: Update step, or cumulative rollouts for phase ``eval``.
        sample: Index of the response among those to its problem.
    """
    key = f"{seed}/{phase}/{step}/{problem_id}/{sample}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an engine, with a profile for CPU and one for CUDA. None takes the profile's default.

    | setting | `cpu` | `cuda` |
    |---|---|---|
    | `dtype` | `float32` | `auto`: the model's own, 16 bits if that is `float32` |
    | `max_concurrent` | 1,024 | 512 |
    | `max_batched_tokens` | 16,384, or the longest request | 8,192 |
    | `chunked_prefill`, `prefix_caching`, `cuda_graphs` | off | on |
    | `async_scheduling` | off | as vLLM decides |
    | `sleep` | – | 0 |
    | `memory_share` | of free memory: 0.9 | of the GPU: 0.9 |

    Raises:
        RolloutError: A value is out of its range, or cannot be combined with another.
    """

    profile: str = "auto"
    """``cpu``, ``cuda``, or ``auto``: ``cuda`` where there is a CUDA device."""
    dtype: str | None = None
    """Type of weights and KV cache: ``float32``, ``bfloat16``, ``float16``, or ``auto``: the model's own, and 16 bits
    for a model in ``float32``, as vLLM has it."""
    float32_head: bool | None = None
    """Whether logits are in float32 where ``dtype`` is not (vLLM's ``head_dtype``), as for a learner whose head is; off
    by default."""
    max_concurrent: int | None = None
    """Most responses generated at a time."""
    max_batched_tokens: int | None = None
    """Most tokens in one forward pass; activations are proportional to it."""
    chunked_prefill: bool | None = None
    """Whether long prompts are prefilled in parts. Not on CPU, where seeds need whole prompts."""
    prefix_caching: bool | None = None
    """Whether the responses to a problem share its prompt's KV cache."""
    cuda_graphs: bool | None = None
    """Whether CUDA graphs are captured, which takes a minute and speeds up small batches."""
    async_scheduling: bool | None = None
    """Whether the next step is scheduled while one runs."""
    tensor_parallel: int | None = None
    """Number of GPUs that share a model; 1 by default."""
    memory_share: float | None = None
    """Share of the GPU's memory that the engine may take (about 0.4 beside a learner on the same GPU), on CPU the share
    of the free memory."""
    kv_cache_gib: float | None = None
    """Size of the KV cache (GiB); by default all that is left on CUDA, and on CPU what ``max_concurrent`` of the
    longest requests need, but at most half of what is left."""
    sleep: int | None = None
    """Whether the engine leaves the GPU to a learner after each training batch: 0 not; 1 its weights move to the host's
    memory; 2 they are discarded, so that a sync must come before anything is sampled."""

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise RolloutError(f"engine profile is {self.profile!r}; it must be one of {', '.join(PROFILES)}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise RolloutError(f"engine dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        for name in ("max_concurrent", "max_batched_tokens", "tensor_parallel"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise RolloutError(f"engine {name} is {value!r}; it must be a whole number of at least 1")
        for name in ("float32_head", "chunked_prefill", "prefix_caching", "cuda_graphs", "async_scheduling"):
            if not isinstance(getattr(self, name), bool | None):
                raise RolloutError(f"engine {name} is {getattr(self, name)!r}; it must be true or false")
        if self.sleep is not None and (isinstance(self.sleep, bool) or self.sleep not in SLEEPS):
            raise RolloutError(
                f"engine sleep is {self.sleep!r}; it must be 0 (stay), 1 (weights offloaded) or 2 (weights discarded)"
            )
        if self.memory_share is not None and not 0 < _number("memory_share", self.memory_share) <= 1:
            raise RolloutError(f"engine memory_share is {self.memory_share}; it must lie above 0 and be at most 1")
        if self.kv_cache_gib is not None and not _number("kv_cache_gib", self.kv_cache_gib) > 0:
            raise RolloutError(f"engine kv_cache_gib is {self.kv_cache_gib}; it must be above 0")

    def resolved(self, *, longest: int, cuda: bool, responses: int | None = None) -> Engine:
        """Return concrete values.

        Args:
            longest: Longest request (tokens), prompt and response.
            cuda: Whether the engine runs on a CUDA device.
            responses: Most that will be asked for at a time; an engine for fewer than ``max_concurrent`` takes less
                memory.

        Raises:
            RolloutError: The settings do not fit the device or the requests.
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
    """Settings with concrete values; see ``EngineConfig``.

    Attributes:
        device: ``cpu`` or ``cuda``.
        async_scheduling: None as vLLM decides.
        kv_cache_gib: None as the memory allows.
    """

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


def engine_from(settings: Mapping[str, Any]) -> EngineConfig:
    """Make engine settings from plain values, as JSON, YAML and a command line hold them.

    Args:
        settings: Fields of ``EngineConfig``.

    Raises:
        RolloutError: A key is unknown or a value is out of its range.
    """
    known = [f.name for f in fields(EngineConfig)]
    for name in settings:
        if name not in known:
            raise RolloutError(f"the engine has no setting {name}; it has {', '.join(known)}")
    return EngineConfig(**settings)


def settings_of(config: EngineConfig) -> dict[str, Any]:
    """Return the settings that differ from the defaults, as ``engine_from`` takes them."""
    default = asdict(EngineConfig())
    return {name: value for name, value in asdict(config).items() if value != default[name]}


def _number(name: str, value: Any) -> float:
    if not _is_number(value):
        raise RolloutError(f"engine {name} is {value!r}; it must be a number")
    return float(value)
