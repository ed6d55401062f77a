"""The samplers by name; a sampler's library is imported when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import RolloutError, library
from ..scoring.sandbox.process import ScoringConfig
from ..scoring.scorer import Scorer, default_scorer
from .sampling import EngineConfig, Sampling

if TYPE_CHECKING:
    from .base import Sampler
    from .in_flight import InFlightPipe
    from .virtual import VirtualPipe

KINDS = ("vllm", "transformers", "openai")
REPLICATED = ("vllm", "transformers")
"""Samplers that may have several replicas."""
CHEAPER_BELOW, CHEAPER_UP_TO = 5_000_000, 80
"""transformers uses less CPU time than vLLM below this number of parameters and up to this number of tokens of prompt
and response: vLLM's scheduler costs more than such a small model, while transformers copies a growing KV cache, which
costs more for longer sequences (``python -m benchmarks.crossover``, tables in docs/rollout.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kind of sampler and the reason for choosing it, as a phrase."""

    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})"


def cheaper(parameters: int | None, *, longest: int, device: str) -> Choice:
    """Choose the kind of sampler with the lowest cost.

    This is a rule and not a measurement, and it ignores what is installed: a run must not depend on the machine.

    Args:
        parameters: Number of the model's parameters (``weights.stored_parameters``); None if unknown, as for a model on
            the hub.
        longest: Most tokens of a prompt and its response together.
    """
    if device != "cpu":
        return Choice(kind="vllm", reason=f"the device is {device}")
    if parameters is None:
        return Choice(kind="vllm", reason="no safetensors file here says how large the base model is")
    size, most = f"{parameters / 1e6:,.3g} million parameters on a CPU", f"{CHEAPER_BELOW / 1e6:g} million"
    if parameters >= CHEAPER_BELOW:
        return Choice(kind="vllm", reason=f"{size}, {most} or more")
    length = f"sequences of up to {longest:,} tokens"
    if longest > CHEAPER_UP_TO:
        return Choice(kind="vllm", reason=f"{length}, more than {CHEAPER_UP_TO}")
    return Choice(kind="transformers", reason=f"{size}, fewer than {most}, and {length}, at most {CHEAPER_UP_TO}")


def open_sampler(
    kind: str,
    model: str,
    sampling: Sampling,
    *,
    scoring: ScoringConfig | None = None,
    replicas: Mapping[str, Any] | None = None,
    **options: Any,
) -> Sampler:
    """Open a sampler for a model.

    Args:
        kind: ``vllm``, ``transformers``, or ``openai`` (any OpenAI-compatible server; needs the option ``base_url``).
        model: Directory or name of a model in the Hugging Face format.
        scoring: Settings of scoring; by default this process's samplers share a scorer.
        replicas: Options of ``Replicas``, such as ``{"replicas": 2}``, for replicas of ``vllm`` or ``transformers`` in
            separate Ray actors. By default one sampler in this process.

    Raises:
        RolloutError: There is no such kind, its library is not installed, the model cannot be loaded, or a server
            does not answer.
    """
    if replicas is not None:
        if kind not in REPLICATED:
            raise RolloutError(f"a sampler {kind!r} has no replicas; {' and '.join(REPLICATED)} have")
        from .actor import connected_ray
        from .replicas.pool import Replicas

        settings = dict(replicas)
        if "num_gpus" not in settings and (kind == "vllm" or str(options.get("device")).startswith("cuda")):
            shared = (options.get("engine") or EngineConfig()).tensor_parallel or 1
            settings["num_gpus"] = float(shared) if connected_ray().cluster_resources().get("GPU") else 0.0
        opener = partial(open_sampler, kind, model, sampling, scoring=scoring, **options)
        return Replicas(opener, model, sampling, **settings)
    if scoring is not None and scoring != default_scorer().config:
        options["scorer"] = Scorer(scoring)
    if kind == "vllm":
        from .vllm.sampler import VllmSampler

        return VllmSampler(model, sampling, **options)
    if kind == "transformers":
        from .transformers import TransformersSampler

        return TransformersSampler(model, sampling, **options)
    if kind == "openai":
        library("httpx2", extra="openai")
        from .servers.openai import OpenAISampler

        return OpenAISampler(model, sampling, **options)
    raise RolloutError(f"there is no sampler called {kind!r}; there are {', '.join(KINDS)}")


def open_pipe(sampler: Sampler, mode: str, **options: Any) -> InFlightPipe | VirtualPipe:
    """Let a sampler generate during updates.

    Args:
        sampler: It may also answer other requests, such as for an evaluation.
        mode: ``in_flight``: by the wall clock, with replicas (``InFlightPipe``). ``virtual``: on a virtual clock, with
            the sampler ``transformers`` in this process (``VirtualPipe``).
    """
    if mode == "in_flight":
        from .in_flight import InFlightPipe

        return InFlightPipe(sampler, **options)
    if mode == "virtual":
        from .virtual import VirtualPipe

        return VirtualPipe(sampler, **options)
    raise RolloutError(f"there is no mode of a pipe called {mode!r}; there are in_flight and virtual")
