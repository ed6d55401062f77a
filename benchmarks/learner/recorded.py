"""Recorded responses: what an update costs without a sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from isocompute.learner import LearnerConfig
from isocompute.learner.config import SyncConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import prepare

from .theirs import LEARNING_RATE, coin_flips

CONFIG = LearnerConfig(learning_rate=LEARNING_RATE, sync=SyncConfig(tolerance=1e9))
"""GRPO as in the comparison; no sampler's log-probabilities are compared with the learner's."""
GROUP = 16
"""Responses per problem."""
IDS = (2, 15)
"""Tokens are drawn from here: neither padding nor the end of a text."""


def responses(
    count: int, *, prompt: int, lengths: tuple[int, int], step: int = 1, version: int = 0, samples: int = GROUP
) -> pl.DataFrame:
    """Return a ``rollouts`` table of random tokens with coin flips for rewards.

    Args:
        lengths: The least and the most tokens of a response.
        step: The step they are for, on which the tokens depend.
        version: The version of the weights that they count as sampled with.
        samples: Responses per problem.
    """
    random = np.random.default_rng([3, step])
    groups = count // samples
    each = random.integers(lengths[0], lengths[1] + 1, count)
    starts = np.concatenate([[0], np.cumsum(each)])
    ids, logprobs = random.integers(*IDS, starts[-1]), random.uniform(-3, -2, starts[-1])
    prompts = random.integers(*IDS, (groups, prompt)).repeat(samples, axis=0)

    def split(values: np.ndarray) -> list[list[float]]:
        return [part.tolist() for part in np.split(values, starts[1:-1])]

    return pl.DataFrame(
        {
            "run_id": "r",
            "step": step,
            "phase": "train",
            "problem_id": [f"p{i // samples:05d}" for i in range(count)],
            "sample": [i % samples for i in range(count)],
            "prompt_ids": pl.Series(prompts.tolist(), dtype=pl.List(pl.Int32)),
            "response_ids": pl.Series(split(ids), dtype=pl.List(pl.Int32)),
            "logprobs": pl.Series(split(logprobs), dtype=pl.List(pl.Float32)),
            "reward": pl.Series(coin_flips(step, groups, samples).reshape(-1), dtype=pl.Float32),
            "finish_reason": "stop",
            "weights_version": version,
        },
        schema_overrides={"step": pl.Int64, "sample": pl.Int32, "weights_version": pl.Int64},
    )


def batch(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Return what an update is computed from.

    Args:
        rollouts: From ``responses``.
    """
    return prepare(with_cohorts(rollouts, CONFIG.batch), CONFIG)


class Recorded:
    """A sampler that hands out recorded responses, others in every step, as if the newest weights had sampled them.

    Args:
        lengths: The least and the most tokens of a response.
    """

    def __init__(self, *, prompt: int, lengths: tuple[int, int]) -> None:
        self._prompt, self._lengths = prompt, lengths
        self.weights_version = 0

    def sync(self, weights: Any, version: int, /) -> None:
        """Go through the weights and keep nothing but their version."""
        for _ in weights:
            pass
        self.weights_version = version

    def sample(self, problems: pl.DataFrame, *, samples: int, step: int, **rest: Any) -> pl.DataFrame:
        """Return a step's responses."""
        del rest
        return responses(
            len(problems) * samples,
            prompt=self._prompt,
            lengths=self._lengths,
            step=step,
            version=self.weights_version,
            samples=samples,
        )
