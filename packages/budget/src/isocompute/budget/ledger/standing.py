"""What a run spent so far, against its limits."""

from __future__ import annotations

from dataclasses import dataclass

from .counts import Counts
from .limits import Limits

NOTHING = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a run spent so far, generated for training by all of its attempts, and its limits.

    Attributes:
        limits: The limits.
        used: C_used up to the last step taken.
        ahead: Generated for later steps by this attempt; used when they are taken, lost when they are not.
        lost: Generated and lost.
        device_seconds: Device time of everything, evaluations included.
    """

    limits: Limits
    used: Counts = NOTHING
    ahead: Counts = NOTHING
    lost: Counts = NOTHING
    device_seconds: float = 0.0

    @property
    def paid(self) -> Counts:
        """Everything generated for training."""
        return self.used + self.ahead + self.lost

    @property
    def spent(self) -> dict[str, tuple[float, float]]:
        """By limit that is set, what counts against it and the limit: rollouts, tokens, device-hours, money."""
        limits = self.limits
        counted = self.paid if limits.counted == "paid" else self.used
        hours = None if limits.device_seconds is None else limits.device_seconds / 3600
        against = {
            "rollouts": (counted.rollouts, limits.rollouts),
            "response_tokens": (counted.response_tokens, limits.response_tokens),
            "device_hours": (self.device_seconds / 3600, hours),
            "money": (limits.cost(self.device_seconds), limits.money),
        }
        return {name: (spent, limit) for name, (spent, limit) in against.items() if limit is not None}

    def metrics(self) -> dict[str, float]:
        """What a trainer logs: rollouts used and paid for, and how far the limit that is nearest is used up."""
        spent, limit = max(self.spent.values(), key=lambda pair: pair[0] / pair[1])
        return {
            "budget/used": self.used.rollouts,
            "budget/paid": self.paid.rollouts,
            "budget/fraction": spent / limit,
            "budget/remaining": max(0, limit - spent),
        }
