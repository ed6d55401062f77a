"""What became of a run: what its log shows, by thresholds that are said, and nothing that it does not show.

Every level is a mean over a window of an eighth of the entries, at least three. The noise of such a level is taken from
how much windows beside each other differ: the median, which a collapse hardly moves and a rise makes larger, so that
claims are rarer. Nothing is assumed of its distribution; entries that are correlated are noisier in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median

from .signal import share_alike

LEAST_ENTRIES = 12
"""Fewer entries hold fewer than four windows."""
FALL = 7.0
"""A fall is more than so many times the noise of a level. Chance alone puts the highest of 8 levels above the last by 3
noises, and the noise is an estimate from few: simulated_runs.py of the tests counts the healthy runs said to fall."""
LOST = 0.5
"""A collapse loses this share of what had been gained, and a quarter of the peak; less is a fall."""
SMALL = 0.25
"""A change by less than this share of the run's gain (and less than 0.02) is none that a user would act on."""
LITTLE_SIGNAL = 0.2
"""Groups with signal: below, five groups are paid for one that trains, and the batch is a fifth of what is set."""
JUMP = 3.0
"""KL, gradient norm and clip fraction vary by a factor of two between windows of healthy runs; entropy, which also
falls, by less."""
SOLVED = 0.98
"""A success rate above which nothing is left to gain."""
REPEATED = 2.0
"""Epochs: before the third pass a problem has not been seen often enough to be learnt by heart."""

Series = Sequence[tuple[int, float]]
"""Values by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is known of a run.

    Attributes:
        training: Mean reward of each step's responses.
        evaluations: Mean score of each evaluation.
        evaluation_error: Standard error of an evaluation's score by its number of responses; 0 where unknown.
        without_signal: Share of groups whose rewards are all equal.
        others: KL, gradient norm, entropy and clip fraction by these names, as far as they are logged.
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
        size: Entries of a window.
        noise: Standard deviation of a window's mean.
        peak_at: Steps of the highest window.
        gain: Change over the last half, with a standard error.
        fell_at: First step from which on it stays below the middle of peak and end; None where it has not fallen.
    """

    entries: int
    size: int
    start: float
    peak: float
    end: float
    noise: float
    peak_at: tuple[int, int]
    last_at: tuple[int, int]
    gain: float
    gain_error: float
    fell_at: int | None

    @property
    def small(self) -> float:
        """The largest change that counts as none."""
        return max(SMALL * (self.peak - self.start), 0.02)

    @property
    def collapsed(self) -> bool:
        """Whether it fell by half of what it had gained, and by a quarter of its peak."""
        return self.fell_at is not None and self.peak - self.end >= max(
            LOST * (self.peak - self.start), abs(self.peak) / 4
        )

    @property
    def state(self) -> str:
        """``collapsed``, ``fell``, ``rising``, ``plateaued``, ``never rose``, or ``unclear`` where noise hides it."""
        if self.fell_at is not None:
            return "collapsed" if self.collapsed else "fell"
        if self.gain > max(2 * self.gain_error, 0.02):
            return "rising"
        if abs(self.gain) + 2 * self.gain_error >= self.small:
            return "unclear"
        return "plateaued" if self.peak - self.start > max(self.small, 3 * self.noise) else "never rose"


def trend(series: Series, error: float = 0.0) -> Trend | None:
    """The levels of a series; None where it has too few entries.

    Args:
        error: Standard error of each value, where it is known; the noise is at least what follows from it.
    """
    values, steps, count = [value for _, value in series], [step for step, _ in series], len(series)
    if count < LEAST_ENTRIES:
        return None
    size = max(3, count // 8)
    levels = _levels(values, size)
    best = max(range(len(levels)), key=levels.__getitem__)
    peak, end = levels[best], levels[-1]
    drop = peak - end
    # From here on it stays below the middle of peak and end.
    below = 1 + max((k for k, value in enumerate(values) if value >= (peak + end) / 2), default=0)
    whole = _levels([value + drop * (k >= below) for k, value in enumerate(values)], size)
    beside = zip(whole, whole[size:], whole[2 * size :], strict=False)
    # Second differences have no linear trend; of normal values the median of their size is 0.6745 √6 of a deviation.
    noise = max(median(abs(a - 2 * b + c) for a, b, c in beside) / 0.6745 / sqrt(6), error / sqrt(size))
    half = count // 4
    gain = 2 * (fmean(values[-half:]) - fmean(values[-2 * half : -half]))
    fell = drop > max(FALL * noise, 0.02)
    return Trend(
        entries=count,
        size=size,
        start=levels[0],
        peak=peak,
        end=end,
        noise=noise,
        peak_at=(steps[best], steps[best + size - 1]),
        last_at=(steps[-size], steps[-1]),
        gain=gain,
        gain_error=2 * sqrt(2 * size / half) * noise,
        fell_at=steps[min(below, count - 1)] if fell else None,
    )


def _levels(values: Sequence[float], size: int) -> list[float]:
    return [fmean(values[k : k + size]) for k in range(len(values) - size + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What became of a run.

    Attributes:
        verdict: In a word or two; ``cannot say`` where the log does not show it.
        findings: Of each topic, what the log shows, or why that cannot be said.
        change: Which of n, the rate and D to change first, and why.
    """

    verdict: str
    findings: Mapping[str, str]
    change: str


def diagnose(course: Course) -> Diagnosis:
    """Say what became of a run, with the numbers that say so."""
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
    verdict = names.get(state, state)
    solved = bool(training and training.end >= 0.5)
    if out_of_data:
        verdict, change = "out of data", "D: more problems; until then the best evaluation is the run's result"
    elif state in ("collapsed", "fell") and main is not None:
        verdict += ", rate too high" if too_high else ""
        change = f"the rate: halve it, and go on from a checkpoint up to step {main.peak_at[1]:,}"
        change = "cannot say: what was logged beside the reward did not move with it" if too_high is False else change
    elif out_of_signal and solved:
        verdict = "out of signal"
        change = "D: harder problems; these are solved, and a larger n pays more for the few that are not"
    elif out_of_signal:
        verdict, change = "out of signal", "n: more responses find the rare success; or easier problems in D"
    elif state == "rising":
        change = "nothing: it still gains"
    elif state == "plateaued" and course.rates and main is not None and main.end >= SOLVED:
        verdict, change = f"solved: plateaued at {main.end:.3f}", "D: harder problems; in these nothing is left to gain"
    elif state == "plateaued":
        change = "the rate: decay or halve it, since the noise of updates goes as rate / B; then n, twice as large"
    elif state == "never rose":
        change = "the rate: it may be too low, so double it once; then n"
    else:
        change = "cannot say"
    return Diagnosis(verdict=verdict, findings=findings, change=change)


def _said(series: Series, found: Trend | None) -> str:
    if found is None:
        return f"cannot say: {len(series)} entries, and {LEAST_ENTRIES} are needed" if series else "none is read"
    peak = f"{found.peak:.3f} (steps {found.peak_at[0]:,}–{found.peak_at[1]:,})"
    if found.fell_at is not None:
        times = f"{(found.peak - found.end) / found.noise:,.0f} times its noise" if found.noise else "without noise"
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
    """Whether training still gains on problems seen often, and evaluations do not."""
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
    """Whether what else is logged jumped when the reward fell; None where nothing fell or nothing else is logged."""
    if main is None:
        return None, "cannot say"
    if main.fell_at is None:
        return None, "no sign that it is too high: the reward did not fall"
    moved, still = [], []
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
        return (
            False,
            f"cannot say: the reward fell, and {', '.join(still)} did not jump; look at rewards and data first",
        )
    return (
        None,
        "likely too high, which is not sure, since nothing but the reward is logged",
    )
