"""AdamW over the policy and the critic, and its state by the names of what it is about."""

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
        total: Adds a number up over the ranks that share the policy; None where it is whole.
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
        """All that it updates."""
        return [p for group in self._adam.param_groups for p in group["params"]]

    def forget_gradients(self) -> None:
        """Free the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Clip the norm of the policy's gradient, and the critic's apart from it; return the policy's before it."""
        norms = []
        for group in self._adam.param_groups:
            mine = [_with_own_gradient(parameter) for parameter in group["params"]]
            norm = torch.nn.utils.get_total_norm([each.grad for each in mine])
            if self._total is not None and isinstance(group["params"][0], DTensor):
                norm = norm.new_tensor(math.sqrt(self._total(float(norm) * float(norm))))
            torch.nn.utils.clip_grads_with_norm_(mine, self._config.optimizer.gradient_clip, norm)
            norms.append(float(norm))
        # Not finite if either is not.
        return norms[0] if all(norm < float("inf") for norm in norms) else sum(norms)

    def idle(self, norm: float) -> bool:
        """Return whether a step would change nothing: there is no gradient, nor was there one before."""
        decays = bool(self._config.optimizer.weight_decay)
        return norm == 0 and not decays and not self._adam.state and len(self._adam.param_groups) == 1

    def step(self, number: int) -> float:
        """Take a step of the update of a number, counted from 1; return the policy's learning rate."""
        factor = self._config.optimizer.factor_at(number)
        peaks = (self._config.learning_rate, self._config.critic.learning_rate)
        for group, peak in zip(self._adam.param_groups, peaks, strict=False):
            group["lr"] = peak * factor
        self._adam.step()
        return peaks[0] * factor

    def state(self) -> dict[str, torch.Tensor]:
        """The moments as ``optimizer.NAME.KIND``, the live tensors and not copies; of a policy in shares their own."""
        return {
            f"optimizer.{name}.{kind}": value.contiguous()
            for name, parameter in zip(self._names, self.parameters, strict=True)
            for kind, value in self._adam.state.get(parameter, {}).items()
        }

    def forget(self) -> None:
        """Drop all moments."""
        self._adam.state.clear()

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that are moments of other parameters than these; those that are no moments are left alone."""
        for name, _ in filter(None, map(_moment, names)):
            if name not in self._names:
                raise LearnerError(f"the state to continue from has moments of {name}, which is not trained here")

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from moments of ``state``, all or some, which are copied; other tensors are left alone."""
        trained = dict(zip(self._names, self.parameters, strict=True))
        for key in tensors:
            if (found := _moment(key)) is not None:
                name, kind = found
                parameter = trained[name]
                # The number of steps is one number, and not one for each weight.
                value = tensors[key].to(parameter.device, copy=True) if kind == STEP else _like(parameter, tensors[key])
                self._adam.state[parameter][kind] = value


def _moment(key: str) -> tuple[str, str] | None:
    """The parameter and the kind of a moment, by its name in the state; None for what is no moment."""
    if not key.startswith("optimizer."):
        return None
    name, _, kind = key.removeprefix("optimizer.").rpartition(".")
    return name, kind


def _with_own_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's share of a parameter, which has its share of the gradient; one that is whole as it is."""
    if not isinstance(parameter, DTensor):
        return parameter
    share = own(parameter.detach()).requires_grad_()
    share.grad = None if parameter.grad is None else own(parameter.grad)
    return share


def _like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A copy of values, shared out as a tensor of their shape is."""
    made = torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)
    copy_into(made, values)
    return made
