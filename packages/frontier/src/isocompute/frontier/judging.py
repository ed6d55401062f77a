"""From the fit of one curve and its refits to a result with intervals and flags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .curves import Array, Curve, of_records
from .envelope import LEVEL
from .errors import Flag
from .fitting import PointFit, fit_form
from .profile import Profile, profile_asymptote
from .results import CurveFit
from .selection import tail_errors
from .uncertainty import Draws, Noise

WIDE = 0.15
"""An interval of A wider than this says little of where a curve levels off."""


def start_of(curve: Curve, form: str) -> float | None:
    """R0 of ``hill``: the mean reward at zero compute, where there is one."""
    zero = curve.compute == 0
    return float(curve.reward[zero].mean()) if form == "hill" and zero.any() else None


def options(curve: Curve, forms: Sequence[str], *, thorough: Sequence[str] = ()) -> list[PointFit]:
    """A point fit per form, or none when there are too few points to fit any."""
    if (curve.compute > 0).sum() < 3 or len(np.unique(curve.compute)) < 3:
        return []
    return [
        fit_form(
            f, curve.compute, curve.reward, curve.standard_error, start_of(curve, f), starts=4 if f in thorough else 1
        )
        for f in forms
    ]


def held_out(curve: Curve, forms: Sequence[str]) -> dict[str, float]:
    """Error of each form on the held-out tail; empty where the run is too short to hold one out."""
    found = {}
    for form in forms:
        start = start_of(curve, form)
        error = tail_errors(
            form, curve.compute, curve.reward[None, :], curve.standard_error**-2,
            None if start is None else np.array([start]),
        )  # fmt: skip
        if error is not None:
            found[form] = float(error[0])
    return found


def choose(fits: Sequence[PointFit], tails: dict[str, float], selection: str) -> PointFit:
    """The form with the least AICc or the least error on the tail; AICc where there is no tail."""
    if selection == "tail" and tails:
        return min(fits, key=lambda p: tails[p.parameters.form])
    return min(fits, key=lambda p: p.criterion)


def records_gap(curve: Curve, best: PointFit, bin_width: float, window: int = 1) -> float | None:
    """How far above all points a fit of the records lies at the last record; None where there is no such fit.

    Args:
        curve: All points.
        best: The fit of all points.
        bin_width: Width of a record's bin of reward.
        window: Points of the running mean before records are sought.
    """
    chosen = of_records(curve, bin_width=bin_width, window=window)
    fits = options(chosen, (best.parameters.form,))
    if not fits:
        return None
    # Not at the end of the run: where the last record is early, a fit of records says nothing of the end.
    last = float(chosen.compute.max())
    return float(fits[0].parameters(last) - best.parameters(last))


def failed(curve: Curve) -> CurveFit:
    """The result of a curve that cannot be fitted."""
    return CurveFit(
        curve=curve, parameters=None, intervals={}, residual_sd=None, draws=None, asymptote_interval=None,
        records_gap=None, flags=(Flag.FIT_FAILED, Flag.TOO_FEW_POINTS),
        reason="fewer than three evaluations at different compute",
    )  # fmt: skip


def judge(
    curve: Curve, best: PointFit, every: Sequence[PointFit], draws: Draws, noise: Noise, *,
    tails: dict[str, float], gaps: tuple[float | None, float | None],
) -> CurveFit:  # fmt: skip
    """The result of a curve.

    Args:
        curve: The points that were fitted.
        best: The fit that was chosen.
        every: A fit of every form, whatever was asked for.
        draws: The refits.
        noise: How runs scatter.
        tails: Error of each form on the held-out tail.
        gaps: How far above it a fit of the records lies, raw and smoothed.
    """
    parameters = best.parameters
    asymptote = _interval(draws.asymptote)
    same = draws.form == parameters.form
    intervals = {"A": asymptote}
    if same.sum() >= 20:
        intervals["C_mid" if parameters.form == "hill" else "tau"] = _interval(draws.scale[same])
    profile = profile_asymptote(
        best, curve.compute, curve.reward, curve.standard_error, start_of(curve, parameters.form),
        autocorrelation=noise.autocorrelation, between=noise.between_seeds / np.sqrt(curve.seeds),
        degrees=noise.degrees,
    )  # fmt: skip
    return CurveFit(
        curve=curve, parameters=parameters, intervals=intervals, residual_sd=best.residual_sd, draws=draws,
        asymptote_interval=asymptote, flags=_flags(curve, best, every, asymptote, profile, noise), reason="",
        records_gap=gaps[0], smoothed_records_gap=gaps[1], profile=profile,
        criteria={
            p.parameters.form: {"aicc": p.criterion, "tail": tails.get(p.parameters.form)} for p in every
        },
    )  # fmt: skip


def _flags(
    curve: Curve, best: PointFit, every: Sequence[PointFit], asymptote: tuple[float, float], profile: Profile,
    noise: Noise,
) -> tuple[Flag, ...]:  # fmt: skip
    parameters, flags = best.parameters, []
    if best.at_bound:
        flags.append(Flag.AT_BOUND)
    if len(np.unique(curve.compute[curve.compute > 0])) < 5:
        flags.append(Flag.TOO_FEW_POINTS)
    if parameters.gain > 1e-6 and curve.support[1] < 1.5 * parameters.half_compute:
        flags.append(Flag.SUPPORT_TOO_SHORT)
    # A form that fits about as well and levels off elsewhere: the data do not choose between the two asymptotes.
    rivals = [o for o in every if o.criterion <= best.criterion + 4.0]
    disagree = max((abs(o.parameters.asymptote - parameters.asymptote) for o in rivals), default=0.0) > 0.05
    low, high = profile.interval
    wide = asymptote[1] - asymptote[0] > WIDE or asymptote[1] > 0.999 or high - low > WIDE or profile.open_above
    if disagree or wide:
        flags.append(Flag.ASYMPTOTE_NOT_IDENTIFIED)
    if disagree:
        flags.append(Flag.FORMS_DISAGREE)
    if best.starts_disagree:
        flags.append(Flag.STARTS_DISAGREE)
    if _falling(curve):
        flags.append(Flag.TAIL_FALLING)
    if noise.degrees == 0 or curve.seeds == 1:
        flags.append(Flag.WITHIN_RUN_ONLY)
    return tuple(flags)


def _falling(curve: Curve) -> bool:
    """Whether the last quarter lies below the quarter before it by more than two standard errors."""
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
    return bool(drop > 2 * error)


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
