"""AdamW and the schedule of its learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import LearnerError
from .checks import not_negative, one_of, positive, whole

DECAYS = ("constant", "linear", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and the schedule of its learning rate.

    Attributes:
        beta1: Decay of the first moment, β₁.
        beta2: Decay of the second moment, β₂.
        epsilon: ε in the denominator.
        weight_decay: Decoupled weight decay; 0 here, where PyTorch, veRL and the recipes have 0.01.
        gradient_clip: Largest norm of the whole gradient (``max_grad_norm`` in TRL, ``grad_clip`` in veRL).
        warmup_steps: Steps over which the learning rate rises linearly to its peak.
        decay: What follows the warm-up: ``constant``, or ``linear`` or ``cosine`` to 0 after ``decay_steps``.
        decay_after: The last step at the peak before the decay begins; where the warm-up is longer, it is the warm-up's
            last. Up to this step a run with a decay is the run with a constant rate.
        decay_steps: The last step of a decay, counted from the first one and beyond the warm-up; 0 where there is no
            decay. It is a setting of its own, so that a rate never depends on how long a run happens to be.

    Steps are batches that were learnt from: one whose groups are all filtered does not count.

    Raises:
        LearnerError: A value is out of its range.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    warmup_steps: int = 10
    decay: str = "constant"
    decay_after: int = 0
    decay_steps: int = 0

    def __post_init__(self) -> None:
        positive(self, "epsilon", "gradient_clip")
        not_negative(self, "beta1", "beta2", "weight_decay")
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise LearnerError(f"{name} is {getattr(self, name)!r}; it must be below 1")
        whole(self, "warmup_steps", "decay_after", "decay_steps", least=0)
        one_of(self, "decay", DECAYS)
        if self.decay == "constant" and self.decay_steps:
            raise LearnerError(
                f"decay_steps is {self.decay_steps}, and a constant learning rate has no horizon: it must be 0"
            )
        if self.decay == "constant" and self.decay_after:
            raise LearnerError(
                f"decay_after is {self.decay_after}, and a constant learning rate never falls: it must be 0"
            )
        if self.decay != "constant" and self.decay_steps <= self.warmup_steps:
            raise LearnerError(
                f"decay_steps is {self.decay_steps}; a {self.decay} decay must end after the warm-up of "
                f"{self.warmup_steps} steps"
            )
        if self.decay != "constant" and self.decay_steps <= self.decay_after:
            raise LearnerError(
                f"decay_after is {self.decay_after}; a decay must begin before its last step, decay_steps, which is "
                f"{self.decay_steps}"
            )

    def factor_at(self, step: int) -> float:
        """Learning rate of a step as a share of the peak.

        s/w in step s ≤ w = ``warmup_steps``; then 1 up to step d, which is the larger of w and ``decay_after``, and in
        all steps if ``constant``; then 1 − x (``linear``) or (1 + cos πx)/2 (``cosine``) with
        x = min(1, (s − d)/(T + 1 − d)) and T = ``decay_steps``. So step d has the peak, step T is the last one that
        learns, and every step beyond it has a rate of 0. For w = 2, T = 6 and ``linear`` the steps 1 to 7 have 0.5, 1,
        0.8, 0.6, 0.4, 0.2, 0, and with ``decay_after`` = 4 they have 0.5, 1, 1, 1, 0.67, 0.33, 0.

        Args:
            step: The step, counted from 1.
        """
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        peak = max(self.warmup_steps, self.decay_after)
        if self.decay == "constant" or step <= peak:
            return 1.0
        done = min(1.0, (step - peak) / (self.decay_steps + 1 - peak))
        return 1.0 - done if self.decay == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
