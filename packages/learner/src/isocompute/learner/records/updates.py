"""What an update reports: sums and counts, which add up over micro-batches, ranks and optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .metrics import Mean, Share, numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A ``metrics.Mean`` of all ranks as plain numbers: it travels between processes and is written as JSON.

    Attributes:
        total: Sum of the values.
        count: Number of values, or sum of their weights.
    """

    total: float
    count: float

    @classmethod
    def of(cls, mean: Mean) -> Average:
        """Return a mean of tensors as plain numbers; the shares of a loss, which are complete, as one value.

        Args:
            mean: From the objective, summed over micro-batches and ranks.
        """
        return cls(total=float(mean.total), count=1.0 if isinstance(mean, Share) else float(mean.count))

    def __add__(self, other: Average) -> Average:
        return Average(total=self.total + other.total, count=self.count + other.count)

    @property
    def value(self) -> float:
        """The mean; NaN where nothing was counted."""
        return self.total / self.count if self.count else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far a sampler's log-probabilities of the tokens that it sampled are from the learner's of the same tokens.

    Each is infinite where a log-probability of the sampler is not a finite number.

    Attributes:
        maximum: Largest |learner − sampler| (nats).
        mean: Mean |learner − sampler| (nats per token).
        k3: Mean of r − 1 − log r with r = π_learner/π_sampler, an estimate of KL(sampler ‖ learner) (nats per token).
        quantile: A |learner − sampler| (nats) that 99 % of the tokens do not exceed: with one rank the smallest such
            difference of a token, with several the largest over the ranks, which also bounds 99 % of all tokens.
    """

    maximum: float
    mean: float
    k3: float
    quantile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What an optimizer step did, or all those of a batch (``of_batch``), over all ranks.

    Attributes:
        objective: What the objective measured, by the names of ``loss_metrics``: which ones depends on the settings.
        gradient_norm: Norm of the gradient before clipping (``grad_norm`` in TRL and veRL).
        learning_rate: Learning rate used.
        sync_error: Largest log-probability difference to the sampler in the first micro-batch (nats).
        sync_mean: Mean absolute difference there (nats per token).
        sync_k3: Estimate (k3) of KL(sampler ‖ learner) there (nats per token).
        sync_quantile: The 0.99 quantile of the absolute difference there (nats); see ``Agreement``.
        optimizer_steps: Optimizer steps taken; 0 where no weight could change.
        trained_tokens: Response tokens that the loss is a sum over, those of skipped responses included; of several
            passes over a batch each counts.
        passed_tokens: Those of them that passed through the model.
        skipped: Responses that passed neither forward nor backward, since they could not change the update, of the
            responses in the batch.
        operations: Arithmetic of forward and backward (see ``rate.training_operations``); 0 where it is not known.
        machine_rate: Operations per second of all ranks' devices, measured (``rate.matmul_rate``); 0 where it is not
            known. Two reports that differ in it alone are equal.
    """

    objective: Mapping[str, Average]
    gradient_norm: float
    learning_rate: float
    sync_error: float = 0.0
    sync_mean: float = 0.0
    sync_k3: float = 0.0
    sync_quantile: float = 0.0
    optimizer_steps: int = 1
    trained_tokens: int = 0
    passed_tokens: int = 0
    skipped: Average = field(default_factory=lambda: Average(total=0.0, count=0.0))
    operations: float = 0.0
    machine_rate: float = field(default=0.0, compare=False)

    def metrics(self) -> dict[str, float]:
        """The numbers by name; means of nothing are left out."""
        plain = ("gradient_norm", "learning_rate", "sync_error", "sync_mean", "sync_k3", "sync_quantile")
        found = numbers(self.objective) | {name: getattr(self, name) for name in plain}
        found["optimizer_steps"] = float(self.optimizer_steps)
        return found | ({"skipped_share": self.skipped.value} if self.skipped.count else {})


def of_batch(reports: Sequence[UpdateReport]) -> UpdateReport:
    """Sum up the reports of the optimizer steps that one batch was learnt from in.

    Sums and counts add up. The norm of the gradient is the mean over the steps. The learning rate is that of the
    last one; the agreement with the sampler that of the first, the only one whose policy is the one that sampled.

    Args:
        reports: One for each step, in order; at least one.
    """
    first, last = reports[0], reports[-1]
    if len(reports) == 1:
        return first
    names = first.objective
    return UpdateReport(
        objective={name: _sum([report.objective[name] for report in reports]) for name in names},
        gradient_norm=sum(report.gradient_norm for report in reports) / len(reports),
        learning_rate=last.learning_rate,
        sync_error=first.sync_error,
        sync_mean=first.sync_mean,
        sync_k3=first.sync_k3,
        sync_quantile=first.sync_quantile,
        optimizer_steps=sum(report.optimizer_steps for report in reports),
        trained_tokens=sum(report.trained_tokens for report in reports),
        passed_tokens=sum(report.passed_tokens for report in reports),
        skipped=_sum([report.skipped for report in reports]),
        operations=sum(report.operations for report in reports),
        machine_rate=last.machine_rate,
    )


def _sum(averages: Sequence[Average]) -> Average:
    total = Average(total=0.0, count=0.0)
    for average in averages:
        total += average
    return total
