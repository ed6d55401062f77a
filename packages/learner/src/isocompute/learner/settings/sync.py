"""When a sampler counts as holding the learner's weights."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LearnerError
from .checks import positive

CHECKS = ("tolerance", "mean", "k3", "quantile")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """The largest differences of log-probabilities that count as the same weights.

    Attributes:
        tolerance: Largest difference (nats) between the sampler's and the learner's log-probability of a token; 1e-4
            fits a sampler in float32. None turns it off: in bfloat16 a stray token of a healthy sampler may differ by
            more than one nat.
        mean: Largest mean |difference| (nats per token); None turns it off. It and the two below are for samplers in
            bfloat16 or float16.
        k3: Largest estimate (k3) of KL(sampler ‖ learner) (nats per token); None turns it off.
        quantile: Largest 0.99 quantile of |difference| over tokens (nats); None turns it off.

    Raises:
        LearnerError: A value is out of its range, or all four are off.
    """

    tolerance: float | None = 1e-4
    mean: float | None = None
    k3: float | None = None
    quantile: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in CHECKS if getattr(self, name) is not None]
        if not given:
            raise LearnerError(
                f"{', '.join(CHECKS)} of sync are all off; one must be a number, or stale weights would train unnoticed"
            )
        positive(self, *given)
