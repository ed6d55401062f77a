"""Whole steps beside TRL's, in CPU-seconds, interleaved in one run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from isocompute.learner import Learner

from benchmarks.sampler import SIZES, cpu_seconds, save_model
from experiments.errors import ExperimentError

from . import theirs
from .steps import CONFIG, CoinFlips, Steps, open_engine, problems_table, sampling

LEAST = {16: 1.3, 64: 1.4}
"""Speed as a multiple of TRL's, with and without gradient checkpointing, by the most new tokens."""
LEAST_ELSE = 1.0
"""The same with other lengths."""
MOST_LENGTH = 0.02
"""Largest difference of mean response lengths, as a share of TRL's."""
OURS, TRL, PLAIN = "ours", "TRL", "TRL without gradient checkpointing"
BLOCK_ROLLOUTS = 2048
"""Rollouts of a block, about: CPU-seconds come in hundredths."""
WANTED = "--trl must be an interpreter with trl==1.16.*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Costs of some steps.

    Attributes:
        seconds: CPU-seconds of the process and its children.
        rollouts: Responses sampled.
        tokens: Their tokens.
        zero_variance: Share of the responses in groups of equal rewards.
    """

    seconds: float
    rollouts: int
    tokens: int
    zero_variance: float


class Process:
    """TRL in a process of its own, halted between blocks.

    Args:
        python: An interpreter with TRL.
        samples: Responses per problem.
        new_tokens: Most tokens of a response.
        checkpointing: Whether activations are computed again in the backward pass, as TRL does by default.
        cuda: Whether it runs on a GPU, with vLLM; seconds are then of wall time.

    Raises:
        ExperimentError: The interpreter cannot be run.
    """

    def __init__(
        self, python: Path, model: Path, *, samples: int, new_tokens: int, checkpointing: bool, cuda: bool = False
    ) -> None:
        command = [
            str(python),
            "-I",
            theirs.__file__,
            str(model),
            "--samples",
            str(samples),
            "--new-tokens",
            str(new_tokens),
        ]
        command += ["--checkpointing"] * checkpointing + ["--cuda"] * cuda
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=variables
            )
        except OSError as error:
            self._errors.close()
            raise ExperimentError(f"{python} cannot be run ({error.strerror}); {WANTED}") from None

    def take(self, steps: int) -> Block:
        """Take some steps.

        Args:
            steps: How many.

        Raises:
            ExperimentError: The process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(steps, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._errors.seek(0)
            last = (self._errors.read().strip() or "it said nothing").splitlines()[-1]
            raise ExperimentError(f"TRL's process ended ({last}); {WANTED}")
        return Block(**json.loads(answer))

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # At the end of its input the process ends; within a block, where ours was interrupted, it does not read.
        self._process.kill()
        self._process.wait()
        self._errors.close()


def ours(steps: Steps, flips: CoinFlips, clock: Callable[[], float] = cpu_seconds) -> Callable[[int], Block]:
    """Return what takes a number of our steps.

    Args:
        clock: Says how many seconds have passed.
    """

    def take(count: int) -> Block:
        rollouts, tokens, began = flips.rollouts, flips.tokens, clock()
        steps.take(count)
        seconds = clock() - began
        groups = [r.responses.zero_variance_share for r in steps.records[-count:] if r.responses is not None]
        return Block(
            seconds=seconds,
            rollouts=flips.rollouts - rollouts,
            tokens=flips.tokens - tokens,
            zero_variance=statistics.mean(share for share in groups if share is not None),
        )

    return take


def ratio(times: Sequence[Block], others: Sequence[Block]) -> tuple[float, float, float]:
    """Return how many times as fast the first are, over all blocks, with a 95 % interval.

    Args:
        others: Blocks of the other, in the same order.
    """
    return _ratio([b.seconds / b.rollouts for b in others], [b.seconds / b.rollouts for b in times])


def _ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """A ratio of means over blocks, and the interval from drawing pairs again: a pair ran one after the other."""
    a, b = np.array(over), np.array(under)
    drawn = np.random.default_rng(0).integers(0, len(a), (4000, len(a)))
    low, high = np.quantile(a[drawn].mean(1) / b[drawn].mean(1), [0.025, 0.975])
    return float(a.mean() / b.mean()), float(low), float(high)


def unlike(blocks: Sequence[Block], others: Sequence[Block]) -> list[str]:
    """Return in what two ways were not given the same work, so that their speeds say nothing.

    Coin flips are the same on both sides, and with them the groups of equal rewards. Lengths are sampled, so that a
    difference counts where the whole 95 % interval of their ratio is too far from 1.

    Args:
        others: Blocks of the other, in the same order.
    """
    found = []
    shares = [statistics.mean(block.zero_variance for block in side) for side in (blocks, others)]
    if any(abs(a.zero_variance - b.zero_variance) > 1e-9 for a, b in zip(blocks, others, strict=True)):
        found.append(f"shares of groups of equal rewards are {shares[0]:.3f} and {shares[1]:.3f}, and must be equal")
    lengths = [[block.tokens / block.rollouts for block in side] for side in (blocks, others)]
    mean, low, high = _ratio(*lengths)
    if low > 1 + MOST_LENGTH or high < 1 - MOST_LENGTH:
        found.append(
            f"mean response lengths differ by {mean - 1:+.1%} (95 %: {low - 1:+.1%} to {high - 1:+.1%}), and they may "
            f"by {MOST_LENGTH:.0%}"
        )
    return found


def line(name: str, blocks: Sequence[Block]) -> str:
    """Return one way's speed over the blocks, mean and spread, and what was sampled."""
    speeds = [block.rollouts / block.seconds for block in blocks]
    rollouts = sum(block.rollouts for block in blocks)
    mean = rollouts / sum(block.seconds for block in blocks)
    spread = statistics.stdev(speeds) if len(speeds) > 1 else 0.0
    length = sum(block.tokens for block in blocks) / rollouts
    equal = statistics.mean(block.zero_variance for block in blocks)
    return (
        f"  {name:36}{mean:8.1f} rollouts per CPU-second (sd {spread:5.1f}, {min(speeds):.0f} to {max(speeds):.0f}), "
        f"{length:5.2f} tokens each, {equal:.3f} of them in groups of equal rewards"
    )


def one(
    engine: Any, learner: Learner, model: Path, *, samples: int, new_tokens: int, blocks: int, python: Path | None
) -> list[str]:
    """Compare at one n and one length; print the speeds, and return what is slower than it may be.

    Args:
        samples: Responses per problem, n.
        new_tokens: Most tokens of a response.
        python: An interpreter with TRL, or None.
    """
    count = max(2, round(BLOCK_ROLLOUTS / (theirs.PROBLEMS_PER_BATCH * samples) * min(1.0, 32 / new_tokens)))
    engine.use(sampling(new_tokens))
    learner.reset(CONFIG)
    engine.sync(learner.weights(), learner.version)
    flips = CoinFlips(engine)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        problems = problems_table(8 * theirs.PROBLEMS_PER_BATCH)
        steps = Steps(learner, flips, problems, groups=theirs.PROBLEMS_PER_BATCH, samples=samples, folder=folder)
        ways: dict[str, Callable[[int], Block]] = {OURS: ours(steps, flips)}
        for name in (TRL, PLAIN) if python is not None else ():
            assert python is not None
            process = Process(python, model, samples=samples, new_tokens=new_tokens, checkpointing=name == TRL)
            ways[name] = stack.enter_context(process).take
        # The first steps load code, and are those of the warm-up of the learning rate for all.
        for take in ways.values():
            take(max(count, theirs.WARMUP_STEPS))
        steps.records.clear()
        found: dict[str, list[Block]] = {name: [] for name in ways}
        for block in range(blocks):
            order = list(ways)[:: 1 if block % 2 == 0 else -1]
            for name in order:
                found[name].append(ways[name](count))
        print(f"n = {samples}, {new_tokens} new tokens, {blocks} blocks of {count} steps:")
        for name, made in found.items():
            print(line(name, made))
        print(f"  ours, wall time per rollout: {steps.phases()}", flush=True)
    return verdict(found, samples=samples, new_tokens=new_tokens)


def verdict(found: dict[str, list[Block]], *, samples: int, new_tokens: int) -> list[str]:
    """Print how many times as fast as TRL we are, and return what is slower than it may be, or was not the same work.

    The lower end of the interval counts.

    Args:
        samples: Responses per problem.
        new_tokens: Most tokens of a response.
    """
    wrong = []
    for name in (TRL, PLAIN):
        if name in found:
            mean, low, high = ratio(found[OURS], found[name])
            least = LEAST.get(new_tokens, LEAST_ELSE)
            print(f"  over {name}: {mean:.2f} (95 %: {low:.2f} to {high:.2f}; at least {least:g})", flush=True)
            if low < least:
                wrong.append(
                    f"ours has {mean:.2f} times the speed of {name} (95 %: {low:.2f} to {high:.2f}), and the lower end "
                    f"must be at least {least:g}"
                )
            wrong += [f"beside {name} {difference}" for difference in unlike(found[OURS], found[name])]
    return [f"with n = {samples} and {new_tokens} new tokens {what}" for what in wrong]


def compare(
    *, size: str, samples: Sequence[int], new_tokens: Sequence[int], blocks: int, python: Path | None
) -> list[str]:
    """Compare at every n and length; print tables, and return what is slower than it may be.

    Args:
        size: One of ``SIZES``.
        samples: Responses per problem.
        new_tokens: Most tokens of a response.
        blocks: Blocks of each way and setting.
        python: An interpreter with TRL 1.16, or None: then ours alone is timed.
    """
    slow: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, **SIZES[size])
        engine = open_engine(folder, max(new_tokens), responses=theirs.PROBLEMS_PER_BATCH * max(samples))
        learner = Learner(folder, CONFIG)
        for length in new_tokens:
            for n in samples:
                slow += one(engine, learner, folder, samples=n, new_tokens=length, blocks=blocks, python=python)
        engine.close()
    if python is None:
        print("TRL was not run: --trl must name an interpreter with trl==1.16.* for a comparison")
    return slow
