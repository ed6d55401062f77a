"""Made-up sweeps outside the usual: sudden rises, overfitting, growth without end, broken runs; their truth is known.

As ``worlds``, it shares no code with what is tested, and its curves are not those of the posterior's family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from .worlds import LAST, SHAPES, SIZES, Curve, run

QUESTIONS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Harsh:
    """Curves by n, of any kind.

    Attributes:
        start: Reward before training.
        gain: Gain by n that a seed's factor multiplies.
        share: Share of it by n, at some compute; it may fall, and exceed 1.
        failing: Probability that a run of n collapses.
        degrees: Of freedom of Student's t, of seeds.
        asked: Difficulties of the questions that every evaluation asks; None where each asks new ones.
    """

    start: float
    gain: Mapping[int, float]
    share: Mapping[int, Curve]
    failing: Mapping[int, float] = field(default_factory=dict)
    degrees: float = np.inf
    asked: np.ndarray | None = None

    def reward(self, n: int, compute: np.ndarray, *, factor: float = 1.0, delay: float = 0.0) -> np.ndarray:
        """Reward of a run of n that does not collapse, for a seed as in ``worlds.World``."""
        share = self.share[n](np.asarray(compute) * np.exp(-delay))
        return np.asarray(np.clip(self.start + factor * self.gain[n] * share, 0.0, 1.0))

    def shown(self, n: int, compute: np.ndarray) -> np.ndarray:
        """Reward on the questions that are asked, which intervals are of where their luck is not known."""
        reward = self.reward(n, compute)
        return reward if self.asked is None else np.array([_answered(r, self.asked).mean() for r in reward])

    def expected(self, n: int, compute: np.ndarray) -> np.ndarray:
        """Reward expected of the next run of n: one that collapses ends where it began."""
        lost = self.failing.get(n, 0.0)
        return (1 - lost) * self.reward(n, compute) + lost * self.start


def harsh(kind: str, rng: np.random.Generator) -> Harsh:
    """A world of a kind.

    Args:
        kind: ``sudden``, ``overfit-within``, ``overfit-after``, ``fading``, ``crossing``, ``logarithmic``, ``heavy``,
            ``shared``, ``collapse`` or ``broken``.
        rng: Source of randomness.
    """
    return KINDS[kind](rng)


def _peaked(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Positions of the n from −1 to 1, gains with a top among them, half computes, and the start."""
    at = np.linspace(-1, 1, len(SIZES))
    gain = rng.uniform(0.25, 0.45) * (1 - rng.uniform(0.05, 0.35) * (at - rng.uniform(-0.6, 0.9)) ** 2)
    half = LAST / rng.uniform(6, 25) * np.exp(rng.uniform(0.2, 1.2) * at)
    return at, gain, half, rng.uniform(0.08, 0.35)


def _by_n(values: np.ndarray) -> dict[int, float]:
    return dict(zip(SIZES, map(float, values), strict=True))


def _curves(made: Callable[[int], Curve]) -> dict[int, Curve]:
    """A curve for each n, from its place in the list of them."""
    return {n: made(k) for k, n in enumerate(SIZES)}


def _sudden(rng: np.random.Generator) -> Harsh:
    """A little gain at once, then nothing until a rise within a doubling of compute, later at larger n."""
    at = np.linspace(-1, 1, len(SIZES))
    onset = LAST / rng.uniform(2, 8) * np.exp(rng.uniform(0.6, 1.5) * at + 0.1 * rng.standard_normal(len(SIZES)))
    steep, first = rng.uniform(5, 12), rng.uniform(0.0, 0.12)
    gain = rng.uniform(0.25, 0.4) * (1 + rng.uniform(0.0, 0.35) * at)

    def made(k: int) -> Curve:
        def share(compute: np.ndarray) -> np.ndarray:
            with np.errstate(divide="ignore", over="ignore"):
                late = 1 / (1 + np.exp(-steep * np.log(compute / onset[k])))
            return np.asarray(first * (1 - np.exp(-compute / (LAST / 40))) + (1 - first) * late)

        return share

    return Harsh(start=rng.uniform(0.05, 0.2), gain=_by_n(gain), share=_curves(made))


def _overfit(earliest: float, latest: float) -> Callable[[np.random.Generator], Harsh]:
    """A rise, then a fall to a lower level, from a compute between two multiples of that of the data on."""

    def world(rng: np.random.Generator) -> Harsh:
        at, gain, half, start = _peaked(rng)
        usual, fall = SHAPES[rng.integers(4)], rng.uniform(0.2, 0.6)
        # Small n see their problems more often for the same compute, or large n repeat the same responses more.
        peak = LAST * np.exp(rng.uniform(np.log(earliest), np.log(latest)) + rng.uniform(-0.5, 0.5) * at)

        def made(k: int) -> Curve:
            def share(compute: np.ndarray) -> np.ndarray:
                after = np.maximum(compute / peak[k] - 1, 0.0)
                return np.asarray(usual(compute / half[k]) * (1 - fall * (1 - np.exp(-0.5 * after))))

            return share

        return Harsh(start=start, gain=_by_n(gain), share=_curves(made))

    return world


def _fading(rng: np.random.Generator) -> Harsh:
    """A rise, then a loss of the same share with every e-fold of compute, from within the data on; no prior saw it."""
    at, gain, half, start = _peaked(rng)
    usual, loss = SHAPES[rng.integers(4)], rng.uniform(0.03, 0.2)
    peak = LAST * np.exp(rng.uniform(np.log(0.15), np.log(0.6)) + rng.uniform(-0.5, 0.5) * at)

    def made(k: int) -> Curve:
        def share(compute: np.ndarray) -> np.ndarray:
            folds = np.log(np.maximum(compute / peak[k], 1.0))
            return np.asarray(usual(compute / half[k]) * np.maximum(1 - loss * folds, 0.0))

        return share

    return Harsh(start=start, gain=_by_n(gain), share=_curves(made))


def _crossing(rng: np.random.Generator) -> Harsh:
    """Large n gain more and much later, so that the order turns beyond the data."""
    at = np.linspace(-1, 1, len(SIZES))
    gain = rng.uniform(0.25, 0.4) * (1 + rng.uniform(0.1, 0.4) * at)
    half = LAST / rng.uniform(2, 8) * np.exp(rng.uniform(1.2, 2.2) * at)
    usual = SHAPES[rng.integers(4)]
    return Harsh(
        start=rng.uniform(0.08, 0.3),
        gain=_by_n(gain),
        share=_curves(lambda k: lambda compute: usual(compute / half[k])),
    )


def _logarithmic(rng: np.random.Generator) -> Harsh:
    """Growth with the logarithm of compute, without end."""
    at, gain, half, start = _peaked(rng)
    rate = np.exp(rng.uniform(-0.3, 0.3) * at)
    # What is made at the end of the data is about the gain.
    first = np.minimum(half, LAST / 4)

    def made(k: int) -> Curve:
        return lambda compute: rate[k] * np.log1p(compute / first[k]) / np.log1p(LAST / first[k])

    return Harsh(start=min(start, 0.2), gain=_by_n(0.8 * gain), share=_curves(made))


def _levelling(rng: np.random.Generator) -> tuple[float, dict[int, float], dict[int, Curve]]:
    _, gain, half, start = _peaked(rng)
    usual = SHAPES[rng.integers(4)]
    return start, _by_n(gain), _curves(lambda k: lambda compute: usual(compute / half[k]))


def _heavy(rng: np.random.Generator) -> Harsh:
    """Seeds of which few are very far from the others."""
    start, gain, share = _levelling(rng)
    return Harsh(start=start, gain=gain, share=share, degrees=2.5)


def _shared(rng: np.random.Generator) -> Harsh:
    """The same questions at every evaluation, easy and hard ones, of which the table says nothing."""
    start, gain, share = _levelling(rng)
    return Harsh(start=start, gain=gain, share=share, asked=2.0 * rng.standard_normal(QUESTIONS))


def _collapse(rng: np.random.Generator) -> Harsh:
    """Runs that collapse, more often at one end of n."""
    start, gain, share = _levelling(rng)
    at = np.linspace(-1, 1, len(SIZES)) * rng.choice([-1, 1])
    odds = np.exp(rng.uniform(-3.5, -1.5) + rng.uniform(0.5, 2.0) * at)
    return Harsh(start=start, gain=gain, share=share, failing=_by_n(odds / (1 + odds)))


def _broken(rng: np.random.Generator) -> Harsh:
    """One n whose reward swings up and down as no curve of training does."""
    start, gain, share = _levelling(rng)
    odd = int(rng.choice(SIZES))
    usual, size, period, phase = share[odd], rng.uniform(0.15, 0.35), rng.uniform(0.8, 1.6), rng.uniform(0, 6)

    def swinging(compute: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            swing = size * np.sin(2 * np.pi * np.log(compute / LAST) / period + phase)
        return np.asarray(usual(compute) * (1 + np.where(compute > 0, swing, 0.0)))

    return Harsh(start=start, gain=gain, share={**share, odd: swinging})


KINDS: dict[str, Callable[[np.random.Generator], Harsh]] = {
    "sudden": _sudden,
    "overfit-within": _overfit(0.15, 0.6),
    "overfit-after": _overfit(1.0, 3.0),
    "fading": _fading,
    "crossing": _crossing,
    "logarithmic": _logarithmic,
    "heavy": _heavy,
    "shared": _shared,
    "collapse": _collapse,
    "broken": _broken,
}


def harsh_sweep(truth: Harsh, rng: np.random.Generator, *, seeds: int = 2, deviation: float = 0.05) -> pl.DataFrame:
    """An ``evals`` table of a world, as ``worlds.sweep``; half of the sweeps are evaluated uniformly in compute."""
    rows: list[dict[str, object]] = []
    linear = bool(rng.random() < 0.5)
    for n in SIZES:
        for seed in range(seeds):
            own = run(truth, rng, n=n, seed=seed, deviation=deviation, degrees=truth.degrees, linear=linear)
            if rng.random() < truth.failing.get(n, 0.0):
                own = _collapsed(own, truth.start, rng)
            if truth.asked is not None:
                own = _of_the_same(own, truth.asked, rng)
            rows += own
    return pl.DataFrame(rows)


def _collapsed(rows: list[dict[str, object]], start: float, rng: np.random.Generator) -> list[dict[str, object]]:
    """The run, back at its start from some evaluation on."""
    first = int(rng.integers(4, len(rows) - 3))
    count = 4 * QUESTIONS
    return [
        row if k < first else {**row, "avg_at_4": float(rng.binomial(count, start * rng.uniform(0.2, 1.0)) / count)}
        for k, row in enumerate(rows)
    ]


HARD = 2.0 * np.random.default_rng(0).standard_normal(4000)
"""Difficulties of all questions, of which a sweep asks some."""
LEVELS = np.linspace(-12, 12, 241)


def _answered(reward: float, asked: np.ndarray) -> np.ndarray:
    """Probability of a right answer to some questions, σ(ability − difficulty), at a reward on all questions."""
    means = (1 / (1 + np.exp(HARD - LEVELS[:, None]))).mean(axis=1)
    return np.asarray(1 / (1 + np.exp(asked - np.interp(reward, means, LEVELS))))


def _of_the_same(rows: list[dict[str, object]], asked: np.ndarray, rng: np.random.Generator) -> list[dict[str, object]]:
    """The run on questions of fixed difficulty."""
    right = [rng.binomial(4, _answered(float(str(row["avg_at_4"])), asked)).sum() for row in rows]
    return [{**row, "avg_at_4": float(count / (4 * len(asked)))} for row, count in zip(rows, right, strict=True)]
