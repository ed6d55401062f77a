"""From the fit of one curve and its refits to a result with intervals and flags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .curves import Array, Curve, of_records
from .envelope import LEVEL
from .errors import Flag
from .fitting import PointFit
from .forms import Parameters
from .noise import Scatter
from .profile import Profile, profile_asymptote
from .results import CurveFit
from .seeds import courses, without_effects
from .selection import RIVAL, options, start_of
from .uncertainty import Draws

WIDE = 0.1
"""When what a curve has still to gain after its end is known no better than this, where it levels off is not known."""

FALL = 2.6
"""Standard errors by which a tail must fall: once in two hundred runs by chance."""
MOST_INFLATION = 4.0
"""Most that autocorrelation is taken to add to the variance of a mean, as 0.6 does."""


def records_gap(curve: Curve, best: Parameters, bin_width: float, window: int = 1) -> float | None:
    """How far above all points a fit of the records lies at the last record; None where there is no such fit.

    Args:
        curve: All points.
        best: The fit of all points.
        bin_width: Width of a record's bin of reward.
        window: Points of the running mean before records are sought.
    """
    chosen = of_records(curve, bin_width=bin_width, window=window)
    fits = options(chosen, (best.form,))
    if not fits:
        return None
    # Not at the end of the run: where the last record is early, a fit of records says nothing of the end.
    last = float(chosen.compute.max())
    return float(fits[0].parameters(last) - best(last))


def failed(curve: Curve) -> CurveFit:
    """The result of a curve that cannot be fitted."""
    return CurveFit(
        curve=curve, parameters=None, intervals={}, residual_sd=None, draws=None, asymptote_interval=None,
        records_gap=None, flags=(Flag.FIT_FAILED, Flag.TOO_FEW_POINTS),
        reason="fewer than three evaluations at different compute",
    )  # fmt: skip


def judge(
    curve: Curve, best: PointFit, every: Sequence[PointFit], draws: Draws, within: Scatter, *,
    criteria: dict[str, float], tails: dict[str, float], seeds: Array, within_run: bool,
) -> CurveFit:  # fmt: skip
    """The result of a curve.

    Args:
        curve: The points that were fitted.
        best: The fit that was chosen.
        every: A fit of every form, whatever was asked for.
        draws: The refits.
        within: Noise within its runs.
        criteria: AICc of each form.
        tails: Error of each form on the held-out tail.
        seeds: Effects of seeds that the refits have, shape ``(refits, seeds, 2)``.
        within_run: Whether no curve of the population has two seeds, so that the refits have no such effects.
    """
    parameters = best.parameters
    asymptote = _interval(draws.asymptote)
    same = draws.form == parameters.form
    intervals = {"A": asymptote}
    if same.sum() >= 20:
        intervals["C_mid" if parameters.form == "hill" else "tau"] = _interval(draws.scale[same])
    course = courses(curve, parameters)
    made = float(parameters(curve.compute.max())) - parameters.start
    moved = np.abs(seeds[:, :, 0].mean(axis=1)) * (parameters.gain / made if made > 1e-9 else 1.0)
    profile = profile_asymptote(
        best, curve.compute,
        parameters(curve.compute) + without_effects(curve, course, curve.reward - parameters(curve.compute)),
        curve.standard_error, start_of(curve, parameters.form), worth=within.effective_points,
        between=float(np.quantile(moved, LEVEL)),
    )  # fmt: skip
    return CurveFit(
        curve=curve, parameters=parameters, intervals=intervals, residual_sd=best.residual_sd, draws=draws,
        asymptote_interval=asymptote, reason="",
        flags=_flags(curve, best, every, criteria, draws, profile, within, within_run=within_run),
        profile=profile,
        criteria={form: {"aicc": value, "tail": tails.get(form)} for form, value in criteria.items()},
        noise_factor=within.factor, degrees=within.degrees,
    )  # fmt: skip


def _flags(
    curve: Curve, best: PointFit, every: Sequence[PointFit], criteria: dict[str, float], draws: Draws,
    profile: Profile, within: Scatter, *, within_run: bool,
) -> tuple[Flag, ...]:  # fmt: skip
    parameters, flags = best.parameters, []
    if best.at_bound:
        flags.append(Flag.AT_BOUND)
    if len(np.unique(curve.compute[curve.compute > 0])) < 5:
        flags.append(Flag.TOO_FEW_POINTS)
    if parameters.gain > 1e-6 and curve.support[1] < 1.5 * parameters.half_compute:
        flags.append(Flag.SUPPORT_TOO_SHORT)
    low, high = _interval(draws.asymptote)
    # A form that fits about as well and levels off elsewhere: the data do not choose between the two asymptotes.
    nearest = criteria[parameters.form] + RIVAL
    rivals = [o.parameters.asymptote for o in every if criteria[o.parameters.form] <= nearest]
    disagree = any(abs(a - parameters.asymptote) > 0.05 and not low <= a <= high for a in rivals)
    # Seeds that differ move the end of a run as they do its asymptote: only what lies beyond the end is not identified.
    end = np.array([curve.support[1]])
    left = _interval(draws.asymptote - draws.at(end)[:, 0])
    open_above = profile.open_above and float(parameters(end)[0]) < 1 - WIDE
    if disagree or left[1] - left[0] > WIDE or open_above:
        flags.append(Flag.ASYMPTOTE_NOT_IDENTIFIED)
    if disagree:
        flags.append(Flag.FORMS_DISAGREE)
    if best.starts_disagree:
        flags.append(Flag.STARTS_DISAGREE)
    residuals = without_effects(curve, courses(curve, parameters), curve.reward - parameters(curve.compute))
    if _falling(curve, residuals, within):
        flags.append(Flag.TAIL_FALLING)
    if within_run:
        flags.append(Flag.WITHIN_RUN_ONLY)
    return tuple(flags)


def _falling(curve: Curve, residuals: Array, within: Scatter) -> bool:
    """Whether the last quarter lies below the quarter before it by more than 2.6 standard errors."""
    grid = np.unique(curve.compute[curve.compute > 0])
    quarter = len(grid) // 4
    if quarter < 2:
        return False
    last = curve.compute >= grid[-quarter]
    before = (curve.compute >= grid[-2 * quarter]) & ~last
    drop = curve.reward[before].mean() - curve.reward[last].mean()
    error = np.sqrt(
        (curve.standard_error[last] ** 2).mean() / last.sum()
        + (curve.standard_error[before] ** 2).mean() / before.sum()
    )
    # By the median, and with a limit to what autocorrelation explains: a run that collapses is not its own excuse.
    noise = max(float(np.median(np.abs(residuals) / curve.standard_error)) / 0.6745, 1.0)
    inflation = min(len(curve.compute) / within.effective_points, MOST_INFLATION)
    return bool(drop > FALL * error * noise * np.sqrt(inflation))


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
