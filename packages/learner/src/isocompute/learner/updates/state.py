"""What a learner must have back to continue: what it has learnt and the optimizer's moments, by name.

It is given whole, a tensor at a time, so that another number of ranks can continue from it. Of a policy with an adapter
it is the adapter alone: the model beneath is the base model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from ..errors import LearnerError
from ..policy.sharding import copy_into
from ..policy.weights import WholeTensors, learnt
from .adam import CRITIC, POLICY, Optimizer


def tensors_of(policy: Any, critic: torch.nn.Module | None, optimizer: Optimizer) -> WholeTensors:
    """The tensors of a learner, the live ones and not copies where they are not gathered.

    Args:
        critic: The critic; None without one.
    """
    return WholeTensors(_weights(policy, critic) | optimizer.state())


def make_ready(
    names: Collection[str], policy: Any, critic: torch.nn.Module | None, optimizer: Optimizer, *, model: str
) -> None:
    """Make ready to ``take_over`` the tensors of these names, and drop the moments that there are.

    Args:
        names: All names of a state.
        critic: The critic; None without one.

    Raises:
        LearnerError: They are of another model, or of a learner with a critic where there is none.
    """
    if {name for name in names if not name.startswith("optimizer.")} != _weights(policy, critic).keys():
        raise LearnerError(f"the state to continue from is not one of the model {model} with this adapter or none")
    optimizer.check(names)
    optimizer.forget()


def take_over(
    tensors: Mapping[str, torch.Tensor],
    policy: Any,
    critic: torch.nn.Module | None,
    optimizer: Optimizer,
    *,
    model: str,
) -> None:
    """Continue from tensors of ``tensors_of``, all of them or some, which are copied one at a time.

    Args:
        critic: The critic; None without one.

    Raises:
        LearnerError: One has another shape; those before it were taken over.
    """
    mine = _weights(policy, critic)
    for name in tensors:
        if name in mine:
            given = tensors[name]
            if given.shape != mine[name].shape:
                raise LearnerError(
                    f"the state to continue from is not one of the model {model}: {name} has the shape "
                    f"{tuple(given.shape)}, and must have {tuple(mine[name].shape)}"
                )
            copy_into(mine[name], given)
    optimizer.take(tensors)


def _weights(policy: Any, critic: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    found = {f"{POLICY}.{name}": tensor for name, tensor in learnt(policy).items()}
    if critic is not None:
        found |= {f"{CRITIC}.{name}": tensor for name, tensor in critic.state_dict().items()}
    return found
