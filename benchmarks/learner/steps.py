"""Whole steps of this project's own loop, as many as asked for, with coin flips for rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import polars as pl
from isocompute.learner import Checkpoints, Learner, LearnerConfig, Progress, RunConfig, StepRecord, UpdateSteps, train
from isocompute.rollout import Sampling
from isocompute.rollout.samplers.registry import cheaper
from isocompute.rollout.samplers.weights import stored_parameters

from benchmarks.sampler import NoScoring

from .theirs import LEARNING_RATE, PROMPT, coin_flips, prompts

CONFIG = LearnerConfig(learning_rate=LEARNING_RATE)
"""GRPO without KL and without entropy, in float32; warm-up and clipping of the gradient as in TRL's settings."""
NEVER = 2**30
"""Evaluations are this many steps apart."""


class CoinFlips:
    """A sampler whose rewards are coin flips, and which counts.

    Args:
        equal: Share of groups with equal rewards; see ``coin_flips``.
    """

    def __init__(self, sampler: Any, *, equal: float = 0.0) -> None:
        self._sampler, self._equal = sampler, equal
        self.rollouts = self.tokens = 0

    @property
    def weights_version(self) -> int:
        """Version of the weights that sample."""
        return int(self._sampler.weights_version)

    def sync(self, weights: Any, version: int, /) -> None:
        """Take over the learner's weights."""
        self._sampler.sync(weights, version)

    def sample(self, problems: pl.DataFrame, *, samples: int, step: int, **rest: Any) -> pl.DataFrame:
        """Return the responses of a step with the rewards that TRL's side gives them."""
        rollouts: pl.DataFrame = self._sampler.sample(problems, samples=samples, step=step, **rest)
        self.rollouts += len(rollouts)
        self.tokens += int(rollouts["response_ids"].list.len().sum())
        # Steps are counted from 1 here, and calls from 0 there.
        flips = coin_flips(step - 1, len(problems), samples, equal=self._equal).reshape(-1)
        return rollouts.with_columns(pl.Series("reward", flips, dtype=rollouts.schema["reward"]))


class Steps:
    """Steps of the training loop, continued from call to call.

    Args:
        problems: A ``problems`` table.
        groups: Problems per batch, B_p.
        samples: Responses per problem, n.
        folder: Where checkpoints would go; none is made.
    """

    def __init__(
        self, learner: Learner, sampler: Any, problems: pl.DataFrame, *, groups: int, samples: int, folder: Path
    ) -> None:
        self._learner, self._sampler, self._problems, self._folder = learner, sampler, problems, folder
        self._run = RunConfig(
            run_id="r",
            rollouts_per_problem=samples,
            problems_per_batch=groups,
            seed=1,
            evaluate_every=NEVER * groups * samples,
        )
        # No evaluation: the row of step 0 is taken as there.
        self.progress = Progress(step=0, rollouts=0, tokens=0, evals=[{}])
        self.records: list[StepRecord] = []

    def take(self, steps: int) -> None:
        """Take some more steps.

        Args:
            steps: How many.
        """
        train(
            run=self._run,
            problems=self._problems,
            sampler=self._sampler,
            learner=self._learner,
            evaluator=_no_evaluation,
            meter=UpdateSteps(limit=self.progress.step + steps),
            checkpoints=Checkpoints(self._folder),
            progress=self.progress,
            watch=self._watch,
        )

    def _watch(self, record: Any) -> None:
        self.records.append(record)

    def phases(self) -> str:
        """Return the wall time per rollout of each phase of the steps that were recorded, and forget them."""
        totals: dict[str, float] = {}
        for record in self.records:
            for phase, seconds in record.seconds().items():
                totals[phase] = totals.get(phase, 0.0) + seconds
        rollouts = len(self.records) * self._run.batch_rollouts
        self.records.clear()
        return ", ".join(f"{phase} {seconds / rollouts * 1e3:.2f} ms" for phase, seconds in totals.items())


def problems_table(count: int) -> pl.DataFrame:
    """Return the problems whose prompts TRL's side has.

    Args:
        count: How many.
    """
    texts = prompts(count)
    return pl.DataFrame(
        {
            "problem_id": [f"p{i:05d}" for i in range(count)],
            "prompt": texts,
            "answer": "0",
            "verifier": "exact",
            "source": "benchmark",
            "split": "train",
        }
    )


def open_engine(model: Path, new_tokens: int, *, responses: int) -> Any:
    """Open the sampler that ``sampler: auto`` chooses, in this process with one thread.

    Args:
        new_tokens: The most tokens of a response that will be asked for.
        responses: The most of a batch.
    """
    import torch
    from isocompute.rollout import open_sampler

    torch.set_num_threads(1)
    longest = PROMPT + new_tokens
    chosen = cheaper(stored_parameters(model), longest=longest, device="cpu")
    print(f"sampler: {chosen}", flush=True)
    more: dict[str, Any] = {"responses": responses} if chosen.kind == "vllm" else {}
    return open_sampler(chosen.kind, str(model), sampling(new_tokens), scorer=NoScoring(), **more)


def sampling(new_tokens: int) -> Sampling:
    """Return how responses are sampled, at temperature 1.

    Args:
        new_tokens: The most tokens of a response.
    """
    return Sampling(max_new_tokens=new_tokens, max_prompt_tokens=PROMPT)


def _no_evaluation(**at: int) -> NoReturn:
    raise RuntimeError(f"no evaluation is to be made within the steps of a block, and one was at {at}")
