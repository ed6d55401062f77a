"""A policy in shares: each of several ranks holds a part of every parameter (FSDP2), and of its gradient and moments.

A block of layers is gathered from the ranks when it runs and let go again, as are the embedding and the output head.
What is left, the last norm, is gathered for the forward pass that all of them are part of: ``inside``. A head that is
tied to the embedding is gathered with it, from the beginning of the forward to the end of the backward pass: its
gradient is whole only then. Ranks that share a policy run it together: each must make the same number of passes. Every
function here takes a policy that is whole, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from ..errors import LearnerError

Result = TypeVar("Result")
EVERY_GRADIENT = "set_reduce_scatter_unused_params"
"""The method of later versions of torch that has ranks sum a gradient that some of them do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The ranks that share a policy, and the types that they compute in.

    Attributes:
        ranks: The ranks that share it.
        device: ``cpu`` or ``cuda``.
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
    """Run a function of a policy, or of its output head, that needs weights beside those of blocks whole.

    Args:
        module: A policy, within whose function blocks become whole by turns; or its head, within that function.
        use: The function. Tensors that have a gradient must be what it returns, or members of a tuple.
        given: Tensors for it: all those that the module's gradient goes on to.
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


def with_own_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's share of a parameter, which has its share of the gradient; one that is whole as it is."""
    if not isinstance(parameter, DTensor):
        return parameter
    share = own(parameter.detach()).requires_grad_()
    share.grad = None if parameter.grad is None else own(parameter.grad)
    return share


def rows_of(tensor: torch.Tensor) -> slice | None:
    """The rows of a tensor that are this rank's, of its first dimension; None where it is whole.

    Of 5 rows 2 ranks have the first 3 and the last 2, and 4 ranks 2, 2, 1 and 0, as ``torch.chunk`` cuts them.
    """
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


def like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A copy of values, shared out as a tensor of their shape is."""
    made = torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)
    copy_into(made, values)
    return made


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
