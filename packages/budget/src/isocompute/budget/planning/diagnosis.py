"""Diagnosis of a run from its log, by the thresholds given here.

A level is the mean over a window of an eighth of the entries, at least three. Its noise is estimated from the
differences between adjacent windows, after the fall to be judged is removed. So the estimate holds for correlated
entries, whatever correlates them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import sqrt
from statistics import fmean, median

from .signal import share_alike

LEAST_ENTRIES = 12
"""With fewer entries there are fewer than four windows."""
FALL = 7.0
"""A fall exceeds this many times the noise of a level. Chance alone puts the highest of 8 levels above the last by 3
noises, and the noise is estimated from few windows: simulated_runs.py of the tests counts the healthy runs that are
said to fall."""
LOST, OF_PEAK = 0.5, 0.25
"""A collapse loses this share of the gain so far, and this share of the peak; a smaller loss is a fall."""
LITTLE, SLIGHT = 0.25, 0.02
"""Changes below this share of a run's whole gain, or below this much of a success rate, do not matter."""
LITTLE_SIGNAL = 0.2
"""Share of groups with signal. Below it, five groups are paid for one that trains: a fifth of the batch that is set."""
JUMP = 3.0
"""In docs/trl, medians of three entries of a gradient norm or an entropy stay within a factor of 1.7 of the usual."""
SOLVED = 0.98
"""Success rate above which nothing is left to gain."""
REPEATED = 2.0
"""Epochs: before the third pass, a problem has not been seen often enough to be memorised."""

Series = Sequence[tuple[int, float]]
"""Values by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is known of a run.

    Attributes:
        training: Mean reward of each step's responses.
        evaluations: Mean score of each evaluation.
        evaluation_error: Standard error of an evaluation's score by its number of responses; 0 where unknown.
        without_signal: Share of groups whose rewards are all equal, by step.
        others: KL, gradient norm, entropy and clip fraction under these names, if they are logged.
        rates: Whether rewards are success rates.
        epochs: Passes over the training problems.
    """

    training: Series = ()
    evaluations: Series = ()
    evaluation_error: float = 0.0
    without_signal: Series = ()
    others: Mapping[str, Series] = field(default_factory=dict)
    rates: bool = False
    n: int | None = None
    epochs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Levels of a series.

    Attributes:
        state: ``collapsed``, ``fell``, ``rising``, ``plateaued``, ``never rose``, or ``unclear`` if noise hides it.
        noise: Standard deviation of a level.
        peak_at: Steps of the highest window; ``last_at`` has those of the last one.
        gain: Change over the last half, with its standard error.
        fell_at: First step after which the series stays below the midpoint of peak and end; None if it has not fallen.
    """

    state: str
    start: float
    peak: float
    end: float
    noise: float
    peak_at: tuple[int, int]
    last_at: tuple[int, int]
    gain: float
    gain_error: float
    fell_at: int | None


def trend(series: Series, error: float = 0.0) -> Trend | None:
    """The levels of a series; None if it has too few entries.

    Args:
        error: Standard error of each value, if known; it sets a lower bound on the noise.
    """
    steps, values = [step for step, _ in series], [value for _, value in series]
    if len(values) < LEAST_ENTRIES:
        return None
    size, quarter = max(3, len(values) // 8), len(values) // 4
    levels = _levels(values, size)
    best = max(range(len(levels)), key=levels.__getitem__)
    start, peak, end = levels[0], levels[best], levels[-1]
    drop, gained = peak - end, peak - start
    below = 1 + max((k for k, value in enumerate(values) if value >= (peak + end) / 2), default=0)
    whole = _levels([value + drop * (k >= below) for k, value in enumerate(values)], size)
    # Second differences cancel a linear trend; for normal values, their median size is 0.6745 √6 standard deviations.
    beside = zip(whole, whole[size:], whole[2 * size :], strict=False)
    noise = max(median(abs(a - 2 * b + c) for a, b, c in beside) / 0.6745 / sqrt(6), error / sqrt(size))
    gain = 2 * (fmean(values[-quarter:]) - fmean(values[-2 * quarter : -quarter]))
    gain_error, little = 2 * sqrt(2 * size / quarter) * noise, max(LITTLE * gained, SLIGHT)
    fell = drop > max(FALL * noise, SLIGHT)
    if fell:
        state = "collapsed" if drop >= max(LOST * gained, OF_PEAK * abs(peak)) else "fell"
    elif gain > max(2 * gain_error, SLIGHT):
        state = "rising"
    elif abs(gain) + 2 * gain_error >= little:
        state = "unclear"
    else:
        state = "plateaued" if gained > max(SLIGHT, 3 * noise) else "never rose"
    return Trend(
        state=state,
        start=start,
        peak=peak,
        end=end,
        noise=noise,
        peak_at=(steps[best], steps[best + size - 1]),
        last_at=(steps[-size], steps[-1]),
        gain=gain,
        gain_error=gain_error,
        fell_at=steps[min(below, len(steps) - 1)] if fell else None,
    )


def _levels(values: Sequence[float], size: int) -> list[float]:
    sums = [0.0, *accumulate(values)]
    return [(after - before) / size for before, after in zip(sums, sums[size:], strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A run's diagnosis.

    Attributes:
        verdict: One or two words; ``cannot say`` if the log does not show it.
        findings: For each topic, what the log shows, or why it does not say.
        change: Which of n, the learning rate and D to change first, and why.
    """

    verdict: str
    findings: Mapping[str, str]
    change: str


def diagnose(course: Course) -> Diagnosis:
    """Diagnose a run, with the numbers behind the diagnosis."""
    training, held_out = trend(course.training), trend(course.evaluations, course.evaluation_error)
    main = held_out if held_out is not None and (held_out.state != "unclear" or training is None) else training
    state = "unclear" if main is None else main.state
    out_of_signal, of_signal = _signal(course, training)
    out_of_data, of_data = _data(course, training, held_out)
    too_high, of_rate = _rate(course, main)
    findings = {
        "reward": _said(course.training, training),
        "evaluations": _said(course.evaluations, held_out),
        "signal": of_signal,
        "data": of_data,
        "learning rate": of_rate,
    }
    names = {"fell": "fell from its peak", "rising": "still rising", "unclear": "cannot say"}
    verdict, change = names.get(state, state), "cannot say"
    if out_of_data:
        verdict, change = "out of data", "D: more problems; until then the best evaluation is the run's result"
    elif main is not None and main.fell_at is not None:
        verdict += ", rate too high" if too_high else ""
        if too_high is not False:
            change = f"the rate: halve it, and go on from a checkpoint up to step {main.peak_at[1]:,}"
    elif out_of_signal and training and training.end >= 0.5:
        verdict, change = "out of signal", "D: harder problems; these are solved, and a larger n pays more for few"
    elif out_of_signal:
        verdict, change = "out of signal", "n: more responses find the rare success; or easier problems in D"
    elif state == "rising":
        change = "nothing: it still gains"
    elif state == "plateaued" and course.rates and main is not None and main.end >= SOLVED:
        verdict, change = f"solved: plateaued at {main.end:.3f}", "D: harder problems; in these nothing is left to gain"
    elif state == "plateaued":
        change = "the rate: decay or halve it, since the noise of updates goes as rate / B; then n, twice as large"
    elif state == "never rose":
        change = "the rate: where the rewards are sound it may be too low, so double it once; then n"
    return Diagnosis(verdict=verdict, findings=findings, change=change)


def _said(series: Series, found: Trend | None) -> str:
    if found is None:
        return f"cannot say: {len(series)} entries, and {LEAST_ENTRIES} are needed" if series else "none is read"
    peak = f"{found.peak:.3f} (steps {found.peak_at[0]:,}–{found.peak_at[1]:,})"
    if found.fell_at is not None:
        ratio = min((found.peak - found.end) / (found.noise or 1e-9), 1_000)
        times = f"{'over ' * (ratio == 1_000)}{ratio:,.0f} times its noise"
        last = f"{found.end:.3f} (steps {found.last_at[0]:,}–{found.last_at[1]:,})"
        return f"fell from {peak} to {last}, from step {found.fell_at:,} on: {times}"
    last_half = f"{found.gain:+.3f} ± {2 * found.gain_error:.3f} over the last half"
    level = f"from {found.start:.3f} to {found.end:.3f}"
    hidden = ": too noisy to say more" if found.state == "unclear" else ""
    return f"{level}, {last_half}{hidden}"


def _signal(course: Course, training: Trend | None) -> tuple[bool, str]:
    """Whether few groups have signal at the end."""
    found = trend(course.without_signal)
    if found is not None:
        little = 1 - found.end < LITTLE_SIGNAL
        share = f"{1 - found.start:.0%} of groups with signal at the start, {1 - found.end:.0%} at the end"
        return little, f"{'out of signal: ' if little else ''}{share}"
    if training is None or course.n is None or not course.rates:
        why = "n is not known" if course.n is None else "the reward is not logged as a success rate"
        return False, f"cannot say: groups without signal are not logged, and {why}"
    most = share_alike(min(max(training.end, 0.0), 1.0), course.n)
    said = f"at most {most:.0%} of groups of {course.n} can have signal at a mean reward of {training.end:.3f}"
    return most < LITTLE_SIGNAL, f"out of signal: {said}" if most < LITTLE_SIGNAL else f"cannot say: not logged; {said}"


def _data(course: Course, training: Trend | None, held_out: Trend | None) -> tuple[bool, str]:
    """Whether training still gains on frequently seen problems while evaluations do not."""
    if course.epochs is None:
        return False, "cannot say: the number of problems is not known (--set problems=D)"
    seen = f"{course.epochs:.1f} epochs"
    if course.epochs < REPEATED:
        return False, f"not out of data: {seen}"
    if held_out is None or training is None or "unclear" in (held_out.state, training.state):
        lacking = "evaluations or training rewards are missing, few or too noisy"
        return False, f"cannot say: {seen}, and {lacking}"
    out = training.state == "rising" and held_out.state != "rising"
    both = f"training {training.state}, evaluations {held_out.state}"
    return out, f"{'out of data' if out else 'no sign of it'}: {seen}, {both}"


def _rate(course: Course, main: Trend | None) -> tuple[bool | None, str]:
    """Whether other metrics jumped when the reward fell; None if nothing fell or nothing else is logged."""
    if main is None:
        return None, "cannot say"
    if main.fell_at is None:
        return None, "no sign that it is too high: the reward did not fall"
    moved, still = list[str](), list[str]()
    for name, series in course.others.items():
        before = [value for step, value in series if step <= main.peak_at[1]]
        after = [value for step, value in series if step > main.peak_at[1]]
        if len(before) < 3 or len(after) < 3:
            continue
        usual, windows = median(before), [median(after[k : k + 3]) for k in range(len(after) - 2)]
        most = max(windows) if name != "entropy" or max(windows) > JUMP * usual else min(windows)
        jumped = most > JUMP * usual > 0 or (name == "entropy" and most * JUMP < usual)
        (moved if jumped else still).append(f"{name} {usual:.3g} → {most:.3g}")
    if moved:
        return True, f"too high, by the fall and {', '.join(moved)} (median until the peak → extreme after it)"
    if still:
        return False, f"cannot say: {', '.join(still)} did not jump with the fall; look at rewards and data first"
    return None, "likely too high, which is not sure, since nothing but the reward is logged"
