"""What samplers are asked for and what they answer: settings, draws, requests, responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import RolloutError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How responses are sampled.

    Attributes:
        temperature: Softmax temperature, above 0 and below 100.
        max_new_tokens: Longest response (tokens), its end-of-sequence token included.
        max_prompt_tokens: Longest prompt (tokens).
        top_p: Sample from the most probable tokens that together have this probability, above 0 and up to 1;
            log-probabilities are those of the distribution that is left.

    Raises:
        RolloutError: A value is out of its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 16
    max_prompt_tokens: int = 48
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < 100:
            raise RolloutError(f"temperature is {self.temperature}; it must lie above 0 and below 100")
        if not 0 < self.top_p <= 1:
            raise RolloutError(f"top_p is {self.top_p}; it must lie above 0 and be at most 1")
        for name in ("max_new_tokens", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise RolloutError(f"{name} is {getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What one call of ``sample`` asks for, besides the problems; see there.

    Attributes:
        samples: Responses per problem.
        seed: The run's seed.
        step: Update step, or cumulative rollouts for phase ``eval``.
        phase: What the responses are for.
        run_id: The run.
        first_sample: Index of a problem's first response.
    """

    samples: int
    seed: int
    step: int
    phase: str
    run_id: str
    first_sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One response to be sampled.

    Attributes:
        prompt_ids: Token ids of its prompt.
        seed: Its own seed (``seeds.response_seed``).
    """

    prompt_ids: list[int]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response.

    Attributes:
        ids: Its token ids, the end-of-sequence token included where it was sampled.
        logprobs: Log-probability of each token (nats, temperature and top-p applied), or none at all.
        finish_reason: Why it ended: ``stop``, ``length`` or ``aborted``.
    """

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str
