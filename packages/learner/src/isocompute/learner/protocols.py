"""Protocols of what the training loop is given; any object of these shapes will do.

``Sampler.sync``, ``Meter.charge`` and whatever takes one argument are called with positional arguments, all other
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
    """A learner, whether one rank in this process (``Learner``) or a group of ranks (``LearnerGroup``).

    Attributes:
        config: The settings it was last reset to.
        version: Batches learnt from since, which is the version of its weights (the policy version).

    Raises:
        SyncError: Other weights than the learner's sampled the responses.
        DivergenceError: The gradient, the loss or a log-probability of the learner's own is not finite.
        LearnerError: There is nothing to learn from or to compare, or the rollouts do not fit the model.
    """

    config: LearnerConfig
    version: int

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The policy's tensors by their Hugging Face names, without gradient, to be taken one after the other."""
        ...

    def reset(self, config: LearnerConfig) -> None:
        """Go back to the base model's weights, a fresh optimizer and version 0."""
        ...

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        """Pass responses through the model without learning from them.

        Returns:
            The table with list columns of a number for each response token that was sampled: ``old_logprobs``, with a
            KL term ``reference_logprobs``, with a critic ``values``.
        """
        ...

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> UpdateReport:
        """Take one optimizer step on a batch, or none at all.

        Args:
            batch: Completed responses as a ``rollouts`` table with the columns of ``objective.prepare`` and
                ``objective.minibatches``.
            advance: Whether the version of the weights is counted up, if they change: with the last optimizer step of
                a batch.
        """
        ...

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        """Return how far the sampler's log-probabilities are from the learner's, over all responses."""
        ...

    def state(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """Return what a checkpoint must hold: tensors, to be read before the next update, and what JSON can express."""
        ...

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue from what ``state`` returned, unless it is that of another model or another base model."""
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
            samples: Responses per problem that are completed; tries that failed come as rows beyond them, with
                ``finish_reason`` ``aborted``.
            seed: Seed of the run; each response's own follows from it, the step, the phase, the problem and the
                sample.
            phase: ``train``, ``eval`` or ``canary``, of a sync that is checked.
            max_new_tokens: Longest response, where that is less than the sampler's: with a lag, of a canary.
        """
        ...

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, /) -> None:
        """Take over the learner's weights."""
        ...


class Pipe(Protocol):
    """Generates while updates are taken: batches are begun, and taken complete in the same order."""

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        """Admit the groups of a step's batch, sorted by ``problem_id``, without waiting for them."""
        ...

    def take(self, step: int) -> pl.DataFrame:
        """Wait until all groups of a step's batch are complete; returns their ``rollouts`` table.

        Its column ``weights_version`` is the version that drew a response's first token. Where later tokens may be of
        later ones, the list columns ``version_starts`` and ``versions`` say from which token on each has drawn.
        """
        ...

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, /) -> None:
        """Let weights enter all engines; what is in flight goes on with them."""
        ...

    def abandon(self) -> pl.DataFrame | None:
        """Take out all that was begun and not taken; returns what was generated of it, as a ``rollouts`` table."""
        ...

    def idle(self) -> Mapping[str, float]:
        """Return the shares of time since the last call in which ``engines`` and ``trainer`` had to wait.

        With a virtual clock also the time on it, ``clock``.
        """
        ...

    def state(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """Return what is in the pipe: tensors, and plain values that JSON can express."""
        ...

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue from what ``state`` returned, once the engines hold the weights of that time."""
        ...


class Evaluator(Protocol):
    """Measures the policy on problems that it does not train on."""

    def __call__(self, *, step: int, at: int, rollouts: int, tokens: int) -> Evaluated:
        """Evaluate the policy.

        Args:
            at: The point of the grid, step · B_p · n, on which the evaluation's seeds may depend: one and the
                same for all runs, whatever failed in one of them.
            rollouts: What was counted as generated for training, failed tries included.
            tokens: Response tokens of these.
        """
        ...


class Evaluated(Protocol):
    """One evaluation: a row of ``evals``, its scores, and what it cost."""

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the ``evals`` table, scores included."""
        ...

    @property
    def scores(self) -> Mapping[str, float]:
        """The metric columns of the row, such as ``avg_at_4``: what is logged."""
        ...

    @property
    def rollouts_table(self) -> pl.DataFrame | None:
        """The responses behind it, as a ``rollouts`` table; None when they were charged elsewhere."""
        ...


class Meter(Protocol):
    """Decides whether a step may be taken, and records what it generated."""

    def admit(self, *, step: int, rollouts: int) -> object:
        """Return a true value when a step, counted from 1, may be taken, which will generate B_p · n rollouts."""
        ...

    def reserve(self, rollouts: int, /) -> None:
        """Note how many rollouts for training are under way, before new ones are generated; only with a lag."""
        ...

    def charge(self, step: int, rollouts: pl.DataFrame, /) -> None:
        """Record what was generated; when this returns, a checkpoint that follows from it may be saved.

        Args:
            rollouts: A ``rollouts`` table with a column ``cohort``: ``trained``, ``filtered`` or ``failed`` for
                responses to training problems, with a lag ``stale`` or ``unused``, too, and ``eval`` for those of an
                evaluation.
        """
        ...
