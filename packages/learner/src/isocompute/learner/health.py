"""Is a run healthy? Flags from its records: entropy, length, reward, and the sampler's agreement with the learner.

The IsoCompute Playbook (arXiv 2603.12151, section 3) names what an unhealthy run looks like: without an entropy bonus
the entropy collapses on easy problems, and with one it explodes on hard ones, and response lengths with it (Factor 1);
a learning rate that is too high for its batch ends in a fall of the reward (Factor 2). The section gives no numbers for
a flag: those in ``Thresholds`` are this library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .records import Record, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From where on a run is flagged. «Start» is the mean of the first ``window`` steps, «now» that of the last.

    Attributes:
        window: Steps that are averaged.
        entropy_low: Share of the start's entropy below which it has collapsed.
        solved: Mean reward from which on a low entropy is no fault: there is little left to explore.
        entropy_high: Multiple of the start's entropy above which it has exploded.
        entropy_rise: Least rise that counts as an explosion (nats per token).
        length_high: Multiple of the start's response length above which it has exploded.
        length_rise: Least rise that counts as an explosion (tokens).
        reward_gain: Rise of the mean reward that longer responses are worth.
        truncated: Share of truncated responses that is too high.
        truncated_rise: Least rise of that share since the start.
        reward_errors: Standard errors by which the reward must be below its start.
        reward_fall: Least fall of the mean reward that counts.
        weight: Largest distance of the mean truncated importance weight from 1.
        k3: Largest k3 estimate of KL(sampler ‖ learner) (nats per token).
        effective_sample_size: Smallest effective sample size, as a share of the tokens.
    """

    window: int = 10
    entropy_low: float = 0.1
    solved: float = 0.95
    entropy_high: float = 2.0
    entropy_rise: float = 0.2
    length_high: float = 2.0
    length_rise: float = 8.0
    reward_gain: float = 0.05
    truncated: float = 0.25
    truncated_rise: float = 0.1
    reward_errors: float = 5.0
    reward_fall: float = 0.05
    weight: float = 0.1
    k3: float = 0.01
    effective_sample_size: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One thing that is wrong with a run, at the first step at which it was.

    Attributes:
        name: ``entropy_collapse``, ``entropy_explosion``, ``length_explosion``, ``truncation``, ``reward_collapse`` or
            ``mismatch``.
        step: The step.
        reason: One sentence with the numbers that say why.
        values: These numbers by name.
    """

    name: str
    step: int
    reason: str
    values: Mapping[str, float]


def flags(records: Iterable[Record], thresholds: Thresholds | None = None) -> list[Flag]:
    """Return what is wrong with a run, each thing once, by the step at which it began.

    Entropy, length and reward are compared with the run's own start, so twice ``window`` steps are needed; a step
    whose responses all failed is left out. The reward is not compared beyond the first pass in which no-positive
    resampling has dropped problems, since those that are left are harder.

    Args:
        records: What ``watch`` was called with. Where a step was taken again, its last record counts.
        thresholds: When to flag; None for the defaults.
    """
    limits = thresholds or Thresholds()
    steps = {record.step: record for record in records if isinstance(record, StepRecord)}
    ordered = [steps[step] for step in sorted(steps)]
    found = [check(ordered, limits) for check in _CHECKS]
    return sorted((flag for flag in found if flag is not None), key=lambda flag: (flag.step, flag.name))


@dataclass(frozen=True, slots=True)
class _Series:
    """One number of every step that has it."""

    steps: Sequence[int]
    values: np.ndarray

    def windows(self, window: int) -> Iterable[tuple[int, float, float]]:
        """The step at the end of every window after the start, the mean of the start and that of the window."""
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        for end in range(2 * window, len(self.values) + 1):
            yield self.steps[end - 1], sums[window] / window, (sums[end] - sums[end - window]) / window


def _series(records: Sequence[StepRecord], name: str) -> _Series:
    """A number of the responses or of the update, where it is there and finite."""
    found = []
    for record in records:
        value = getattr(record.responses, name, None) if record.responses is not None else None
        if value is not None and math.isfinite(value):
            found.append((record.step, float(value)))
    return _Series([step for step, _ in found], np.array([value for _, value in found]))


def _entropy_collapse(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    rewards = {step: now for step, _, now in _series(records, "reward").windows(limits.window)}
    for step, start, now in _series(records, "sampled_entropy").windows(limits.window):
        if start > 0 and now < limits.entropy_low * start and rewards.get(step, 0.0) < limits.solved:
            reason = (
                f"the entropy fell from {start:.3g} to {now:.3g} nats per token, below {limits.entropy_low:g} of its "
                f"start, at a mean reward of {rewards.get(step, math.nan):.3g}"
            )
            return Flag(name="entropy_collapse", step=step, reason=reason, values={"start": start, "now": now})
    return None


def _entropy_explosion(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    for step, start, now in _series(records, "sampled_entropy").windows(limits.window):
        if now > max(limits.entropy_high * start, start + limits.entropy_rise):
            reason = (
                f"the entropy rose from {start:.3g} to {now:.3g} nats per token, above {limits.entropy_high:g} times "
                "its start"
            )
            return Flag(name="entropy_explosion", step=step, reason=reason, values={"start": start, "now": now})
    return None


def _length_explosion(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    gains = {step: now - start for step, start, now in _series(records, "reward").windows(limits.window)}
    for step, start, now in _series(records, "response_length").windows(limits.window):
        gain = gains.get(step, 0.0)
        if now > max(limits.length_high * start, start + limits.length_rise) and gain < limits.reward_gain:
            reason = (
                f"the mean response length rose from {start:.3g} to {now:.3g} tokens, above {limits.length_high:g} "
                f"times its start, and the mean reward by {gain:.3g}"
            )
            values = {"start": start, "now": now, "gain": gain}
            return Flag(name="length_explosion", step=step, reason=reason, values=values)
    return None


def _truncation(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    for step, start, now in _series(records, "truncated_share").windows(limits.window):
        if now > max(limits.truncated, start + limits.truncated_rise):
            reason = (
                f"the share of truncated responses rose from {start:.3g} to {now:.3g}, above {limits.truncated:g}: "
                "their answers are lost"
            )
            return Flag(name="truncation", step=step, reason=reason, values={"start": start, "now": now})
    return None


def _reward_collapse(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    whole = [record for record in records if not record.dropped_problems]
    rewards = _series(whole, "reward")
    # The noise of a step, whatever the trend: half the mean square of differences between neighbours.
    squares = np.concatenate([[0.0], np.cumsum(np.diff(rewards.values) ** 2)]) / 2
    for end, (step, start, now) in enumerate(rewards.windows(limits.window), start=2 * limits.window):
        error = math.sqrt(2 * squares[end - 1] / (end - 1) / limits.window)
        if start - now > max(limits.reward_errors * error, limits.reward_fall):
            reason = (
                f"the mean reward fell from {start:.3g} to {now:.3g}, by more than {limits.reward_errors:g} standard "
                f"errors of {error:.2g}"
            )
            return Flag(
                name="reward_collapse", step=step, reason=reason, values={"start": start, "now": now, "error": error}
            )
    return None


def _mismatch(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    for record in records:
        if record.update is None:
            continue
        numbers = record.update.metrics()
        weight, k3 = numbers.get("importance_weight", 1.0), numbers.get("mismatch_k3", numbers["sync_k3"])
        size = numbers.get("effective_sample_size", 1.0)
        # Not «above»: a number that is not finite is no agreement.
        if abs(weight - 1) <= limits.weight and k3 <= limits.k3 and size >= limits.effective_sample_size:
            continue
        reason = (
            f"sampler and learner differ: importance weight {weight:.3g} (1 ± {limits.weight:g}), k3 {k3:.2g} nats "
            f"(at most {limits.k3:g}), effective sample size {size:.3g} (at least {limits.effective_sample_size:g})"
        )
        values = {"importance_weight": weight, "k3": k3, "effective_sample_size": size}
        return Flag(name="mismatch", step=record.step, reason=reason, values=values)
    return None


_CHECKS: tuple[Callable[[Sequence[StepRecord], Thresholds], Flag | None], ...] = (
    _entropy_collapse,
    _entropy_explosion,
    _length_explosion,
    _truncation,
    _reward_collapse,
    _mismatch,
)
