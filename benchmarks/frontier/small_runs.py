"""Real runs to judge: policies of 9,000 weights trained by policy gradients with group advantages, in numpy.

    python benchmarks/frontier/small_runs.py OUT.parquet

A question is five digits; the answer is their running sum modulo 10 after the second and each later one, four digits
sampled one by one, and it is right or wrong as a whole. The base model has seen the facts with errors of their own
rates. Whatever the runs do (rise, stay where they are, break down at too high a learning rate), they do of themselves.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Array = NDArray[Any]
DIGITS, ANSWER, HIDDEN = 5, 4, 96
SAMPLES = 4


@dataclass
class Policy:
    """One hidden layer over the last partial sum and the next digit."""

    weights: list[Array]

    @classmethod
    def new(cls, rng: np.random.Generator) -> Policy:
        """Random weights."""
        inputs = 20 + ANSWER
        return cls(
            [
                rng.normal(0, 1 / np.sqrt(3), (inputs, HIDDEN)),
                np.zeros(HIDDEN),
                rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, HIDDEN)),
                np.zeros(HIDDEN),
                rng.normal(0, 0.5 / np.sqrt(HIDDEN), (HIDDEN, 10)),
                np.zeros(10),
            ]
        )

    def forward(self, inputs: Array) -> tuple[Array, Array, Array]:
        """Both hidden layers, and the probabilities of the next digit."""
        first = np.maximum(inputs @ self.weights[0] + self.weights[1], 0)
        second = np.maximum(first @ self.weights[2] + self.weights[3], 0)
        logits = second @ self.weights[4] + self.weights[5]
        logits -= logits.max(axis=1, keepdims=True)
        share = np.exp(logits)
        return first, second, share / share.sum(axis=1, keepdims=True)

    def backward(self, inputs: Array, first: Array, second: Array, by: Array) -> list[Array]:
        """Gradients of all weights, from that by the logits."""
        to_second = (by @ self.weights[4].T) * (second > 0)
        to_first = (to_second @ self.weights[2].T) * (first > 0)
        return [inputs.T @ to_first, to_first.sum(0), first.T @ to_second, to_second.sum(0), second.T @ by, by.sum(0)]


class Adam:
    """Adam with its usual settings."""

    def __init__(self, policy: Policy, rate: float) -> None:
        self.policy, self.rate, self.step = policy, rate, 0
        self.mean = [np.zeros_like(w) for w in policy.weights]
        self.square = [np.zeros_like(w) for w in policy.weights]

    def update(self, gradients: list[Array]) -> None:
        """One step downhill."""
        self.step += 1
        for w, g, m, s in zip(self.policy.weights, gradients, self.mean, self.square, strict=True):
            m += 0.1 * (g - m)
            s += 0.001 * (g**2 - s)
            w -= self.rate * (m / (1 - 0.9**self.step)) / (np.sqrt(s / (1 - 0.999**self.step)) + 1e-8)


def encode(last: Array, digit: Array, position: int) -> Array:
    """Inputs of the policy: the last partial sum, the next digit and the position."""
    out = np.zeros((len(last), 20 + ANSWER))
    rows = np.arange(len(last))
    out[rows, last], out[rows, 10 + digit], out[rows, 20 + position] = 1, 1, 1
    return out


def base(seed: int, hard: float) -> Policy:
    """A policy that has learned each fact with an error of its own rate."""
    rng = np.random.default_rng([seed, 1])
    policy = Policy.new(rng)
    optimizer = Adam(policy, 3e-3)
    wrong = rng.beta(0.6, 1.0 / hard, (10, 10))
    for _ in range(800):
        last, digit = rng.integers(0, 10, (2, 256))
        target = np.where(rng.random(256) < wrong[last, digit], rng.integers(0, 10, 256), (last + digit) % 10)
        inputs = encode(last, digit, 0)
        inputs[:, 20:] = np.eye(ANSWER)[rng.integers(0, ANSWER, 256)]
        first, second, share = policy.forward(inputs)
        share[np.arange(256), target] -= 1
        optimizer.update(policy.backward(inputs, first, second, share / 256))
    return policy


def answer(policy: Policy, questions: Array, rng: np.random.Generator) -> tuple[Array, list[tuple[Array, ...]]]:
    """Return which sampled answers are right, and what their gradient needs."""
    last, right = questions[:, 0], np.ones(len(questions), dtype=bool)
    kept: list[tuple[Array, ...]] = []
    truth = questions[:, 0]
    for position in range(ANSWER):
        digit = questions[:, position + 1]
        inputs = encode(last, digit, position)
        first, second, share = policy.forward(inputs)
        chosen = (share.cumsum(axis=1) < rng.random((len(last), 1))).sum(axis=1).clip(0, 9)
        kept.append((inputs, first, second, share, chosen))
        truth = (truth + digit) % 10
        right &= chosen == truth
        last = chosen
    return right, kept


def train(
    start: Policy, *, n: int, batch: int, rate: float, seed: int, grid: list[int], questions: int
) -> list[tuple[int, float]]:
    """Evaluations of one run."""
    policy = Policy([w.copy() for w in start.weights])
    optimizer = Adam(policy, rate)
    order, luck = np.random.default_rng([seed, 2]), np.random.default_rng([seed, n, batch, 3])
    asked = np.random.default_rng(7).integers(0, 10, (questions, DIGITS)).repeat(SAMPLES, axis=0)
    practice = np.random.default_rng(8).integers(0, 10, (256, DIGITS))
    seen, evals = 0, []
    left = list(grid)
    while True:
        while left and seen >= left[0]:
            right, _ = answer(policy, asked, np.random.default_rng([seed, left.pop(0), 4]))
            evals.append((seen, float(right.mean())))
        if seen + batch * n > grid[-1]:
            return evals
        drawn = practice[order.integers(0, len(practice), batch)].repeat(n, axis=0)
        right, kept = answer(policy, drawn, luck)
        reward = right.reshape(batch, n).astype(float)
        advantage = ((reward - reward.mean(1, keepdims=True)) / (reward.std(1, keepdims=True) + 1e-4)).ravel()
        total = [np.zeros_like(w) for w in policy.weights]
        for inputs, first, second, share, chosen in kept:
            by = share * advantage[:, None]
            by[np.arange(len(by)), chosen] -= advantage
            for t, g in zip(total, policy.backward(inputs, first, second, by / len(by)), strict=True):
                t += g
        optimizer.update(total)
        seen += batch * n


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs of one base model."""

    base: int
    hard: float
    ns: tuple[int, ...]
    rates: tuple[float, ...]
    batches: tuple[int, ...] = (8,)
    seeds: int = 2
    budget: int = 32_768
    grid: str = "linear"
    questions: int = 300


SWEEPS = {
    "easy": Sweep(base=0, hard=1.0, ns=(2, 4, 8, 16, 32), rates=(3e-4, 3e-3, 9e-3, 1.5e-2)),
    "hard": Sweep(base=1, hard=4.0, ns=(4, 8, 16, 32), rates=(1e-4, 1e-3, 6e-3, 1.2e-2), grid="doubling"),
    "seeds": Sweep(base=2, hard=2.0, ns=(4, 8, 16), rates=(1e-2,), seeds=12),
    "batches": Sweep(base=3, hard=2.0, ns=(4, 16), batches=(2, 8, 32), rates=(1e-3, 1e-2)),
    "few questions": Sweep(base=5, hard=3.0, ns=(4, 8, 16), rates=(5e-4, 4e-3, 1e-2), questions=40),
    "logged": Sweep(base=4, hard=2.0, ns=(4, 16), rates=(1e-3, 1e-2), grid="dense"),
}
"""Rates are at 64 rollouts a batch, and grow with the square root of the batch."""


def grid_of(kind: str, budget: int) -> list[int]:
    """Rollouts at which a run is evaluated."""
    if kind == "doubling":
        return [0, *(int(budget / 2**k) for k in np.arange(6, -0.25, -0.5))]
    return [int(c) for c in np.linspace(0, budget, 129 if kind == "dense" else 17)]


def runs_of(name: str, sweep: Sweep) -> list[dict[str, object]]:
    """Rows of an ``evals`` table."""
    start, rows = base(sweep.base, sweep.hard), []
    for n, batch, rate, seed in product(sweep.ns, sweep.batches, sweep.rates, range(sweep.seeds)):
        own = rate * float(np.sqrt(batch * n / 64))
        grid = grid_of(sweep.grid, sweep.budget)
        found = train(start, n=n, batch=batch, rate=own, seed=seed, grid=grid, questions=sweep.questions)
        setting = {"rollouts_per_problem": n, "problems_per_batch": batch, "seed": seed, "learning_rate": own}
        asked = {"questions": sweep.questions, "samples": SAMPLES}
        rows += [{"sweep": name, **setting, "rollouts": c, "avg_at_4": r, **asked} for c, r in found]
    return rows


if __name__ == "__main__":
    pl.DataFrame([row for name, sweep in SWEEPS.items() for row in runs_of(name, sweep)]).write_parquet(sys.argv[1])
