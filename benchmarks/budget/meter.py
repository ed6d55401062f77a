"""Time the meter in a training loop: the same steps with it and without it, interleaved in one run.

    python benchmarks/budget/meter.py [--steps 200] [--step-seconds 0.05]

A step is CPU work as long as the smallest steps of the learner (50 ms), followed either by ``admit`` and ``charge``
through the meter or by a no-op. Each pair does one of each, in alternating order; the ratio is that of the sums of
CPU-seconds, with a bootstrap interval over pairs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from isocompute.budget import Counts, Ledger, Limits, Meter


def work(rounds: int) -> int:
    """Keep the processor busy."""
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total


def timed(rounds: int, account: Callable[[], None]) -> tuple[float, float]:
    """CPU-seconds and seconds of one step."""
    began, cpu = time.perf_counter(), time.process_time()
    work(rounds)
    account()
    return time.process_time() - cpu, time.perf_counter() - began


def ratio(pairs: list[tuple[float, float]]) -> float:
    """Time with the meter over time without it."""
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()
    began = time.process_time()
    work(10**6)
    rounds = int(10**6 * arguments.step_seconds / (time.process_time() - began))
    trained = Counts(rollouts=24, prompt_tokens=240, response_tokens=360)
    counts = {"trained": trained, "filtered": Counts(rollouts=8, prompt_tokens=80, response_tokens=120)}
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "a.ledger", run_id="run") as ledger:
        meter = Meter(ledger, Limits(rollouts=10**9))
        step = 0

        def metered() -> None:
            nonlocal step
            step += 1
            meter.admit(step, 32)
            meter.charge(step, counts)

        cpu: list[tuple[float, float]] = []
        wall: list[tuple[float, float]] = []
        for number in range(arguments.steps):
            first, second = (metered, lambda: None) if number % 2 else (lambda: None, metered)
            one, other = timed(rounds, first), timed(rounds, second)
            with_it, without = (one, other) if number % 2 else (other, one)
            cpu.append((with_it[0], without[0]))
            wall.append((with_it[1], without[1]))
    source = random.Random(1)
    for name, pairs in (("CPU-seconds", cpu), ("seconds", wall)):
        resampled = sorted(ratio(source.choices(pairs, k=len(pairs))) for _ in range(2000))
        low, high = resampled[50], resampled[-51]
        mean = sum(b for _, b in pairs) / len(pairs)
        print(
            f"{name:12} with the meter / without: {ratio(pairs):.4f}, 95% interval {low:.4f} to {high:.4f} "
            f"({arguments.steps} pairs of steps of {mean * 1e3:.1f} ms)"
        )


if __name__ == "__main__":
    main()
