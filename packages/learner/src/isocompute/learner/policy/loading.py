"""Loading a model with all of its weights or not at all, whole or in shares; its tensors by their Hugging Face names.

Where ranks share a policy, each holds a part of every parameter (FSDP2), and of its gradient and moments. A block of
layers is gathered from the ranks when it runs and let go again, as are the embedding and the output head. What is left,
the last norm, is gathered for the forward pass that all of them are part of: ``inside``. A head that is tied to the
embedding is gathered with it, from the beginning of the forward to the end of the backward pass: its gradient is whole
only then. Ranks that share a policy run it together: each must make the same number of passes. Every function here
takes a policy that is whole, too.
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
"""The method of later versions of torch that has ranks sum a gradient that some of them do not have."""


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
    """The model shared out, without ever being whole on a rank where its files hold its tensors as they are."""
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
    """Say of whatever goes wrong that the model cannot be loaded."""
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
            layer = self._adapted[name]
            tensor = adapter.merged(tensor, layer, *(whole(factor.detach()) for factor in adapter.factors(layer)))
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
    """The ``tensors`` of a policy, its adapter merged, of which ranks that share it must all take all."""
    layers = {f"{name}.weight": layer for name, layer in adapter.layers(policy).items()}
    dtype = next((tensor.dtype for tensor in learnt(policy).values()), None) if layers else None
    return WholeTensors(tensors(policy), adapted=layers, dtype=dtype)


def tensors(policy: Any) -> dict[str, torch.Tensor]:
    """The model's tensors by their names in a saved model: one that is tied to another once, and no adapter's."""
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
    """Hash of a base model's weights as they are stored, or else as they were loaded, by all ranks that share it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The ranks that share a policy, and the types that they compute in.

    Attributes:
        activations: Type that blocks compute in where it is not that of the weights; None: theirs. Gradients are summed
            over the ranks in float32 or better all the same.
        head: The same for the embedding, the last norm and the output head.
    """

    ranks: dist.ProcessGroup
    device: str
    activations: torch.dtype | None = None
    head: torch.dtype | None = None

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks in a row."""
        return DeviceMesh.from_group(self.ranks, torch.device(self.device).type)


def shard(policy: Any, sharding: Sharding) -> Any:
    """Share a policy out, in place; its weights may still be on the device ``meta``."""
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
            # Each rank's loss is its part of a sum. Gloo has no reduction that multiplies on the way.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if hasattr(module, EVERY_GRADIENT):
                # Where ranks route tokens to different experts, one that has no gradient of an expert adds 0 to it.
                getattr(module, EVERY_GRADIENT)(True)
    return policy


def _share_whole_passes(module: Any, how: dict[str, Any]) -> None:
    """Share a module out that is gathered by ``inside``."""
    # Gathered for the forward pass, its weights are needed again as soon as the backward pass begins.
    fully_shard(module, **how, reshard_after_forward=False)
    module.run_inside = lambda use, *given: use(module, *given)
    register_fsdp_forward_method(module, "run_inside")


def blocks(policy: Any) -> list[torch.nn.Module]:
    """The layers that are gathered one at a time: those that transformers keeps on one device, too."""
    names = set(policy._no_split_modules or ())
    found = [module for module in policy.modules() if type(module).__name__ in names]
    inner = {id(part) for module in found for part in module.modules() if part is not module}
    return [module for module in found if id(module) not in inner]


def inside(module: Any, use: Callable[..., Result], *given: torch.Tensor) -> Result:
    """Run a function of a policy, or within it of its output head, that needs weights beside those of blocks whole.

    Tensors that have a gradient must be what it returns, or members of a tuple; those that the module's gradient goes
    on to must be ``given``.
    """
    if not hasattr(module, "run_inside"):
        return use(module, *given)
    found: Result = module.run_inside(use, *given)
    if not torch.is_grad_enabled():
        # No backward pass follows, after which they would be let go.
        let_go(module)
    return found


def is_sharded(policy: Any) -> bool:
    """Return whether a policy is shared out."""
    return isinstance(policy, FSDPModule)


def let_go(policy: Any) -> None:
    """Let go of weights that were gathered and have not been used in a backward pass."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor gathered from the ranks, which must all call this; one that is whole is returned as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's share of a tensor, and no copy of it; one that is whole is returned as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rows_of(tensor: torch.Tensor) -> slice | None:
    """The rows of a tensor that are this rank's, as ``torch.chunk`` cuts them; None where it is whole."""
    if not isinstance(tensor, DTensor):
        return None
    assert tensor.placements == (Shard(0),)
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    begin = min(tensor.device_mesh.get_local_rank() * each, tensor.shape[0])
    return slice(begin, min(begin + each, tensor.shape[0]))


def copy_into(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Give a tensor other values, all of them; one that is shared out takes this rank's rows."""
    rows = rows_of(tensor)
    with torch.no_grad():
        own(tensor).copy_(values if rows is None else values[rows])


def _check_routing(policy: Any) -> None:
    """Refuse experts that are modules, of which a rank may use some only, where torch does not sum what is unused."""
    routed = any(isinstance(part, torch.nn.ModuleList) for block in blocks(policy) for part in block.modules())
    if routed and not hasattr(FSDPModule, EVERY_GRADIENT):
        raise LearnerError(
            f"the experts of a {type(policy).__name__} are modules, which ranks cannot share with torch "
            f"{torch.__version__}: set compute.sharding to none, or install torch 2.13"
        )


def _precision(lower: torch.dtype | None) -> MixedPrecisionPolicy:
    return MixedPrecisionPolicy() if lower is None else MixedPrecisionPolicy(lower, reduce_dtype=torch.float32)
