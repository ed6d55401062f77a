"""Early warning signs of a run: entropy, length, truncation, and the sampler's agreement with the learner.

The IsoCompute Playbook (arXiv 2603.12151, section 3) describes unhealthy runs: without an entropy bonus the entropy
collapses on easy problems; with one the entropy and the response lengths explode on hard problems (Factor 2). The
numbers in ``Thresholds`` are this library's own. Whether a run failed is decided where runs are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .steps import Record, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds for flagging a run. «Start» is the mean of the first ``window`` steps, «now» that of the last.

    Attributes:
        window: Number of steps to average.
        entropy_low: Fraction of the start's entropy below which it has collapsed, if it stays there for ``window``
            steps in which the policy neither solves its problems nor learns.
        solved: Mean reward from which a low entropy is no fault, since there is little left to explore.
        entropy_high: Multiple of the start's entropy above which it has exploded.
        entropy_rise: Smallest rise that counts as an explosion (nats per token).
        length_high: Multiple of the start's response length above which it has exploded.
        length_rise: Smallest rise that counts as an explosion (tokens).
        reward_gain: Rise of the mean reward that excuses longer responses (since the start) and a low entropy (over the
            last two windows).
        truncated: Fraction of truncated responses that is too high.
        truncated_rise: Smallest rise of that fraction since the start.
        weight: Largest distance of the mean truncated importance weight from 1.
        k3: Largest k3 estimate of KL(sampler ‖ learner) (nats per token).
        effective_sample_size: Smallest effective sample size, as a fraction of the tokens.
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
    weight: float = 0.1
    k3: float = 0.01
    effective_sample_size: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One problem of a run and the first step at which it appeared; ``values`` holds the numbers behind it.

    Its name is ``entropy_collapse``, ``entropy_explosion``, ``length_explosion``, ``truncation`` or ``mismatch``.
    """

    name: str
    step: int
    reason: str
    values: Mapping[str, float]


def flags(records: Iterable[Record], thresholds: Thresholds | None = None) -> list[Flag]:
    """Return the problems of a run, each once, by the step at which it began; see ``judged``.

    Records are the arguments of ``watch``. If a step was repeated, its last record counts.
    """
    limits, ordered = thresholds or Thresholds(), _steps(records)
    found = [check(ordered, limits) for check in _CHECKS]
    return sorted((flag for flag in found if flag is not None), key=lambda flag: (flag.step, flag.name))


def judged(records: Iterable[Record], thresholds: Thresholds | None = None) -> bool:
    """Return whether a run has two windows of steps with completed responses; before, only ``mismatch`` is flagged."""
    limits = thresholds or Thresholds()
    return len(_series(_steps(records), "reward")) >= 2 * limits.window


def _steps(records: Iterable[Record]) -> list[StepRecord]:
    """The last record of each step, in order."""
    steps = {record.step: record for record in records if isinstance(record, StepRecord)}
    return [steps[step] for step in sorted(steps)]


def _series(records: Sequence[StepRecord], name: str) -> list[tuple[int, float]]:
    """A statistic of the responses with its step, where it exists and is finite."""
    found = [(each.step, getattr(each.responses, name)) for each in records if each.responses is not None]
    return [(step, float(value)) for step, value in found if value is not None and math.isfinite(value)]


def _windows(records: Sequence[StepRecord], name: str, window: int) -> tuple[list[int], np.ndarray]:
    """The last step and the mean of every window of a statistic; the first window is the start."""
    series = _series(records, name)
    sums = np.concatenate([[0.0], np.cumsum([value for _, value in series])])
    return [step for step, _ in series[window - 1 :]], (sums[window:] - sums[:-window]) / window


def _entropy_collapse(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    window = limits.window
    steps, means = _windows(records, "reward", window)
    # The window at each step and the one that ended two windows earlier; early in a run, the start.
    places = range(window, len(means))
    learnt = {steps[place]: (means[place], means[place] - means[max(0, place - 2 * window)]) for place in places}
    held = 0
    steps, means = _windows(records, "sampled_entropy", window)
    for step, now in zip(steps[window:], means[window:], strict=True):
        start = means[0]
        reward, gain = learnt.get(step, (math.inf, math.inf))
        low = start > 0 and now < limits.entropy_low * start
        # For as many steps as a window has, since noise alone often takes one window's reward below ``solved``.
        held = held + 1 if low and reward < limits.solved and gain < limits.reward_gain else 0
        if held == limits.window:
            reason = (
                f"the entropy fell from {start:.3g} to {now:.3g} nats per token, below {limits.entropy_low:g} of its "
                f"start, at a mean reward of {reward:.3g} that changed by {gain:+.2g} in {2 * limits.window} steps"
            )
            values = {"start": start, "now": now, "reward": reward, "gain": gain}
            return Flag(name="entropy_collapse", step=step, reason=reason, values=values)
    return None


Check = Callable[[Sequence[StepRecord], Thresholds], Flag | None]


def _rise(flag: str, number: str, most: Callable[[Thresholds, float], float], said: str) -> Check:
    """Make the check whether a number rises above its limit, given its start.

    The reason is ``said``, formatted with ``start``, ``now`` and ``limits``. If it mentions the reward's ``gain``, a
    gain excuses the rise.
    """

    def check(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
        window = limits.window
        steps, means = _windows(records, "reward", window)
        gains = dict(zip(steps[window:], means[window:] - means[:1], strict=True))
        steps, means = _windows(records, number, window)
        for step, now in zip(steps[window:], means[window:], strict=True):
            start = means[0]
            values = {"start": start, "now": now}
            if "{gain" in said:
                values["gain"] = gains.get(step, 0.0)
            if now > most(limits, start) and values.get("gain", -math.inf) < limits.reward_gain:
                return Flag(name=flag, step=step, reason=said.format(limits=limits, **values), values=values)
        return None

    return check


def _mismatch(records: Sequence[StepRecord], limits: Thresholds) -> Flag | None:
    for record in records:
        # With a lag, older weights sample legitimately; the probe after each push checks the sampler.
        if record.update is None or record.lag is not None:
            continue
        numbers = record.update.metrics()
        weight, k3 = numbers.get("importance_weight", 1.0), numbers.get("mismatch_k3", numbers["sync_k3"])
        size = numbers.get("effective_sample_size", 1.0)
        # Written with «<=», so that a number that is not finite counts as a mismatch.
        if abs(weight - 1) <= limits.weight and k3 <= limits.k3 and size >= limits.effective_sample_size:
            continue
        reason = (
            f"sampler and learner differ: importance weight {weight:.3g} (1 ± {limits.weight:g}), k3 {k3:.2g} nats "
            f"(at most {limits.k3:g}), effective sample size {size:.3g} (at least {limits.effective_sample_size:g})"
        )
        values = {"importance_weight": weight, "k3": k3, "effective_sample_size": size}
        return Flag(name="mismatch", step=record.step, reason=reason, values=values)
    return None


_CHECKS: tuple[Check, ...] = (
    _entropy_collapse,
    _rise(
        "entropy_explosion",
        "sampled_entropy",
        lambda limits, start: max(limits.entropy_high * start, start + limits.entropy_rise),
        "the entropy rose from {start:.3g} to {now:.3g} nats per token, above {limits.entropy_high:g} times its start",
    ),
    _rise(
        "length_explosion",
        "response_length",
        lambda limits, start: max(limits.length_high * start, start + limits.length_rise),
        "the mean response length rose from {start:.3g} to {now:.3g} tokens, above {limits.length_high:g} times its "
        "start, and the mean reward by {gain:.3g}",
    ),
    _rise(
        "truncation",
        "truncated_share",
        lambda limits, start: max(limits.truncated, start + limits.truncated_rise),
        "the share of truncated responses rose from {start:.3g} to {now:.3g}, above {limits.truncated:g}: their "
        "answers are lost",
    ),
    _mismatch,
)
