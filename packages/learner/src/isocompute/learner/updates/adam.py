"""AdamW over the policy and the critic, and its state by the names of what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..config import LearnerConfig
from ..errors import LearnerError

POLICY, CRITIC = "policy", "critic"
STEP = "step"


class Optimizer:
    """AdamW, fused, with one learning rate for the policy and one for the critic.

    Args:
        critic: The critic; None without one.
        config: The learner's settings.
    """

    def __init__(self, policy: torch.nn.Module, critic: torch.nn.Module | None, config: LearnerConfig) -> None:
        self._config = config
        self._names = [f"{POLICY}.{name}" for name, _ in policy.named_parameters()]
        groups: list[dict[str, Any]] = [{"params": list(policy.parameters()), "lr": config.learning_rate}]
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
        most = self._config.optimizer.gradient_clip
        norms = [float(torch.nn.utils.clip_grad_norm_(group["params"], most)) for group in self._adam.param_groups]
        # Not finite if either is not.
        return norms[0] if all(norm < float("inf") for norm in norms) else sum(norms)

    def idle(self, norm: float) -> bool:
        """Whether a step would change nothing: there is no gradient, nor was there one before.

        Args:
            norm: Norm of the policy's gradient.
        """
        decays = bool(self._config.optimizer.weight_decay)
        return norm == 0 and not decays and not self._adam.state and len(self._adam.param_groups) == 1

    def step(self, number: int) -> float:
        """Take a step; return the policy's learning rate.

        Args:
            number: The update step that it belongs to, counted from 1, on which the schedule depends.
        """
        factor = self._config.optimizer.factor_at(number)
        peaks = (self._config.learning_rate, self._config.critic.learning_rate)
        for group, peak in zip(self._adam.param_groups, peaks, strict=False):
            group["lr"] = peak * factor
        self._adam.step()
        return peaks[0] * factor

    def state(self) -> dict[str, torch.Tensor]:
        """The moments as ``optimizer.NAME.KIND``, the live tensors and not copies."""
        moments = self._adam.state_dict()["state"]
        return {
            f"optimizer.{self._names[index]}.{kind}": value.contiguous()
            for index, entries in moments.items()
            for kind, value in entries.items()
        }

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from ``state``, which is copied.

        Args:
            tensors: Tensors by name; those of other names are left alone.

        Raises:
            LearnerError: They are of other parameters than these.
        """
        places = {name: index for index, name in enumerate(self._names)}
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            if key.startswith("optimizer."):
                name, _, kind = key.removeprefix("optimizer.").rpartition(".")
                if name not in places:
                    raise LearnerError(f"the state to continue from has moments of {name}, which is not trained here")
                moments.setdefault(places[name], {})[kind] = tensor.clone()
        full = self._adam.state_dict()
        self._adam.load_state_dict({"state": moments, "param_groups": full["param_groups"]})
