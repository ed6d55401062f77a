"""How many groups have a signal: the distribution of pass rates, and the share of groups of n whose rewards differ.

A group of n responses to a problem of pass rate p has a signal with probability 1 − pⁿ − (1 − p)ⁿ. This is concave in
p, so its average over problems is less than its value at their mean pass rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, prod
from pathlib import Path

import polars as pl

from ..contract import tables
from ..errors import FrontierError

ASSUMED = 2.0
"""a + b of the Beta assumed when only a mean is given: uniform for a mean of ½."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beta:
    """Pass rates distributed as Beta(a, b) over problems."""

    a: float
    b: float
    said: str = ""

    @property
    def mean(self) -> float:
        """Mean pass rate."""
        return self.a / (self.a + self.b)

    def signal(self, n: int) -> float:
        """Share of groups of n with a signal: 1 − E pⁿ − E (1 − p)ⁿ."""
        total = self.a + self.b
        return 1.0 - sum(prod((part + i) / (total + i) for i in range(n)) for part in (self.a, self.b))


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Pass rates, and the number of problems with each."""

    counts: Mapping[float, float]
    said: str = ""

    @property
    def mean(self) -> float:
        """Mean pass rate."""
        return sum(p * count for p, count in self.counts.items()) / sum(self.counts.values())

    def signal(self, n: int) -> float:
        """Share of groups of n with a signal."""
        total = sum(self.counts.values())
        return sum(count * (1 - p**n - (1 - p) ** n) for p, count in self.counts.items()) / total


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Successes and samples per problem; ``beta`` is used for groups larger than a problem's samples."""

    answers: Sequence[tuple[int, int]]
    beta: Beta
    said: str

    @property
    def mean(self) -> float:
        """Mean pass rate."""
        return sum(successes / samples for successes, samples in self.answers) / len(self.answers)

    def signal(self, n: int) -> float:
        """Share of groups of n with a signal, for n responses drawn from those sampled; unbiased."""
        if n > min(samples for _, samples in self.answers):
            return self.beta.signal(n)
        alike = sum((comb(s, n) + comb(m - s, n)) / comb(m, n) for s, m in self.answers)
        return 1.0 - alike / len(self.answers)


Spread = Beta | Histogram | Measured


def of_mean(pass_rate: float) -> Beta:
    """The assumed distribution if only the mean pass rate is known."""
    a, b = ASSUMED * pass_rate, ASSUMED * (1 - pass_rate)
    return Beta(a=a, b=b, said=f"assumed spread: Beta({a:.3g}, {b:.3g}), uniform where the mean is 0.5")


def of_table(source: str | Path) -> Measured:
    """Pass rates from a ``pass_rates`` table, at its first step.

    Raises:
        FrontierError: It cannot be read, has fewer than two problems, or all of them are always or never solved.
    """
    frame = tables.read(source, "pass_rates")
    first = frame.filter(pl.col("step") == pl.col("step").min()).group_by("problem_id", maintain_order=True)
    answers = [(int(s), int(m)) for _, s, m in first.agg(pl.col("successes", "samples").sum()).iter_rows()]
    rates = [s / m for s, m in answers]
    mean = sum(rates) / len(rates)
    if len(answers) < 2 or not 0 < mean < 1:
        raise FrontierError(f"{source}: needs two problems or more, of which one response is right and one is wrong")
    # Subtract the sampling variance, which is not a difference between problems.
    own = [rate * (1 - rate) / max(m - 1, 1) for rate, (_, m) in zip(rates, answers, strict=True)]
    variance = sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1) - sum(own) / len(own)
    total = mean * (1 - mean) / min(max(variance, 1e-3 * mean * (1 - mean)), 0.99 * mean * (1 - mean)) - 1
    least = min(m for _, m in answers)
    return Measured(
        answers=answers,
        beta=Beta(a=mean * total, b=(1 - mean) * total),
        said=f"{len(answers):,} problems, {least} responses or more each; beyond n = {least} by a Beta of their spread",
    )
