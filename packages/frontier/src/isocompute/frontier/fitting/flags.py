"""Why the fit of a curve should be read with care."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.curves import Array, Curve
from ..errors import Flag
from .intervals import interval
from .noise import Scatter
from .point import PointFit
from .profile import Profile
from .seeds import effect_basis, without_effects
from .selection import RIVAL
from .uncertainty import Draws

WIDE = 0.1
"""Width of the interval of the gain beyond the end of a run from which on the asymptote is not identified."""

FALL = 2.6
"""Standard errors by which a tail must fall: one run in two hundred does by chance."""
MOST_INFLATION = 4.0
"""Most that autocorrelation is taken to add to the variance of a mean, as 0.6 does."""


def flags_of(
    curve: Curve, best: PointFit, every: Sequence[PointFit], criteria: dict[str, float], draws: Draws,
    profile: Profile, within: Scatter, *, within_run: bool,
) -> tuple[Flag, ...]:  # fmt: skip
    """Flags of a curve.

    Args:
        curve: The points that were fitted.
        criteria: AICc of each form.
        profile: Profile likelihood of the asymptote.
        within: Noise within the runs.
        within_run: Whether no curve of the population has two seeds.
    """
    parameters, flags = best.parameters, []
    if best.at_bound:
        flags.append(Flag.AT_BOUND)
    if len(np.unique(curve.compute[curve.compute > 0])) < 5:
        flags.append(Flag.TOO_FEW_POINTS)
    if parameters.gain > 1e-6 and curve.support[1] < 1.5 * parameters.half_compute:
        flags.append(Flag.SUPPORT_TOO_SHORT)
    low, high = interval(draws.asymptote)
    # A form that fits about as well and levels off elsewhere: the data do not choose between the two asymptotes.
    limit = criteria[parameters.form] + RIVAL
    rivals = [o.parameters.asymptote for o in every if criteria[o.parameters.form] <= limit]
    disagree = any(abs(a - parameters.asymptote) > 0.05 and not low <= a <= high for a in rivals)
    # Seeds that differ move the end of a run as much as its asymptote: only what lies beyond the end is unidentified.
    end = np.array([curve.support[1]])
    left = interval(draws.asymptote - draws.at(end)[:, 0])
    open_above = profile.open_above and float(parameters(end)[0]) < 1 - WIDE
    if disagree or left[1] - left[0] > WIDE or open_above:
        flags.append(Flag.ASYMPTOTE_NOT_IDENTIFIED)
    if disagree:
        flags.append(Flag.FORMS_DISAGREE)
    if best.starts_disagree:
        flags.append(Flag.STARTS_DISAGREE)
    residuals = without_effects(curve, effect_basis(curve, parameters), curve.reward - parameters(curve.compute))
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
    # The median, and a limit to what autocorrelation explains: a collapse must not be excused by the noise it makes.
    noise = max(float(np.median(np.abs(residuals) / curve.standard_error)) / 0.6745, 1.0)
    inflation = min(len(curve.compute) / within.effective_points, MOST_INFLATION)
    return bool(drop > FALL * error * noise * np.sqrt(inflation))
