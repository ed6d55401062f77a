"""Wall time: how long engines take for a batch, which devices wait meanwhile, and the device time paid for all of them.

A decoding step of an engine takes ``step + each × responses alive`` seconds. Over a batch, that is

    step × (steps until its last response ends) + each × (tokens that it generates).

Replicas divide only the second part, and a batch takes as long as its longest response. Device time is wall time ×
devices held, so devices that wait are paid for, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import exp, log
from random import Random
from statistics import NormalDist

from ..errors import BudgetError, whole
from .compute import Device, Interval, Model, head_seconds, seconds

SIGMA = 1.0
"""Assumed standard deviation of the logarithm of lengths."""
NORMAL = NormalDist()


def spread_lengths(count: int, *, mean: float, longest: int, sigma: float = SIGMA) -> list[int]:
    """Response lengths: shuffled quantiles of a truncated lognormal distribution.

    Args:
        mean: Mean of the truncated distribution.
        longest: Where it is truncated (tokens); from this mean on, all lengths equal it.
    """
    whole(count, "count", least=1)
    whole(longest, "longest", least=1)
    if not mean > 0:
        raise BudgetError(f"the mean length is {mean!r}; it must be positive")
    if mean >= longest:
        return [longest] * count
    # Find the mean of the logarithm from the truncated mean, by bisection.
    low, high = log(mean) - sigma**2 / 2, log(longest) + 40 * sigma
    while high - low > 1e-9:
        center = (low + high) / 2
        cut = (log(longest) - center) / sigma
        found = exp(center + sigma**2 / 2) * NORMAL.cdf(cut - sigma) + longest * NORMAL.cdf(-cut)
        low, high = (center, high) if found < mean else (low, center)
    normal = NormalDist(low, sigma)
    lengths = [max(1, round(min(longest, exp(normal.inv_cdf((i + 0.5) / count))))) for i in range(count)]
    Random(0).shuffle(lengths)
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An engine's work for a batch: decoding steps until its last response ends, and tokens generated."""

    steps: float
    tokens: float


def dispatched(lengths: Iterable[float], *, replicas: int, limit: int) -> tuple[Decoded, ...]:
    """Return each replica's work if responses begin in order, each as soon as a replica has room.

    While responses wait, all replicas are full, so their steps take equally long. Which one is free next therefore
    depends only on lengths, not on the duration of a step.

    Args:
        limit: Most concurrent responses in a replica.
    """
    whole(replicas, "replicas", least=1)
    whole(limit, "limit", least=1)
    waiting = list(lengths)
    places = [(0.0, place) for place in range(min(replicas * limit, len(waiting)))]
    steps, tokens = [0.0] * replicas, [0.0] * replicas
    for length in waiting:
        begins, place = places[0]
        heapreplace(places, (begins + length, place))
        replica = place % replicas
        steps[replica], tokens[replica] = max(steps[replica], begins + length), tokens[replica] + length
    return tuple(Decoded(steps=s, tokens=t) for s, t in zip(steps, tokens, strict=True))


def unbroken(lengths: Sequence[int], *, replicas: int, limit: int) -> tuple[Decoded, ...]:
    """The work of each replica, as for ``dispatched``, if the next batch fills every slot that becomes free."""
    alive = min(limit, max(1.0, len(lengths) / whole(replicas, "replicas", least=1)))
    tokens = sum(lengths) / replicas
    return (Decoded(steps=tokens / alive, tokens=tokens),) * replicas


BANDWIDTH = (0.4, 0.6, 0.8)
"""Low, likely and high share of memory bandwidth that decoding reaches: assumed unless measured."""
DECODING = (0.3, 0.5, 0.7)
"""Low, likely and high share of the peak that an engine's matrix products reach: assumed unless measured."""
WIDTH = 2
"""Bytes per bfloat16 number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Times of an engine (seconds).

    Attributes:
        step: Per decoding step, however many responses are alive: reading the weights.
        each: Per response alive in the step: multiplying by the weights, and reading its keys and values.
        prompt: Per prompt token.
    """

    step: Interval
    each: Interval
    prompt: Interval

    def of(self, work: Decoded, *, prompt_tokens: float = 0.0) -> Interval:
        """Seconds for an engine's part of a batch; shared prompts count once."""
        return self.step.times(work.steps) + self.each.times(work.tokens) + self.prompt.times(prompt_tokens)


def latency(model: Model, on: Device, *, context: float, devices: int = 1, float32_head: bool = False) -> Latency:
    """The times of an engine in bfloat16, from a device's memory bandwidth and FLOP/s.

    Args:
        context: Mean tokens in a response's context as it grows: its prompt, and what it has generated.
        devices: Devices that share the model (tensor parallelism), assumed lossless.
    """
    share = 1 / whole(devices, "devices", least=1)
    head = model.head if float32_head else 0
    lower, weights = model.active - head, WIDTH * model.parameters + (4 - WIDTH) * head
    values = (model.layers or 0) * (2 * (model.width or 0) if model.kv_values is None else model.kv_values)

    reads = f"{BANDWIDTH[0]:.0%} to {BANDWIDTH[-1]:.0%} (likely {BANDWIDTH[1]:.0%})"
    said = f"decoding reads at {reads} of the {on.bandwidth / 1e12:.2f} TB/s of {on.name}"

    def read(amount: float) -> Interval:
        return Interval.sure(amount * share).over([on.bandwidth * part for part in BANDWIDTH], said)

    def multiplied(parameters: float) -> Interval:
        return seconds(Interval.sure(2.0 * parameters * share), on, DECODING, "an engine's product")

    once = multiplied(lower)
    if head:
        once += head_seconds(Interval.sure(2.0 * head * share), on)
    return Latency(step=read(weights), each=once + read(WIDTH * values * context), prompt=multiplied(lower))


HOST = (12e9, 25e9, 50e9)
"""Low, likely and high transfer rate between a device and its host, in bytes/s: assumed."""


def switch(model: Model) -> Interval:
    """Seconds for an engine to leave its device and come back: its weights move to host memory and return."""
    said = f"an engine's weights go to the host and back at {HOST[0] / 1e9:.0f} to {HOST[-1] / 1e9:.0f} GB/s"
    return Interval.sure(2 * WIDTH * model.parameters).over(HOST, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Time for some batches.

    Attributes:
        wall: Seconds from beginning to end.
        held: Device-seconds of all devices held meanwhile; these are paid for.
        busy: The part of them in which a device works.
    """

    wall: Interval
    held: Interval
    busy: Interval

    def __add__(self, other: Spent) -> Spent:
        """The time of both in sequence."""
        return Spent(wall=self.wall + other.wall, held=self.held + other.held, busy=self.busy + other.busy)

    def times(self, count: float) -> Spent:
        """The time of this many in sequence."""
        return Spent(wall=self.wall.times(count), held=self.held.times(count), busy=self.busy.times(count))

    @property
    def idle(self) -> float:
        """Share of the device time that devices spend waiting for each other, likely value."""
        return 1 - self.busy.likely / self.held.likely


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices of a run, all held from beginning to end.

    Attributes:
        held: All devices: fewer than ranks and engines together need if they take turns on the same devices.
        pipelined: Whether engines sample while ranks learn from earlier samples, which is off-policy.
        switch: Seconds per step for devices to switch between sampling and learning; None for none.
    """

    ranks: int
    engines: int
    devices: int = 1
    held: int
    pipelined: bool = False
    switch: Interval | None = None

    def step(self, sampling: Sequence[Interval], update: Interval | None = None) -> Spent:
        """Return the time of a batch.

        Args:
            sampling: Seconds for each engine.
            update: Device-seconds to learn from it; None for a batch that is only scored.
        """
        wall = longest(sampling)
        busy = sum(sampling[1:], sampling[0]).times(self.devices)
        if update is not None:
            busy += update
            learning = update.times(1 / self.ranks)
            wall = longest([wall, learning]) if self.pipelined else wall + learning
            wall = wall if self.switch is None else wall + self.switch
        return Spent(wall=wall, held=wall.times(self.held), busy=busy)


def longest(intervals: Sequence[Interval]) -> Interval:
    """The time until all of several concurrent tasks end, as if all errors had the same sign."""
    said = (said for interval in intervals for said in interval.assumptions)
    return Interval.of(map(max, zip(*(interval.amounts for interval in intervals), strict=True)), *said)
