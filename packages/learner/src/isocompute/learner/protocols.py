"""Protocols of the objects that the training loop uses; any object with these methods will do.

``Sampler.sync``, ``Meter.charge`` and all methods with one argument are called with positional arguments, all other
methods with keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import polars as pl
import torch

from .config import LearnerConfig
from .records.steps import Agreement, Record, UpdateReport

Watch = Callable[[Record], None]
"""Called with a ``StepRecord`` after each step and with an ``EvaluationRecord`` after each evaluation."""


class Updater(Protocol):
    """A learner: one rank in this process (``Learner``) or a group of ranks (``LearnerGroup``).

    Attributes:
        config: The settings of the last reset.
        version: Batches learnt from since the reset; this is the version of the weights (the policy version).

    Raises:
        SyncError: Weights other than the learner's sampled the responses.
        DivergenceError: The gradient, the loss or one of the learner's log-probabilities is not finite.
        LearnerError: There is nothing to learn from or to compare, or the rollouts do not fit the model.
    """

    config: LearnerConfig
    version: int

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The policy's tensors by their Hugging Face names, without gradient, to be read one after the other."""
        ...

    def reset(self, config: LearnerConfig) -> None:
        """Go back to the base model's weights, a fresh optimizer and version 0."""
        ...

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        """Pass responses through the model without learning from them.

        Returns:
            The table with list columns of one number per sampled response token: ``old_logprobs``, with a KL term
            ``reference_logprobs``, with a critic ``values``.
        """
        ...

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> UpdateReport:
        """Take one optimizer step on a batch, or none at all.

        Args:
            batch: Completed responses as a ``rollouts`` table with the columns of ``objective.prepare`` and
                ``objective.minibatches``.
            advance: Whether to increment the version of the weights if they change; true for a batch's last optimizer
                step.
        """
        ...

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        """Compare the sampler's log-probabilities with the learner's, over all responses."""
        ...

    def state(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """Return the state for a checkpoint: tensors, to be read before the next update, and values for JSON."""
        ...

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue from what ``state`` returned; refuse a state of another model or another base model."""
        ...


class Sampler(Protocol):
    """Answers problems with the current policy."""

    @property
    def weights_version(self) -> int:
        """Version of the weights that sample (the policy version)."""
        ...

    def sample(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str,
        run_id: str,
        max_new_tokens: int | None = None,
    ) -> pl.DataFrame:
        """Return the ``rollouts`` table of ``samples`` responses to each problem.

        Args:
            samples: Completed responses per problem; failed attempts are additional rows with ``finish_reason``
                ``aborted``.
            seed: Seed of the run; each response's seed follows from it, the step, the phase, the problem and the
                sample.
            phase: ``train``, ``eval``, or ``canary`` for a sync check.
            max_new_tokens: Longest response, if shorter than the sampler's; with a lag, for a sync check.
        """
        ...

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, /) -> None:
        """Load the learner's weights."""
        ...


class Pipe(Protocol):
    """Generates during updates: batches are begun, and taken complete in the same order."""

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        """Admit the groups of a step's batch, sorted by ``problem_id``, without waiting for them."""
        ...

    def take(self, step: int) -> pl.DataFrame:
        """Wait until all groups of a step's batch are complete; return their ``rollouts`` table.

        The column ``weights_version`` is the version that sampled a response's first token. If later tokens may come
        from later versions, the list columns ``version_starts`` and ``versions`` give the first token of each version.
        """
        ...

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, /) -> None:
        """Load weights into all engines; responses in flight continue with them."""
        ...

    def abandon(self) -> pl.DataFrame | None:
        """Drop all batches that were begun and not taken; return what was generated of them as a ``rollouts`` table."""
        ...

    def idle(self) -> Mapping[str, float]:
        """Return the fractions of time since the last call in which ``engines`` and ``trainer`` had to wait.

        With a virtual clock, also its time, ``clock``.
        """
        ...

    def state(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """Return the pipe's contents: tensors and values for JSON."""
        ...

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue from what ``state`` returned, once the engines hold the weights of that time."""
        ...


class Evaluator(Protocol):
    """Measures the policy on problems that it does not train on."""

    def __call__(self, *, step: int, at: int, rollouts: int, tokens: int) -> Evaluated:
        """Evaluate the policy.

        Args:
            at: The point of the grid, step · B_p · n, on which the evaluation's seeds may depend. It is the same for
                all runs, whatever failed in one of them.
            rollouts: Rollouts generated for training so far, failed attempts included.
            tokens: Response tokens of these rollouts.
        """
        ...


class Evaluated(Protocol):
    """One evaluation: a row of ``evals``, its scores, and the responses that it cost."""

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the ``evals`` table, scores included."""
        ...

    @property
    def scores(self) -> Mapping[str, float]:
        """The row's metric columns, such as ``avg_at_4``, for logging."""
        ...

    @property
    def rollouts_table(self) -> pl.DataFrame | None:
        """The responses as a ``rollouts`` table; None if they were charged elsewhere."""
        ...


class Meter(Protocol):
    """Decides whether a step may be taken, and records what it generated."""

    def admit(self, *, step: int, rollouts: int) -> object:
        """Return a true value if a step, counted from 1, may be taken; it will generate B_p · n rollouts."""
        ...

    def reserve(self, rollouts: int, /) -> None:
        """Record how many training rollouts are in flight before new ones are generated; only with a lag."""
        ...

    def charge(self, step: int, rollouts: pl.DataFrame, /) -> None:
        """Record generated rollouts; once this returns, a checkpoint after them may be saved.

        Args:
            rollouts: A ``rollouts`` table with a column ``cohort``. It is ``trained``, ``filtered`` or ``failed`` for
                responses to training problems, with a lag also ``stale`` or ``unused``, and ``eval`` for responses of
                an evaluation.
        """
        ...
