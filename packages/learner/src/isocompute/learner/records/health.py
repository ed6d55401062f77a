"""Is a run healthy? Flags from its records: entropy, length, reward, and the sampler's agreement with the learner.

The IsoCompute Playbook (arXiv 2603.12151, section 3) names what an unhealthy run looks like: without an entropy bonus
the entropy collapses on easy problems, and with one it explodes on hard ones, and response lengths with it (Factor 2);
a learning rate that is too high for its batch ends in a fall of the reward (Factor 3). The section gives no numbers for
a flag: those in ``Thresholds`` are this library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .steps import Record, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From where on a run is flagged. «Start» is the mean of the first ``window`` steps, «now» that of the last.

    Attributes:
        window: Steps that are averaged.
        entropy_low: Share of the start's entropy below which it has collapsed, where it stays there for ``window``
            steps in which the policy neither solves its problems nor learns.
        solved: Mean reward from which on a low entropy is no fault: there is little left to explore.
        entropy_high: Multiple of the start's entropy above which it has exploded.
        entropy_rise: Least rise that counts as an explosion (nats per token).
        length_high: Multiple of the start's response length above which it has exploded.
        length_rise: Least rise that counts as an explosion (tokens).
        reward_gain: Rise of the mean reward that excuses longer responses (since the start) and a low entropy (over the
            last two windows).
        truncated: Share of truncated responses that is too high.
        truncated_rise: Least rise of that share since the start.
        reward_errors: Standard errors by which the reward must be below its start, or below its best window.
        reward_fall: Least fall of the mean reward that counts.
        reward_lost: Share of the gain, from the start to the best window, that a fall from that window must exceed.
        weight: Largest distance of the mean truncated importance weight from 1.
        k3: Largest k3 estimate of KL(sampler ‖ learner) (nats per token).
        effective_sample_size: Smallest effective sample size, as a share of the tokens.
    """

    window: int = 10
    entropy_low: float = 0.1
    solved: float = 0.85
    entropy_high: float = 2.0
    entropy_rise: float = 0.2
    length_high: float = 2.0
    length_rise: float = 8.0
    reward_gain: float = 0.05
    truncated: float = 0.25
    truncated_rise: float = 0.1
    reward_errors: float = 5.0
    reward_fall: float = 0.05
    reward_lost: float = 0.5
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
    limits, ordered = thresholds or Thresholds(), _steps(records)
    found = [check(ordered, limits) for check in _CHECKS]
    return sorted((flag for flag in found if flag is not None), key=lambda flag: (flag.step, flag.name))


def judged(records: Iterable[Record], thresholds: Thresholds | None = None) -> bool:
    """Return whether a run is long enough to be judged: two windows of steps with completed responses.

    In a shorter one there is no start to compare with: only ``mismatch`` is looked for, and having no flag says little.

    Args:
        records: As for ``flags``.
        thresholds: As for ``flags``.
    """
    limits = thresholds or Thresholds()
    return len(_series(_steps(records), "reward").steps) >= 2 * limits.window


def _steps(records: Iterable[Record]) -> list[StepRecord]:
    """The last record of every step, in order."""
    steps = {record.step: record for record in records if isinstance(record, StepRecord)}
    return [steps[step] for step in sorted(steps)]


@dataclass(frozen=True, slots=True)
class _Series:
    """One number of every step that has it."""

    steps: Sequence[int]
    values: np.ndarray

    def windows(self, window: int) -> Iterable[tuple[int, float, float]]:
        """The step at the end of every window after the start, the mean of the start and that of the window."""
        means = self.means(window)
        for end in range(2 * window, len(self.values) + 1):
            yield self.steps[end - 1], means[0], means[end - window]

    def means(self, window: int) -> np.ndarray:
        """The mean of every window, in the order of their first steps."""
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        means: np.ndarray = (sums[window:] - sums[:-window]) / window
        return means


def _series(records: Sequence[StepRecord], name: str) -> _Series:
    """A number of the responses or of the update, where it is there and finite."""
    found = []
    for record in records:
        value = getattr(record.responses, name, None) if record.responses is not None else None
        if value is not None and math.isfinite(value):
            found.append((record.step, float(value)))
    return _Series([step for step, _ in found], np.array([value for _, value in found]))


def _entropy_collapse(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    rewards = _series(records, "reward")
    means = rewards.means(limits.window)
    # The window at each step, and the one that ended two windows before; early in a run, the start.
    learnt = {
        step: (now, now - means[max(0, place - 2 * limits.window)])
        for place, (step, _, now) in enumerate(rewards.windows(limits.window), start=limits.window)
    }
    held = 0
    for step, start, now in _series(records, "sampled_entropy").windows(limits.window):
        reward, gain = learnt.get(step, (math.inf, math.inf))
        low = start > 0 and now < limits.entropy_low * start
        # For as many steps as a window has: noise alone often takes one window's reward below ``solved``.
        held = held + 1 if low and reward < limits.solved and gain < limits.reward_gain else 0
        if held == limits.window:
            reason = (
                f"the entropy fell from {start:.3g} to {now:.3g} nats per token, below {limits.entropy_low:g} of its "
                f"start, at a mean reward of {reward:.3g} that changed by {gain:+.2g} in {2 * limits.window} steps"
            )
            values = {"start": start, "now": now, "reward": reward, "gain": gain}
            return Flag(name="entropy_collapse", step=step, reason=reason, values=values)
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
    rewards, window = _series(whole, "reward"), limits.window
    means, noise = rewards.means(window), _Noise.of(rewards.values)
    peak = 0
    for end, (step, start, now) in enumerate(rewards.windows(window), start=2 * window):
        # Of windows side by side, as luck has fewer tries there, and none shares a step with the last one.
        if end % window == 0 and means[end - 2 * window] > means[peak]:
            peak = end - 2 * window
        best, gain, error = means[peak], means[peak] - start, noise.error(0, end, window)
        # Rewards are noisier in the middle of their range than at its ends: the noise since the best counts, too.
        since = max(error, noise.error(peak, end, window))
        if start - now > max(limits.reward_errors * error, limits.reward_fall):
            fall = f"{start:.3g} to {now:.3g}, by more than"
        elif best - now > max(limits.reward_errors * since, limits.reward_fall, limits.reward_lost * gain):
            error = since
            lost = f"{limits.reward_lost:g} of its gain of {gain:.3g}"
            fall = f"{best:.3g} at its best to {now:.3g}, by more than {lost} and"
        else:
            continue
        values = {"start": start, "best": best, "now": now, "error": error}
        reason = f"the mean reward fell from {fall} {limits.reward_errors:g} standard errors of {error:.2g}"
        return Flag(name="reward_collapse", step=step, reason=reason, values=values)
    return None


@dataclass(frozen=True, slots=True)
class _Noise:
    """The noise of steps, whatever the trend: half the mean square of differences between neighbours."""

    sums: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> _Noise:
        """Take it from the values of the steps."""
        return cls(np.concatenate([[0.0], np.cumsum(np.diff(values) ** 2)]) / 2)

    def error(self, first: int, end: int, window: int) -> float:
        """The standard error of a difference of two windows, by the noise of the steps ``first`` to ``end`` − 1."""
        variance = (self.sums[end - 1] - self.sums[first]) / (end - 1 - first)
        return math.sqrt(2 * variance / window)


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
