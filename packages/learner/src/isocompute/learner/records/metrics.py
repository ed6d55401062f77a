"""Typed sums and counts: what is measured in micro-batches and on ranks adds up, and becomes a number once, at the end.

A mean of means is never taken: two micro-batches of 3 and 1 tokens whose entropies sum to 6 and 1 have a mean entropy
of 7 / 4, not of 3 / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean that is not yet taken.

    Attributes:
        total: The sum, a float64 scalar without gradient.
        count: How many were summed, a float64 scalar.
    """

    total: torch.Tensor
    count: torch.Tensor

    def __add__(self, other: Mean) -> Mean:
        """The mean over both."""
        return replace(self, total=self.total + other.total, count=self.count + other.count)

    @property
    def value(self) -> float:
        """The mean; NaN where nothing was counted."""
        return float(self.total) / float(self.count) if float(self.count) else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Mean):
    """A share of something whose normaliser is already in it, such as the loss: shares add up, and are not divided."""

    @property
    def value(self) -> float:
        """The sum of the shares."""
        return float(self.total)


def added(one: Mapping[str, Mean], other: Mapping[str, Mean]) -> dict[str, Mean]:
    """Add up the metrics of two micro-batches, ranks or updates."""
    return {name: metric + other[name] for name, metric in one.items()}


def with_zeros(metrics: Mapping[str, Mean], names: Iterable[str], count: float) -> dict[str, Mean]:
    """Count zeros that were not measured, since they are known.

    Args:
        names: Those whose mean the zeros are a part of; one that is not there is passed over.
    """
    known = {name: replace(metrics[name], count=metrics[name].count + count) for name in names if name in metrics}
    return {**metrics, **known}


def reduced(metrics: Mapping[str, Mean], all_reduce: Callable[[torch.Tensor], None]) -> dict[str, Mean]:
    """Add up the metrics of all ranks, in one message.

    Args:
        metrics: This rank's metrics by name; every rank has the same names in the same order.
        all_reduce: Sums a tensor over the ranks, in place.
    """
    # Here, and not above: numbers are made of what was written down without torch.
    import torch

    if not metrics:
        return {}
    sums = torch.stack([torch.stack([metric.total, metric.count]) for metric in metrics.values()])
    all_reduce(sums)
    return {
        name: replace(metric, total=total, count=count)
        for (name, metric), (total, count) in zip(metrics.items(), sums, strict=True)
    }


class Measured(Protocol):
    """Whatever becomes a number: a ``Mean``, or what is made of one to be written down."""

    @property
    def value(self) -> float:
        """The number."""


def numbers(metrics: Mapping[str, Measured]) -> dict[str, float]:
    """The plain numbers of metrics by their logged names.

    Every mean under its own name, except those of squares, which become: ``advantage_std``; the effective sample size
    of the learner's weights on the sampler's tokens (``effective_sample_size``) and responses
    (``effective_sample_size_responses``), (Σρ)²/(N·Σρ²), a share of N from 0 to 1; and the critic's
    ``explained_variance``, 1 − Var(return − value)/Var(return). A number that nothing was counted for is left out.

    Args:
        metrics: What ``objective`` returned, added up; see ``objective.loss.loss_metrics``.
    """
    values = {name: metric.value for name, metric in metrics.items()}
    shown = {name: value for name, value in values.items() if not name.endswith("_square") and name not in _INNER}
    if "advantage_square" in values:
        shown["advantage_std"] = math.sqrt(_variance(values, "advantage"))
    for name, weight in _WEIGHTS.items():
        if values.get(f"{weight}_square"):
            shown[name] = values[weight] ** 2 / values[f"{weight}_square"]
    if "return_square" in values:
        spread = _variance(values, "return")
        shown["explained_variance"] = 1.0 - _variance(values, "value_error") / spread if spread else math.nan
    return {name: value for name, value in shown.items() if not math.isnan(value)}


_WEIGHTS = {"effective_sample_size": "token_ratio", "effective_sample_size_responses": "response_ratio"}
_INNER = (*_WEIGHTS.values(), "value_error")


def _variance(values: Mapping[str, float], name: str) -> float:
    # A variance of rounding errors may come out below 0.
    spread = values[f"{name}_square"] - values[name] ** 2
    return spread if math.isnan(spread) else max(0.0, spread)
