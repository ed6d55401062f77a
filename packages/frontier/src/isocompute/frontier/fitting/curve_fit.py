"""The result of fitting one curve: its parameters with intervals and flags, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.curves import Array, Curve
from ..errors import Flag
from .flags import flags_of
from .forms import Parameters, form_of
from .intervals import LEVEL, interval
from .noise import Scatter
from .point import PointFit
from .profile import Profile, profile_asymptote
from .seeds import effect_basis, without_effects
from .selection import start_of
from .uncertainty import Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFit:
    """One fitted curve, or the reason why there is none.

    Attributes:
        curve: The measured points; empty after loading from disk.
        parameters: The fit, or None.
        intervals: 95 % intervals by parameter name.
        asymptote_interval: That of A.
        residual_sd: Standard deviation of the residuals.
        draws: The refits.
        flags: Why to read it with care.
        reason: Why there is no fit.
        records_gap: How far above a fit of all points one of the record-breaking points alone lies, at the last
            record.
        smoothed_records_gap: The same for records of a running mean over five evaluations.
        profile: Profile-likelihood interval of A.
        criteria: Of every form its ``aicc`` and its error on the held-out ``tail``, in variances.
        noise_factor: Standard deviation of the noise within runs, in standard errors of the evaluations.
        degrees: Effective degrees of freedom behind that.
    """

    curve: Curve
    parameters: Parameters | None
    intervals: Mapping[str, tuple[float, float]]
    asymptote_interval: tuple[float, float] | None
    residual_sd: float | None
    draws: Draws | None
    flags: tuple[Flag, ...]
    reason: str
    records_gap: float | None = None
    smoothed_records_gap: float | None = None
    profile: Profile | None = None
    criteria: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    noise_factor: float | None = None
    degrees: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As in ``fits.json``."""
        curve = self.curve
        return {
            "rollouts_per_problem": curve.rollouts_per_problem,
            "problems_per_batch": curve.problems_per_batch,
            "form": self.parameters.form if self.parameters else None,
            "params": self.parameters.named() if self.parameters else None,
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            "support": list(curve.support),
            "residual_sd": self.residual_sd,
            "noise_factor": self.noise_factor,
            "records_gap": self.records_gap,
            "smoothed_records_gap": self.smoothed_records_gap,
            "profile": None if self.profile is None else {
                "A": list(self.profile.interval), "effective_points": self.profile.effective_points,
                "open_above": self.profile.open_above,
            },
            "criteria": {form: dict(values) for form, values in self.criteria.items()},
            "group": curve.group or None,
            "seeds": curve.seeds,
            "evaluations": len(curve.compute),
            "flags": [str(f) for f in self.flags],
            "reason": self.reason,
        }  # fmt: skip


def without_fit(curve: Curve) -> CurveFit:
    """The result of a curve that cannot be fitted."""
    return CurveFit(
        curve=curve, parameters=None, intervals={}, residual_sd=None, draws=None, asymptote_interval=None,
        records_gap=None, flags=(Flag.FIT_FAILED, Flag.TOO_FEW_POINTS),
        reason="fewer than three evaluations at different compute",
    )  # fmt: skip


def curve_fit(
    curve: Curve, best: PointFit, every: Sequence[PointFit], draws: Draws, within: Scatter, *,
    criteria: dict[str, float], tails: dict[str, float], seeds: Array, within_run: bool,
) -> CurveFit:  # fmt: skip
    """The result of a curve.

    Args:
        curve: The points that were fitted.
        every: A fit of every form, whatever was asked for.
        within: Noise within its runs.
        criteria: AICc of each form.
        tails: Error of each form on the held-out tail.
        seeds: Effects of seeds that the refits have, shape ``(refits, seeds, 2)``.
        within_run: Whether no curve of the population has two seeds, so that the refits have no such effects.
    """
    parameters = best.parameters
    asymptote = interval(draws.asymptote)
    same = draws.form == parameters.form
    intervals = {"A": asymptote}
    if same.sum() >= 20:
        intervals[form_of(parameters.form).names[1]] = interval(draws.scale[same])
    basis = effect_basis(curve, parameters)
    made = float(parameters(curve.compute.max())) - parameters.start
    moved = np.abs(seeds[:, :, 0].mean(axis=1)) * (parameters.gain / made if made > 1e-9 else 1.0)
    profile = profile_asymptote(
        best, curve.compute,
        parameters(curve.compute) + without_effects(curve, basis, curve.reward - parameters(curve.compute)),
        curve.standard_error, start_of(curve, parameters.form), independent_points=within.effective_points,
        between_seeds=float(np.quantile(moved, LEVEL)),
    )  # fmt: skip
    return CurveFit(
        curve=curve, parameters=parameters, intervals=intervals, residual_sd=best.residual_sd, draws=draws,
        asymptote_interval=asymptote, reason="",
        flags=flags_of(curve, best, every, criteria, draws, profile, within, within_run=within_run),
        profile=profile,
        criteria={form: {"aicc": value, "tail": tails.get(form)} for form, value in criteria.items()},
        noise_factor=within.factor, degrees=within.degrees,
    )  # fmt: skip
