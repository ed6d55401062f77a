"""Loads a model with all of its weights or not at all, whole or sharded, and names its tensors as Hugging Face does.

If ranks share a policy, each holds a part of every parameter (FSDP2), of its gradient and of its moments. A block of
layers is gathered from the ranks when it runs and released afterwards, and so are the embedding and the output head.
The remaining module, the last norm, is gathered for the forward pass that contains all of them (``inside``). A head
that is tied to the embedding is gathered with it, from the beginning of the forward to the end of the backward pass,
since its gradient is complete only then. Ranks that share a policy run it together, so each must make the same number
of passes. Every function here also accepts a policy that is whole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping

from ..config import AdapterConfig
from ..contract.files import reason_of
from ..errors import LearnerError
from ..saving.checkpoint import files_of, tensors_hash
from . import adapter
from .adapter import adapt, begun

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
EVERY_GRADIENT = "set_reduce_scatter_unused_params"
"""Method of later torch versions that lets ranks sum a gradient that some of them do not have."""


def load_policy(
    model: str | Path,
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    sharding: Sharding | None = None,
    adapter: AdapterConfig | None = None,
) -> Any:
    """Load a transformers model in evaluation mode, since dropout would make log-probabilities random.

    Args:
        sharding: The ranks that share the model; each reads its part, and all must call this. None: the model is whole.
        adapter: Adapter to learn instead of the weights, which are then frozen; in float32 or better. None: no adapter.

    Raises:
        LearnerError: The model cannot be loaded, lacks weights (they would be random), or scales or caps its logits
            after the head, which is computed separately here; or the adapter does not fit it.
    """
    if sharding is None:
        policy = _whole(model, device, dtype)
        policy = policy if adapter is None else adapt(policy, adapter)
    else:
        policy = _shared(model, device, dtype, sharding, adapter)
    for tensor, values in () if adapter is None else begun(policy):
        copy_into(tensor, values)
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
    """Load a sharded model; if its files store the tensors unchanged, no rank ever holds all of it."""
    with _refused(model):
        with _parameters_on_meta():
            policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(model)), dtype=dtype)
        stored = None if get_model_conversion_mapping(policy, add_legacy=False) else files_of(str(model))
    given: dict[str, torch.Tensor] = {}
    if stored is not None:
        _refuse_missing(model, tensors(policy).keys() - stored.keys())
    else:
        given = tensors(_whole(model, "cpu", dtype))
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
    """Turn any error within this context into one that says that the model cannot be loaded."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise LearnerError(f"the base model {model} cannot be loaded ({reason_of(error)})") from None


def _refuse_missing(model: str | Path, names: Collection[str]) -> None:
    if names:
        raise LearnerError(
            f"the base model {model} has no weights for {min(names)} ({len(names)} in all): they would be random; "
            "save the model whole"
        )


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Keep new parameters without memory within this context. Buffers are real: some are computed and in no file."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        # A tied parameter stays tied.
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
    # Not the module's call, which would end the forward pass that this is part of.
    whole = policy.forward(input_ids=ids, attention_mask=mask, use_cache=False).logits
    hidden = body(policy)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    head = policy.get_output_embeddings()(hidden)
    return not torch.allclose(whole, head, rtol=1e-3, atol=1e-3)


class WholeTensors(Mapping[str, torch.Tensor]):
    """Tensors by name. A sharded tensor is gathered on every read, so all ranks must read it.

    Args:
        adapted: Layers whose adapter is merged into a tensor when it is read, by the tensor's name.
        dtype: Type of the returned tensors; None: their own.
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
            layer = self._adapted[name]
            tensor = adapter.merged(tensor, layer, *(whole(factor.detach()) for factor in adapter.factors(layer)))
        return tensor.to(self._type(tensor)).contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    def sizes(self) -> dict[str, int]:
        """Bytes of each whole tensor."""
        return {name: tensor.numel() * self._type(tensor).itemsize for name, tensor in self._live.items()}

    def shares(self) -> Iterator[tuple[str, torch.Tensor, slice | None]]:
        """The live tensors, not copies; of a sharded one this rank's rows, with their slice."""
        for name, tensor in self._live.items():
            yield name, own(tensor), rows_of(tensor)

    def _type(self, tensor: torch.Tensor) -> torch.dtype:
        return tensor.dtype if self._dtype is None or not tensor.is_floating_point() else self._dtype


def weights(policy: Any) -> WholeTensors:
    """The ``tensors`` of a policy, with its adapter merged. Ranks that share the policy must all read all of them."""
    layers = {f"{name}.weight": layer for name, layer in adapter.layers(policy).items()}
    dtype = next((tensor.dtype for tensor in learnt(policy).values()), None) if layers else None
    return WholeTensors(tensors(policy), adapted=layers, dtype=dtype)


def tensors(policy: Any) -> dict[str, torch.Tensor]:
    """The model's tensors by their names in a saved model; tied tensors once, without the adapter's."""
    adapted = adapter.layers(policy)
    named = ((adapter.model_name(name, adapted), tensor) for name, tensor in _held(policy).items())
    return {name: tensor for name, tensor in named if name is not None}


def learnt(policy: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that updates change, by parameter name: an adapter's, or all of a policy without one."""
    adapted = adapter.layers(policy)
    return {
        name: tensor
        for name, tensor in _held(policy).items()
        if not adapted or adapter.model_name(name, adapted) is None
    }


def _held(policy: Any) -> dict[str, torch.Tensor]:
    let_go(policy)
    # PyTorch lists parameters and buffers with several names under the first.
    names = {name for name, _ in (*policy.named_parameters(), *policy.named_buffers())}
    return {name: tensor for name, tensor in policy.state_dict().items() if name in names}


def base_hash(model: str, policy: Any) -> str:
    """Hash a base model's weights as stored, or else as loaded; all ranks that share it must call this."""
    stored = files_of(model)
    if stored is None:
        return tensors_hash(WholeTensors(tensors(policy)))
    return tensors_hash(stored, threads=min(8, os.cpu_count() or 1))


def vocabulary(policy: Any) -> int:
    """Vocabulary size of a policy."""
    return int(policy.get_input_embeddings().weight.shape[0])


def body(policy: Any) -> Any:
    """The part of a policy that computes hidden states, without its head."""
    # Llama 4's class names an attribute that it does not have, and is then its own base model.
    return policy.model if policy.base_model is policy else policy.base_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The ranks that share a policy, and the types in which they compute.

    Attributes:
        activations: Type in which blocks compute; None: that of the weights. Gradients are always summed over the ranks
            in float32 or better.
        head: The same for the embedding, the last norm and the output head.
    """

    ranks: dist.ProcessGroup
    device: str
    activations: torch.dtype | None = None
    head: torch.dtype | None = None

    @property
    def mesh(self) -> DeviceMesh:
        """A one-dimensional mesh of the ranks."""
        return DeviceMesh.from_group(self.ranks, torch.device(self.device).type)


def shard(policy: Any, sharding: Sharding) -> Any:
    """Shard a policy over the ranks, in place; its weights may still be on the device ``meta``."""
    _check_routing(policy)
    mesh = sharding.mesh
    for block in blocks(policy):
        fully_shard(block, mesh=mesh, mp_policy=_precision(sharding.activations))
    ends = {"mesh": mesh, "mp_policy": _precision(sharding.head)}
    embedding, head = policy.get_input_embeddings(), policy.get_output_embeddings()
    if head is not None and head.weight is not embedding.weight:
        # The gradient of an embedding does not need its weights.
        fully_shard(embedding, **ends).set_unshard_in_backward(False)
        _share_whole_passes(head, ends)
    _share_whole_passes(policy, ends)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # Each rank's loss is its part of a sum. Gloo has no reduction that also multiplies.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if hasattr(module, EVERY_GRADIENT):
                # If ranks route tokens to different experts, a rank without a gradient for an expert adds 0.
                getattr(module, EVERY_GRADIENT)(True)
    return policy


def _share_whole_passes(module: Any, how: dict[str, Any]) -> None:
    """Shard a module that ``inside`` gathers."""
    # The backward pass needs its weights right after the forward pass.
    fully_shard(module, **how, reshard_after_forward=False)
    module.run_inside = lambda use, *given: use(module, *given)
    register_fsdp_forward_method(module, "run_inside")


def blocks(policy: Any) -> list[torch.nn.Module]:
    """The layers that are gathered one at a time: those that transformers also keeps on one device."""
    names = set(policy._no_split_modules or ())
    found = [module for module in policy.modules() if type(module).__name__ in names]
    inner = {id(part) for module in found for part in module.modules() if part is not module}
    return [module for module in found if id(module) not in inner]


def inside(module: Any, use: Callable[..., Result], *given: torch.Tensor) -> Result:
    """Run a function of a policy, or of its output head within it, with all weights outside the blocks gathered.

    Tensors with a gradient must be the function's result, or members of a tuple that it returns. Tensors that receive
    the module's gradient must be in ``given``.
    """
    if not hasattr(module, "run_inside"):
        return use(module, *given)
    found: Result = module.run_inside(use, *given)
    if not torch.is_grad_enabled():
        # No backward pass follows that would release them.
        let_go(module)
    return found


def is_sharded(policy: Any) -> bool:
    """Return whether a policy is sharded."""
    return isinstance(policy, FSDPModule)


def let_go(policy: Any) -> None:
    """Release gathered weights that no backward pass has used."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a tensor from the ranks, which must all call this; a whole one is returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's share of a tensor, not a copy; a whole one is returned unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rows_of(tensor: torch.Tensor) -> slice | None:
    """Rows of a tensor that belong to this rank, as ``torch.chunk`` cuts them; None if it is whole."""
    if not isinstance(tensor, DTensor):
        return None
    assert tensor.placements == (Shard(0),)
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    begin = min(tensor.device_mesh.get_local_rank() * each, tensor.shape[0])
    return slice(begin, min(begin + each, tensor.shape[0]))


def copy_into(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Overwrite a tensor with whole values; a sharded one takes this rank's rows."""
    rows = rows_of(tensor)
    with torch.no_grad():
        own(tensor).copy_(values if rows is None else values[rows])


def _check_routing(policy: Any) -> None:
    """Refuse experts that are modules if torch does not sum unused gradients: a rank may use only some experts."""
    routed = any(isinstance(part, torch.nn.ModuleList) for block in blocks(policy) for part in block.modules())
    if routed and not hasattr(FSDPModule, EVERY_GRADIENT):
        raise LearnerError(
            f"the experts of a {type(policy).__name__} are modules, which ranks cannot share with torch "
            f"{torch.__version__}: set compute.sharding to none, or install torch 2.13"
        )


def _precision(lower: torch.dtype | None) -> MixedPrecisionPolicy:
    return MixedPrecisionPolicy() if lower is None else MixedPrecisionPolicy(lower, reduce_dtype=torch.float32)
