"""How an engine runs: settings with a profile for CPU and one for CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import RolloutError

PROFILES = ("auto", "cpu", "cuda")
SLEEPS = (0, 1, 2)
DTYPES = ("auto", "float32", "bfloat16", "float16")
CPU_BATCHED_TOKENS = 16_384
CUDA_BATCHED_TOKENS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine runs. None takes the profile's default.

    | setting | `cpu` | `cuda` |
    |---|---|---|
    | `dtype` | `float32` | `auto`: the model's own, 16 bits if that is `float32` |
    | `max_concurrent` | 1,024 | 512 |
    | `max_batched_tokens` | 16,384, or the longest request | 8,192 |
    | `chunked_prefill`, `prefix_caching`, `cuda_graphs` | off | on |
    | `async_scheduling` | off | as vLLM decides |
    | `sleep` | – | 0 |
    | `memory_share` | of free memory: 0.9 | of the GPU: 0.9 |

    Attributes:
        profile: ``cpu``, ``cuda``, or ``auto``: ``cuda`` where there is a CUDA device.
        dtype: Type of weights and KV cache: ``float32``, ``bfloat16``, ``float16``, or ``auto``: the model's own,
            and 16 bits for a model in ``float32``, as vLLM has it.
        max_concurrent: Most responses generated at a time.
        max_batched_tokens: Most tokens in one forward pass; activations are proportional to it.
        chunked_prefill: Whether long prompts are prefilled in parts. Not on CPU, where seeds need whole prompts.
        prefix_caching: Whether the responses to a problem share its prompt's KV cache.
        cuda_graphs: Whether CUDA graphs are captured, which takes a minute and speeds up small batches.
        async_scheduling: Whether the next step is scheduled while one runs.
        tensor_parallel: Number of GPUs that share a model; 1 by default.
        memory_share: Share of the GPU's memory that the engine may take (about 0.4 beside a learner on the same GPU),
            on CPU the share of the free memory.
        kv_cache_gib: Size of the KV cache (GiB); by default all that is left on CUDA, and on CPU what
            ``max_concurrent`` of the longest requests need, but at most half of what is left.
        sleep: Whether the engine leaves the GPU to a learner after each training batch: 0 not; 1 its weights move to
            the host's memory; 2 they are discarded, so that a sync must come before anything is sampled.

    Raises:
        RolloutError: A value is out of its range, or cannot be combined with another.
    """

    profile: str = "auto"
    dtype: str | None = None
    max_concurrent: int | None = None
    max_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    cuda_graphs: bool | None = None
    async_scheduling: bool | None = None
    tensor_parallel: int | None = None
    memory_share: float | None = None
    kv_cache_gib: float | None = None
    sleep: int | None = None

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise RolloutError(f"engine profile is {self.profile!r}; it must be one of {', '.join(PROFILES)}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise RolloutError(f"engine dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        for name in ("max_concurrent", "max_batched_tokens", "tensor_parallel"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise RolloutError(f"engine {name} is {value!r}; it must be a whole number of at least 1")
        for name in ("chunked_prefill", "prefix_caching", "cuda_graphs", "async_scheduling"):
            if not isinstance(getattr(self, name), bool | None):
                raise RolloutError(f"engine {name} is {getattr(self, name)!r}; it must be true or false")
        if self.sleep is not None and (isinstance(self.sleep, bool) or self.sleep not in SLEEPS):
            raise RolloutError(
                f"engine sleep is {self.sleep!r}; it must be 0 (stay), 1 (weights offloaded) or 2 (weights discarded)"
            )
        if self.memory_share is not None and not 0 < number("memory_share", self.memory_share) <= 1:
            raise RolloutError(f"engine memory_share is {self.memory_share}; it must lie above 0 and be at most 1")
        if self.kv_cache_gib is not None and not number("kv_cache_gib", self.kv_cache_gib) > 0:
            raise RolloutError(f"engine kv_cache_gib is {self.kv_cache_gib}; it must be above 0")

    def resolved(self, *, longest: int, cuda: bool) -> Engine:
        """Return concrete values.

        Args:
            longest: Longest request (tokens), prompt and response.
            cuda: Whether the engine runs on a CUDA device.

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
        concurrent = self.max_concurrent or (512 if cuda else 1024)
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
        dtype: As there, as are the others.
        max_concurrent: Most responses at a time.
        max_batched_tokens: Most tokens in one forward pass.
        chunked_prefill: Whether prompts are prefilled in parts.
        prefix_caching: Whether prompts share their KV cache.
        cuda_graphs: Whether CUDA graphs are captured.
        async_scheduling: Whether scheduling overlaps with a step; None as vLLM decides.
        tensor_parallel: GPUs that share a model.
        memory_share: Share of the memory.
        kv_cache_gib: Size of the KV cache (GiB); None as the memory allows.
        sleep: Level of sleep after each training batch; 0 for none.
    """

    device: str
    dtype: str
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


def number(name: str, value: Any) -> float:
    """Return a setting that must be a number.

    Raises:
        RolloutError: It is not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RolloutError(f"engine {name} is {value!r}; it must be a number")
    return float(value)
