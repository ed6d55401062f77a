"""Made-up sweeps whose truth is known, by a generator that shares no code with what is tested.

A world gives every n a curve; a sweep is runs of it: seeds that differ in gain and timing, answers of questions, and
noise that lasts from one evaluation to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
LAST = 4_000_000
PAPER = {
    8: (0.58247, 0.12857, 0.23052),
    32: (0.59523, 0.19053, 0.2231),
    128: (0.61811, 0.1987, 0.42603),
    256: (0.65418, 0.17819, 0.93827),
    512: (0.71765, 0.25421, 2.16687),
}
"""A, D and τ in millions of the lines of the IsoCompute Playbook's figure on Easy at B_p = 32."""

Curve = Callable[[np.ndarray], np.ndarray]


class Truth(Protocol):
    """Something that says what a run is expected to get."""

    def reward(self, n: int, compute: np.ndarray, *, factor: float = 1.0, delay: float = 0.0) -> np.ndarray:
        """Reward of n, for a seed whose gain has a factor and whose compute is delayed by the logarithm of another."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Curves by n.

    Attributes:
        start: Reward before training.
        gain: Gain by n, before the seed.
        half: Compute of half the gain by n.
        share: Share of the gain made at C/half.
        named: The odd n, or the pair that a gap is between; nothing elsewhere.
    """

    start: float
    gain: Mapping[int, float]
    half: Mapping[int, float]
    share: Curve
    named: tuple[int, ...] = ()

    def reward(self, n: int, compute: np.ndarray, *, factor: float = 1.0, delay: float = 0.0) -> np.ndarray:
        """Reward of n, for a seed whose gain has a factor and whose compute is delayed by the logarithm of another."""
        return self.start + factor * self.gain[n] * self.share(compute / (self.half[n] * np.exp(delay)))


def exponential(x: np.ndarray) -> np.ndarray:
    """1 − 2^(−x)."""
    return 1 - 0.5**x


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1/(1 + x^(−1.2))."""
    return x**1.2 / (1 + x**1.2)


def power(x: np.ndarray) -> np.ndarray:
    """1 − (1 + (2^(2/3) − 1)·x)^(−1.5)."""
    return 1 - (1 + (2 ** (2 / 3) - 1) * x) ** -1.5


def stretched(x: np.ndarray) -> np.ndarray:
    """1 − 2^(−x^0.8)."""
    return 1 - 0.5 ** (x**0.8)


SHAPES = (exponential, sigmoid, power, stretched)


def world(kind: str, rng: np.random.Generator) -> World:
    """A world: ``smooth`` in log n, with one ``odd`` n, ``rough`` from n to n, the ``paper``'s, or ``flat``.

    Args:
        kind: Which.
        rng: Source of randomness; the paper's has none.
    """
    if kind == "paper":
        return World(
            start=0.43,
            gain={n: a - 0.43 for n, (a, _, _) in PAPER.items()},
            half={n: t * 1e6 * np.log(2) for n, (_, _, t) in PAPER.items()},
            share=exponential,
        )
    start, gain, half, share = _smooth(rng)
    named: tuple[int, ...] = ()
    if kind == "odd":
        odd = rng.integers(len(SIZES))
        gain[odd] *= 1 + rng.choice([-1, 1]) * rng.uniform(0.15, 0.3)
        named = (SIZES[odd],)
    elif kind == "rough":
        gain *= 1 + 0.12 * rng.standard_normal(len(SIZES))
        half *= np.exp(0.3 * rng.standard_normal(len(SIZES)))
    elif kind == "flat":
        gain, half = _level(gain, half)
    return _world(start, gain, half, share, named)


def world_with_gap(kind: str, rng: np.random.Generator, *, gap: float) -> World:
    """A world with a gap between two n, which ``named`` holds, that of the lower gain first; all have one timing.

    Args:
        kind: ``step``, a flat world where all n beyond one gain more; ``peak``, a flat one where one n does; or
            ``parabola``, where the gain is one in log n and the gap is between its lowest and its highest n.
        rng: Source of randomness.
        gap: Difference as a share of the lower gain.
    """
    start, gain, half, share = _smooth(rng)
    if kind == "parabola":
        low, high = int(gain.argmin()), int(gain.argmax())
        fall = (gain[high] - gain) / (gain[high] - gain[low])
        _, half = _level(gain, half)
        return _world(start, gain[high] * (1 - gap / (1 + gap) * fall), half, share, (SIZES[low], SIZES[high]))
    gain, half = _level(gain, half)
    below = int(rng.integers(len(SIZES) - 1))
    gain[below + 1 : None if kind == "step" else below + 2] *= 1 + gap
    return _world(start, gain, half, share, SIZES[below : below + 2])


def grid_of_worlds(batches: tuple[int, ...], rng: np.random.Generator) -> dict[int, World]:
    """A smooth world for each B_p, whose best n, gain and timing shift with log B_p.

    Args:
        batches: B_p, rising.
        rng: Source of randomness.
    """
    at = np.linspace(-1, 1, len(SIZES))
    start, span, top = rng.uniform(0.1, 0.35), rng.uniform(0.25, 0.5), rng.uniform(-0.6, 0.9)
    bend, shift, tilt = rng.uniform(0.05, 0.35), rng.uniform(-0.5, 0.5), rng.uniform(-0.08, 0.08)
    first, drift, later = LAST / rng.uniform(6, 25), rng.uniform(0.2, 1.2), rng.uniform(-0.3, 0.3)
    share = SHAPES[rng.integers(4)]
    found = {}
    for batch, b in zip(batches, np.linspace(-1, 1, len(batches)) if len(batches) > 1 else [0.0], strict=True):
        gain = span * (1 + tilt * b) * (1 - bend * (at - top - shift * b) ** 2)
        found[batch] = _world(start, gain, first * np.exp(drift * at + later * b), share)
    return found


def _smooth(rng: np.random.Generator) -> tuple[float, np.ndarray, np.ndarray, Curve]:
    """Start, gains, half computes and shape of a smooth world."""
    at = np.linspace(-1, 1, len(SIZES))
    start, span, top = rng.uniform(0.1, 0.35), rng.uniform(0.25, 0.5), rng.uniform(-0.6, 0.9)
    gain = span * (1 - rng.uniform(0.05, 0.35) * (at - top) ** 2)
    half = LAST / rng.uniform(6, 25) * np.exp(rng.uniform(0.2, 1.2) * at)
    return start, gain, half, SHAPES[rng.integers(4)]


def _level(gain: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.full(len(gain), gain.mean()), np.full(len(half), np.exp(np.log(half).mean()))


def _world(start: float, gain: np.ndarray, half: np.ndarray, share: Curve, named: tuple[int, ...] = ()) -> World:
    gain = np.clip(gain, 0.05, 0.95 - start)
    return World(
        start=start,
        gain=dict(zip(SIZES, gain.tolist(), strict=True)),
        half=dict(zip(SIZES, half.tolist(), strict=True)),
        share=share,
        named=named,
    )


def sweep(
    truth: World,
    rng: np.random.Generator,
    *,
    seeds: int,
    deviation: float,
    timing: float = 0.05,
    degrees: float = np.inf,
) -> pl.DataFrame:
    """An ``evals`` table of a world, at B_p = 32.

    Args:
        truth: The world.
        rng: Source of randomness.
        seeds: Runs of each n.
        deviation: As of ``run``.
        timing: As of ``run``.
        degrees: As of ``run``.
    """
    rows = []
    for n in truth.gain:
        for seed in range(seeds):
            rows += run(truth, rng, n=n, seed=seed, deviation=deviation, timing=timing, degrees=degrees)
    return pl.DataFrame(rows)


def run(
    truth: Truth,
    rng: np.random.Generator,
    *,
    n: int,
    seed: int,
    deviation: float,
    timing: float = 0.05,
    degrees: float = np.inf,
    batch: int = 32,
    evaluations: int = 16,
    questions: int = 300,
    samples: int = 4,
    lasting: float = 0.006,
    linear: bool = False,
) -> list[dict[str, object]]:
    """The rows of one run, to ``LAST``.

    Args:
        truth: The world.
        rng: Source of randomness.
        n: Rollouts per problem.
        seed: What the table calls it; ``rng`` decides what happens.
        deviation: Standard deviation of seeds' gain, as a share of it; of Student's t its scale.
        timing: Of the logarithm of their compute.
        degrees: Of freedom of Student's t, of both.
        batch: Problems per batch.
        evaluations: After the start, uniform in the logarithm of compute over a factor of 64, unless ``linear``.
        questions: Asked at each.
        samples: Of each question.
        lasting: Standard deviation of noise with an autocorrelation of 0.3.
        linear: Whether evaluations are uniform in compute.
    """
    first, space = (LAST / evaluations, np.linspace) if linear else (LAST / 64, np.geomspace)
    compute = np.concatenate([[0.0], space(first, LAST, evaluations)])
    own = rng.standard_normal(2) if np.isinf(degrees) else rng.standard_t(degrees, 2)
    reward = truth.reward(n, compute, factor=1 + deviation * own[0], delay=timing * own[1])
    noise = np.zeros(len(compute))
    for k in range(1, len(noise)):
        noise[k] = 0.3 * noise[k - 1] + np.sqrt(0.91) * lasting * rng.standard_normal()
    shown = rng.binomial(questions * samples, np.clip(reward + noise, 0, 1)) / (questions * samples)
    return [
        {
            "run_id": f"{batch}-{n}-{seed}",
            "step": round(c / (batch * n)),
            "rollouts": round(c),
            "tokens": round(100 * c),
            "rollouts_per_problem": n,
            "problems_per_batch": batch,
            "seed": seed,
            "problem_set": "made-up",
            "split": "validation",
            "questions": questions,
            "samples": samples,
            "avg_at_4": float(y),
        }
        for c, y in zip(compute, shown, strict=True)
    ]
