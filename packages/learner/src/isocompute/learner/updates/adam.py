"""AdamW over the policy and the critic, with its state by parameter name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..config import LearnerConfig
from ..errors import LearnerError
from ..policy.loading import copy_into, own

POLICY, CRITIC = "policy", "critic"
STEP = "step"


class Optimizer:
    """AdamW, fused, with one learning rate for the policy and one for the critic.

    Args:
        total: Sums a number over the ranks that share the policy; None if it is whole.
    """

    def __init__(
        self,
        policy: torch.nn.Module,
        critic: torch.nn.Module | None,
        config: LearnerConfig,
        *,
        total: Callable[[float], float] | None = None,
    ) -> None:
        self._config, self._total = config, total
        # With an adapter the model beneath it is frozen.
        learnt = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
        self._names = [f"{POLICY}.{name}" for name in learnt]
        groups: list[dict[str, Any]] = [{"params": list(learnt.values()), "lr": config.learning_rate}]
        if critic is not None:
            self._names += [f"{CRITIC}.{name}" for name, _ in critic.named_parameters()]
            groups.append({"params": list(critic.parameters()), "lr": config.critic.learning_rate})
        given = config.optimizer
        self._adam = torch.optim.AdamW(
            groups, betas=(given.beta1, given.beta2), eps=given.epsilon, weight_decay=given.weight_decay, fused=True
        )

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All parameters that it updates."""
        return [p for group in self._adam.param_groups for p in group["params"]]

    def forget_gradients(self) -> None:
        """Free the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Clip the gradient norms of policy and critic separately; return the policy's norm before clipping."""
        norms = []
        for group in self._adam.param_groups:
            mine = [_with_own_gradient(parameter) for parameter in group["params"]]
            norm = torch.nn.utils.get_total_norm([each.grad for each in mine])
            if self._total is not None and isinstance(group["params"][0], DTensor):
                norm = norm.new_tensor(math.sqrt(self._total(float(norm) * float(norm))))
            torch.nn.utils.clip_grads_with_norm_(mine, self._config.optimizer.gradient_clip, norm)
            norms.append(float(norm))
        # Not finite if either norm is not.
        return norms[0] if all(norm < float("inf") for norm in norms) else sum(norms)

    def idle(self, norm: float) -> bool:
        """Return whether a step would change nothing: no gradient now and none before."""
        decays = bool(self._config.optimizer.weight_decay)
        return norm == 0 and not decays and not self._adam.state and len(self._adam.param_groups) == 1

    def step(self, number: int) -> float:
        """Take the step of update ``number``, counted from 1; return the policy's learning rate."""
        factor = self._config.optimizer.factor_at(number)
        peaks = (self._config.learning_rate, self._config.critic.learning_rate)
        for group, peak in zip(self._adam.param_groups, peaks, strict=False):
            group["lr"] = peak * factor
        self._adam.step()
        return peaks[0] * factor

    def state(self) -> dict[str, torch.Tensor]:
        """The moments as ``optimizer.NAME.KIND``: live tensors, not copies; sharded like the policy."""
        return {
            f"optimizer.{name}.{kind}": value.contiguous()
            for name, parameter in zip(self._names, self.parameters, strict=True)
            for kind, value in self._adam.state.get(parameter, {}).items()
        }

    def forget(self) -> None:
        """Drop all moments."""
        self._adam.state.clear()

    def check(self, names: Iterable[str]) -> None:
        """Refuse moments of parameters other than these; other names are ignored."""
        for name, _ in filter(None, map(_moment, names)):
            if name not in self._names:
                raise LearnerError(f"the state to continue from has moments of {name}, which is not trained here")

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy moments from ``state``, all or some of them; other tensors are ignored."""
        trained = dict(zip(self._names, self.parameters, strict=True))
        for key in tensors:
            if (found := _moment(key)) is not None:
                name, kind = found
                parameter = trained[name]
                # The step count is a single number, not one per weight.
                value = tensors[key].to(parameter.device, copy=True) if kind == STEP else _like(parameter, tensors[key])
                self._adam.state[parameter][kind] = value


def _moment(key: str) -> tuple[str, str] | None:
    """The parameter and the kind of a moment, from its name in the state; None if it is not a moment."""
    if not key.startswith("optimizer."):
        return None
    name, _, kind = key.removeprefix("optimizer.").rpartition(".")
    return name, kind


def _with_own_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's share of a parameter with its share of the gradient; a whole parameter is returned unchanged."""
    if not isinstance(parameter, DTensor):
        return parameter
    share = own(parameter.detach()).requires_grad_()
    share.grad = None if parameter.grad is None else own(parameter.grad)
    return share


def _like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Copy values, sharded like a tensor of the same shape."""
    made = torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)
    copy_into(made, values)
    return made
