"""What a learner must have back to continue: its policy, its critic and the optimizer's moments, by name.

It is the whole of each on every rank, so that another number of ranks can continue from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import policy as policies
from ..errors import LearnerError
from .adam import CRITIC, POLICY, Optimizer


def tensors_of(policy: Any, critic: torch.nn.Module | None, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """The tensors of a learner, the live ones and not copies.

    Args:
        critic: The critic; None without one.
    """
    return _weights(policy, critic) | optimizer.state()


def take_over(
    tensors: Mapping[str, torch.Tensor],
    policy: Any,
    critic: torch.nn.Module | None,
    optimizer: Optimizer,
    *,
    model: str,
) -> None:
    """Continue from ``tensors_of``, which is copied.

    Args:
        critic: The critic; None without one.
        model: The base model, for the error.

    Raises:
        LearnerError: They are of another model, or of a learner with a critic where there is none.
    """
    given = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    mine = _weights(policy, critic)
    if {name: t.shape for name, t in given.items()} != {name: t.shape for name, t in mine.items()}:
        raise LearnerError(f"the state to continue from is not one of the model {model}")
    policies.load_tensors(policy, _of(POLICY, given))
    if critic is not None:
        critic.load_state_dict(_of(CRITIC, given))
    optimizer.load(tensors)


def _weights(policy: Any, critic: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    found = {f"{POLICY}.{name}": tensor.contiguous() for name, tensor in policies.tensors(policy).items()}
    if critic is not None:
        found |= {f"{CRITIC}.{name}": tensor.contiguous() for name, tensor in critic.state_dict().items()}
    return found


def _of(part: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.removeprefix(f"{part}."): tensor for k, tensor in tensors.items() if k.startswith(f"{part}.")}
