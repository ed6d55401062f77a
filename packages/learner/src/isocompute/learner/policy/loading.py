"""Loading a model with all of its weights, or not at all; its tensors by their Hugging Face names."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM

from ..batch.responses import OF_ROWS, Lists, Responses
from ..config import AdapterConfig
from ..contract.files import reason_of
from ..errors import LearnerError
from ..saving.checkpoint import files_of, stored_tensors, tensors_hash
from . import adapter
from .adapter import adapt, begin
from .sharding import Sharding, blocks, copy_into, inside, let_go, own, rows_of, shard, whole

logger = logging.getLogger(__name__)
SAME = 1e-3
"""Largest difference (nats) between log-probabilities in float32, by two ways through a model, that is rounding."""


def load_policy(
    model: str | Path,
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    sharding: Sharding | None = None,
    adapter: AdapterConfig | None = None,
) -> Any:
    """Load a transformers model, in evaluation mode: dropout would make log-probabilities random.

    Args:
        model: A folder or a name, in the Hugging Face format.
        sharding: The ranks that share the model, of which each reads its part and all call this; None: it is whole.
        adapter: What is learnt in place of the weights, which are frozen then; in float32 or better. None: nothing.

    Raises:
        LearnerError: The model cannot be loaded, lacks weights (they would be random), or scales or caps its logits
            after the head, which is computed apart here; or the adapter does not fit it.
    """
    if sharding is None:
        policy = _whole(model, device, dtype)
        policy = policy if adapter is None else adapt(policy, adapter)
    else:
        policy = _shared(model, device, dtype, sharding, adapter)
    if adapter is not None:
        begin(policy)
    policy.eval()
    try:
        with torch.no_grad():
            changed = inside(policy, partial(_changes_logits, device=device))
    except Exception as error:
        raise LearnerError(
            f"a {type(policy).__name__} does not give hidden states and logits as decoder-only models do "
            f"({reason_of(error)}): the base model {model} must be one"
        ) from error
    if changed:
        raise LearnerError(
            f"the base model {model} scales or caps its logits after the output head, which the learner does not "
            "reproduce: use a model whose head gives the logits"
        )
    return policy


def _whole(model: str | Path, device: str, dtype: torch.dtype) -> Any:
    with _refused(model):
        policy, found = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype, output_loading_info=True)
    _refuse_missing(model, found["missing_keys"])
    return policy.to(device)


def _shared(
    model: str | Path, device: str, dtype: torch.dtype, sharding: Sharding, adapter: AdapterConfig | None
) -> Any:
    """The model shared out, without ever being whole on a rank where its files hold its tensors as they are."""
    with _refused(model):
        with _parameters_on_meta():
            policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(model)), dtype=dtype)
        stored = stored_tensors(str(model), policy)
    if stored is not None:
        _refuse_missing(model, tensors(policy).keys() - stored.keys())
    given: Mapping[str, torch.Tensor] = tensors(_whole(model, "cpu", dtype)) if stored is None else {}
    if stored is None:
        logger.warning("every rank loads %s whole before it keeps its share: its files must be converted", model)
    policy = policy if adapter is None else adapt(policy, adapter)
    computed = {name: buffer.clone() for name, buffer in policy.named_buffers()}
    policy = shard(policy, sharding).to_empty(device=device)
    policy.tie_weights()
    for name, buffer in policy.named_buffers():
        buffer.copy_(computed[name])
    for name, tensor in tensors(policy).items():
        rows = rows_of(tensor)
        if stored is None:
            copy_into(tensor, given[name])
        else:
            own(tensor).copy_(stored[name] if rows is None else stored.rows(name, rows))
    return policy


@contextmanager
def _refused(model: str | Path) -> Iterator[None]:
    """Say of whatever goes wrong that the model cannot be loaded."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise LearnerError(f"the base model {model} cannot be loaded ({reason_of(error)})") from None


def _refuse_missing(model: str | Path, names: Collection[str]) -> None:
    missing = sorted(names)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise LearnerError(
            f"the base model {model} has no weights for {', '.join(missing[:3])}{more}: they would be random; "
            "save the model whole"
        )


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Keep parameters that are made meanwhile without memory. Buffers are real: some are computed, and in no file."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        # One that is tied to another stays the same.
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = without_memory
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _changes_logits(policy: Any, device: str) -> bool:
    """Return whether the model post-processes its head's logits, as with Gemma 2, Cohere or Granite."""
    ids = torch.arange(2, device=device)[None]
    mask = torch.ones_like(ids)
    # Not the call of a module, with which the forward pass that this is part of would end.
    whole = policy.forward(input_ids=ids, attention_mask=mask, use_cache=False).logits
    hidden = body(policy)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    head = policy.get_output_embeddings()(hidden)
    return not torch.allclose(whole, head, rtol=1e-3, atol=1e-3)


class WholeTensors(Mapping[str, torch.Tensor]):
    """Tensors by name. A sharded tensor is gathered on every read, so all ranks must read it.

    Args:
        live: The tensors, whole or this rank's shares.
        adapted: Layers whose adapter is added to a tensor as it is read, by the tensor's name.
        dtype: Type in which numbers are given; None: their own.
    """

    def __init__(
        self,
        live: Mapping[str, torch.Tensor],
        *,
        adapted: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._live, self._adapted, self._dtype = live, adapted or {}, dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = whole(self._live[name])
        if name in self._adapted:
            tensor = adapter.merged(tensor, self._adapted[name])
        return tensor.to(self._type(tensor)).contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    def sizes(self) -> dict[str, int]:
        """Bytes of each tensor when it is whole."""
        return {name: tensor.numel() * self._type(tensor).itemsize for name, tensor in self._live.items()}

    def shares(self) -> Iterator[tuple[str, torch.Tensor, slice | None]]:
        """The live tensors: of one that ranks share this one's rows, which are named, and no copy."""
        for name, tensor in self._live.items():
            yield name, own(tensor), rows_of(tensor)

    def _type(self, tensor: torch.Tensor) -> torch.dtype:
        return tensor.dtype if self._dtype is None or not tensor.is_floating_point() else self._dtype


def weights(policy: Any) -> WholeTensors:
    """The ``tensors`` of the model that a policy is, one at a time: with an adapter, W + s·B·A, in the adapter's type.

    Ranks that share it must all take all of them.
    """
    layers = {f"{name}.weight": layer for name, layer in adapter.layers(policy).items()}
    dtype = next((tensor.dtype for tensor in learnt(policy).values()), None) if layers else None
    return WholeTensors(tensors(policy), adapted=layers, dtype=dtype)


def tensors(policy: Any) -> dict[str, torch.Tensor]:
    """The model's tensors by their Hugging Face names, as a saved model has them: one that is tied to another once.

    A model that ties its embeddings has ``model.embed_tokens.weight`` and no ``lm_head.weight``. An adapter is no part
    of them.
    """
    adapted = adapter.layers(policy)
    named = ((adapter.model_name(name, adapted), tensor) for name, tensor in _held(policy).items())
    return {name: tensor for name, tensor in named if name is not None}


def learnt(policy: Any) -> dict[str, torch.Tensor]:
    """Return what updates change, by the names of parameters: an adapter's tensors, or all of a policy without one."""
    adapted = adapter.layers(policy)
    return {
        name: tensor
        for name, tensor in _held(policy).items()
        if not adapted or adapter.model_name(name, adapted) is None
    }


def _held(policy: Any) -> dict[str, torch.Tensor]:
    let_go(policy)
    # Parameters and buffers with several names are listed under the first.
    names = {name for name, _ in (*policy.named_parameters(), *policy.named_buffers())}
    return {name: tensor for name, tensor in policy.state_dict().items() if name in names}


def base_hash(model: str, policy: Any) -> str:
    """Hash of a base model's weights as they are stored, or, where no safetensors file is, as they were loaded.

    One that was moved, or saved in other parts, has the same. Ranks that share the policy must all call this.
    """
    stored = files_of(model)
    if stored is None:
        return tensors_hash(WholeTensors(tensors(policy)))
    return tensors_hash(stored, threads=min(8, os.cpu_count() or 1))


def vocabulary(policy: Any) -> int:
    """Number of tokens that a policy knows."""
    return int(policy.get_input_embeddings().weight.shape[0])


def body(policy: Any) -> Any:
    """The part of a policy that gives hidden states, without its head."""
    # Llama 4's class names another attribute than it has, and is its own base model then.
    return policy.model if policy.base_model is policy else policy.base_model


class ValueHead(torch.nn.Module):  # type: ignore[misc]
    """A linear function of the policy's last hidden states, 0 at first.

    Args:
        share: What the head's gradient is multiplied by before it passes into the policy; 0 cuts it off.
    """

    def __init__(self, size: int, *, share: float, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.share = share
        self.linear = torch.nn.Linear(size, 1, device=device, dtype=dtype)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values of positions, shape ``(tokens,)``, of hidden states of the shape ``(tokens, hidden size)``."""
        given = hidden.detach()
        if self.share:
            # The same in value; the gradient into the policy is a share of the head's own.
            given = given + self.share * (hidden - given)
        values: torch.Tensor = self.linear(given.to(self.linear.weight.dtype)).squeeze(-1)
        return values


PROMPTS, RESPONSES = (3, 3, 2, 2), np.array([4, 2, 3, 5])
"""Tokens of the probe's prompts, of which two are the same, and of its responses."""


def probe(vocabulary: int) -> tuple[Responses, Responses, np.ndarray]:
    """Two prompts with two responses each, of different lengths.

    Returns:
        The responses; the same with another last token but one, which is the last that passes through the model; and
        which response tokens are before it, shape ``(tokens,)``.
    """
    generator = np.random.default_rng(0)
    values = generator.integers(0, vocabulary, RESPONSES.sum())
    first, second = generator.integers(0, vocabulary, 3), generator.integers(0, vocabulary, 2)
    prompts = Lists(offsets=np.cumsum([0, *PROMPTS]), values=np.concatenate([first, first, second, second]))
    offsets = np.cumsum([0, *RESPONSES])
    other, before = values.copy(), np.ones(len(values), dtype=bool)
    other[offsets[1:] - 2] = (other[offsets[1:] - 2] + vocabulary // 2) % vocabulary
    before[offsets[1:] - 2] = before[offsets[1:] - 1] = False

    def answered(tokens: np.ndarray) -> Responses:
        responses = Lists(offsets=offsets, values=tokens)
        return Responses(
            prompts=prompts,
            responses=responses,
            sampled=np.ones(len(tokens), dtype=bool),
            counts=responses.lengths,
            logprobs=Lists(offsets=offsets, values=np.zeros(len(tokens))),
            shares_prompt=np.array([False, True, False, True]),
            of_rows={name: np.zeros(4) for name in OF_ROWS},
            of_tokens={},
        )

    return answered(values), answered(other), before


BY_PLACE = ("attn_temperature_tuning", "index_topk", "index_topk_blocks")
"""Settings by which a model of transformers acts on a token's place in the input, whatever its position is said to be.

Llama 4 scales queries beyond 8,192 tokens (``floor_scale``), and models with DeepSeek's sparse attention choose keys
among all of the input beyond 2,048: too many to be tried.
"""


def refuse_by_place(config: Any) -> None:
    """Refuse to pack a model that has one of ``BY_PLACE``."""
    for name in BY_PLACE:
        if getattr(config.get_text_config(), name, None):
            raise LearnerError(f"it scales or chooses by a token's place in the input ({name})")


def rotated_otherwise_beyond(config: Any) -> int | None:
    """Tokens beyond which one response of an input makes a model rotate all of its tokens otherwise (LongRoPE)."""
    limits = [
        each.get("original_max_position_embeddings") or config.get_text_config().max_position_embeddings
        for each in _rotations(config)
        if each.get("rope_type") == "longrope"
    ]
    return min(limits, default=None)


def check_rotation(config: Any, *, longest: int) -> None:
    """Refuse responses whose rotation depends on those that passed before them, as transformers computes it.

    It does with dynamic NTK scaling, where a response is long enough for it.
    """
    dynamic = any(each.get("rope_type") == "dynamic" for each in _rotations(config))
    limit = config.get_text_config().max_position_embeddings if dynamic else longest
    if longest > limit:
        raise LearnerError(
            f"a response has {longest} tokens with its prompt, more than the model's {limit}, beyond which its "
            "rope_type dynamic makes log-probabilities depend on what was computed before: it must be shorter"
        )


def _rotations(config: Any) -> list[dict[str, Any]]:
    """The parameters of RoPE, of each kind of layer."""
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [given] if "rope_type" in given else [each for each in given.values() if isinstance(each, dict)]


@contextmanager
def at_least_float32(policy: Any) -> Iterator[None]:
    """Run a policy whose weights are of a lower type in float32 meanwhile; they are the same afterwards, bit for bit.

    In bfloat16 two kernels of attention give log-probabilities that differ by 0.03 nats, and no tolerance would tell
    that from another meaning. A layer is in float32 while it runs, so that the whole of them never is.
    """
    layers = {layer: _lower(layer) for layer in blocks(policy)}
    inside = {id(tensor) for held in layers.values() for tensor, _ in held}
    outside = [(tensor, dtype) for tensor, dtype in _lower(policy) if id(tensor) not in inside]
    hooks = []
    for layer in layers:
        hooks.append(layer.register_forward_pre_hook(lambda module, _: _to_float32(layers[module])))
        hooks.append(layer.register_forward_hook(lambda module, *_: _back(layers[module]), always_call=True))
    _to_float32(outside)
    try:
        yield
    finally:
        _back(outside)
        for hook in hooks:
            hook.remove()


Lower = list[tuple[torch.Tensor, torch.dtype]]
"""Tensors of a lower type than float32, and that type."""


def _lower(module: torch.nn.Module) -> Lower:
    return [
        (tensor, tensor.dtype)
        for tensor in (*module.parameters(), *module.buffers())
        if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < 32
    ]


def _to_float32(held: Lower) -> None:
    for tensor, _ in held:
        tensor.data = tensor.data.float()


def _back(held: Lower) -> None:
    for tensor, dtype in held:
        tensor.data = tensor.data.to(dtype)


def without_dropout(policy: Any) -> None:
    """Set every share that a model drops at random in training mode to 0, wherever it keeps it."""
    config = policy.config
    for holder in (config, config.get_text_config(), *policy.modules()):
        for name, value in list(vars(holder).items()):
            if "drop" in name.lower() and isinstance(value, float):
                setattr(holder, name, 0.0)
        if isinstance(holder, torch.nn.modules.dropout._DropoutNd):
            holder.p = 0.0
