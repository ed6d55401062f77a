"""The FLOPs of an update and this machine's matrix-product rate: their ratio is the utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import torch

CPU_SIZE = 512
DEVICE_SIZE = 8192
REPEATS = 8


@cache
def matmul_rate(device: str = "cpu", dtype: torch.dtype = torch.float32) -> float:
    """Measure the rate of a square matrix product, once per process, device and type.

    On a CPU the factors are 512 × 512, which fit into its caches, and the product uses this process's threads. On other
    devices they are 8,192 × 8,192 (an H100: 52 TFLOP/s in float32, 778 in bfloat16). The fastest of a few products
    counts, since other work on the machine only slows them down.

    Returns:
        Operations per second; a multiplication and an addition count as two.
    """
    on_cpu = torch.device(device).type == "cpu"
    size = CPU_SIZE if on_cpu else DEVICE_SIZE
    # An H100 multiplies evenly spaced numbers a tenth faster. The default generator's state belongs to the run.
    generator = torch.Generator(device).manual_seed(0)
    left = torch.randn(size, size, device=device, generator=generator).to(dtype)
    right = left.T.contiguous()
    with torch.no_grad():
        seconds = min(_timed(left, right) for _ in range(1 + REPEATS))
    if not on_cpu:
        # Memory that torch caches would be missing in an update.
        del left, right
        torch.cuda.empty_cache()
    return 2.0 * size**3 / seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Weight counts of a transformer, from which its FLOPs follow.

    Attributes:
        body: Weights of the layers that multiply each token; of a mixture's experts only those that a token uses.
        head: Weights of the output head, which multiply the hidden states that predict sampled tokens.
        width: Width of all attention heads together.
        frozen: Weights of ``body`` that are not learnt, as beneath an adapter; if any, the head is not learnt either.
    """

    body: int
    head: int
    layers: int
    width: int
    frozen: int = 0


def shape_of(policy: Any) -> Shape | None:
    """Return the shape of a transformers model; None without attention heads, where the formulas do not hold."""
    config = policy.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return None
    tables = {id(policy.get_input_embeddings().weight), id(policy.get_output_embeddings().weight)}
    weights = [p for p in policy.parameters() if p.dim() >= 2 and id(p) not in tables]
    return Shape(
        body=sum(_multiplying(weight, config) for weight in weights),
        frozen=sum(_multiplying(weight, config) for weight in weights if not weight.requires_grad),
        head=policy.get_output_embeddings().weight.numel(),
        layers=config.num_hidden_layers,
        width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
    )


def _multiplying(weight: torch.Tensor, config: Any) -> int:
    """Weights that multiply a token; a tensor of all experts counts only those that a token uses."""
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts and weight.dim() == 3 and len(weight) == experts:
        return int(weight.numel()) * int(config.num_experts_per_tok) // int(experts)
    return int(weight.numel())


def training_operations(shape: Shape, *, tokens: int, predictions: int, keys: int) -> float:
    """FLOPs of forward and backward: 6 per weight and token that it multiplies, 12·L·w·K for attention.

    As in PaLM (arXiv 2204.02311, appendix B), but with the keys that tokens actually attend to, not the full length for
    each. A weight that is not learnt takes 4, since it needs no gradient. Recomputation to save memory is not counted.

    Args:
        tokens: Tokens that pass forward and backward; a prompt that responses share counts once.
        predictions: Predicted tokens: those that were sampled.
        keys: K, the keys that each token attends to, summed over ``tokens``: l(l + 1)/2 for one sequence of l tokens.

    Returns:
        Operations; a multiplication and an addition count as two.
    """
    forward = forward_operations(shape, tokens=tokens, predictions=predictions, keys=keys)
    frozen = shape.frozen * tokens + (shape.head * predictions if shape.frozen else 0)
    return 3.0 * forward - 2.0 * frozen


def forward_operations(shape: Shape, *, tokens: int, predictions: int, keys: int) -> float:
    """FLOPs of a forward pass: 2 per weight and token that it multiplies, 4·L·w·K for attention."""
    return 2.0 * (shape.body * tokens + shape.head * predictions) + 4.0 * shape.layers * shape.width * keys


def _timed(left: torch.Tensor, right: torch.Tensor) -> float:
    wait = torch.cuda.synchronize if left.is_cuda else torch.cpu.synchronize
    wait(left.device)
    began = perf_counter()
    torch.mm(left, right)
    wait(left.device)
    return perf_counter() - began
