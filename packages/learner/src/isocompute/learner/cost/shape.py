"""The numbers of a model that its memory depends on, read from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import LearnerError

NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The experts of a layer: a device holds all of them, and a token passes through some.

    Attributes:
        experts: Number of experts.
        per_token: Experts that a token passes through.
        intermediate: Width of an expert.
        shared: Width of the expert that every token passes through; 0 without one.
        dense_layers: Layers that have one feed-forward layer and no experts.
    """

    experts: int
    per_token: int
    intermediate: int
    shared: int
    dense_layers: int

    @property
    def passed(self) -> int:
        """Width that a token passes through."""
        return self.per_token * self.intermediate + self.shared

    def weights(self, hidden: int) -> int:
        """Weights of a layer's experts and of the router, at some width of the residual stream."""
        return 3 * hidden * (self.experts * self.intermediate + self.shared) + hidden * self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a Llama-like model that the memory of an update depends on.

    Attributes:
        layers: Number of layers.
        hidden: Width of the residual stream.
        intermediate: Width of the gated feed-forward layer.
        heads: Number of attention heads.
        key_heads: Number of key and value heads.
        head_size: Width of one head.
        vocabulary: Number of tokens.
        tied: Whether the output head is the table of embeddings.
        mixture: The experts of layers that have such in place of one feed-forward layer; None without.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool = False
    mixture: Mixture | None = None

    @property
    def query_width(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.key_heads * self.head_size

    @property
    def linear(self) -> int:
        """Weights of a layer's matrices, of the largest layer where they differ."""
        attention = 2 * self.hidden * (self.query_width + self.key_width)
        dense = 3 * self.hidden * self.intermediate
        return attention + (self.mixture.weights(self.hidden) if self.mixture else dense)

    @property
    def linears(self) -> int:
        """Weights of the matrices of all layers, those of every expert included."""
        if self.mixture is None:
            return self.layers * self.linear
        fewer = self.mixture.weights(self.hidden) - 3 * self.hidden * self.intermediate
        return self.layers * self.linear - self.mixture.dense_layers * fewer

    @property
    def passed(self) -> int:
        """Width of the feed-forward layers that a token passes through in a layer."""
        return self.mixture.passed if self.mixture else self.intermediate

    @property
    def parameters(self) -> int:
        """Number of parameters; biases, if there are any, are not counted."""
        tables = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return tables + self.linears + 2 * self.layers * self.hidden + self.hidden


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Read a model's numbers from its configuration.

    Args:
        config: Its ``config.json``.

    Raises:
        LearnerError: A number is missing.
    """
    missing = [name for name in NEEDED if not isinstance(config.get(name), int)]
    if missing:
        raise LearnerError(
            f"the model's configuration has no {', '.join(missing)}: memory is predicted for Llama-like models only"
        )
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    return ModelShape(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        intermediate=config["intermediate_size"],
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or hidden // heads,
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
        mixture=_mixture(config),
    )


def _mixture(config: Mapping[str, Any]) -> Mixture | None:
    """The experts, under the names of Mixtral, Qwen and DeepSeek.

    Raises:
        LearnerError: It has experts, and does not say how many a token passes through.
    """
    experts = next((config[n] for n in ("num_local_experts", "num_experts", "n_routed_experts") if config.get(n)), 0)
    if not experts:
        return None
    if not config.get("num_experts_per_tok"):
        raise LearnerError(
            f"the model's configuration has {experts} experts and no num_experts_per_tok: memory is not predicted"
        )
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    every, dense = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
    first = config.get("first_k_dense_replace") or 0
    layers = range(config["num_hidden_layers"])
    return Mixture(
        experts=experts,
        per_token=config["num_experts_per_tok"],
        intermediate=width,
        shared=config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * width,
        dense_layers=sum(layer < first or layer in dense or (layer + 1) % every != 0 for layer in layers),
    )
