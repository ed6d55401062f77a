"""A penalty on long responses: the rival of forced interruption, off unless it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RolloutError


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPenalty:
    """The soft over-long penalty of DAPO, as ScaleRL compares it with interruption.

    A response of L tokens has the penalty clip((longest − L) / margin − 1, −1, 0): none up to ``longest − margin``
    tokens, −1 from ``longest`` on, linear between (DAPO, arXiv 2503.14476, section 3.4). As in ScaleRL (arXiv
    2510.13786, appendix A.10: 14,000 and 2,000 tokens) it is added to the reward of right responses only, those of
    reward 1, so that rewards stay between 0 and 1; DAPO adds it to all. It holds in phase ``train`` alone: an
    evaluation and a measured difficulty tell what is right, however long.

    With ``longest=10`` and ``margin=4`` a right response of 6 tokens earns 1, one of 8 earns 0.5, one of 10 or more 0.

    Raises:
        RolloutError: A length is not a whole number of at least 1, or the margin is longer than ``longest``.
    """

    longest: int
    """Length (tokens) from which a right response earns nothing."""
    margin: int
    """How many tokens before it the penalty begins."""

    def __post_init__(self) -> None:
        for name in ("longest", "margin"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RolloutError(f"length_penalty.{name} is {value!r}; it must be a whole number of at least 1")
        if self.margin > self.longest:
            raise RolloutError(
                f"length_penalty.margin is {self.margin}; it must be at most longest, which is {self.longest}"
            )

    def reward(self, reward: float, *, tokens: int, phase: str) -> float:
        """Return the reward of a response with its penalty.

        Args:
            reward: From its verifier, from 0 to 1.
            tokens: Its length (tokens), inserted ones included.
            phase: What it is for; nothing changes outside ``train``.
        """
        if phase != "train" or reward != 1.0:
            return reward
        return reward + min(0.0, max(-1.0, (self.longest - tokens) / self.margin - 1.0))
