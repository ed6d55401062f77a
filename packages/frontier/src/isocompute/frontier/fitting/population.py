"""Fitting and refitting the curves of one population together: their noise is estimated from all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.curves import Array, Curve
from .curve_fit import CurveFit, curve_fit
from .forms import Parameters
from .noise import estimate_noise, measuring_error, scatter, seed_effects
from .point import PointFit
from .selection import choose, criterion, held_out, nearest, weights_of
from .uncertainty import Resampling, refit


def fit_population(
    curves: Sequence[Curve], every: Sequence[Sequence[PointFit]], forms: Sequence[str], *, selection: str, refits: int,
    rng: np.random.Generator, questions: Sequence[Array] | None = None,
) -> list[CurveFit]:  # fmt: skip
    """Results of the curves of one value of the grouping column.

    Args:
        curves: The points fitted.
        every: For each curve a fit of every form.
        forms: Forms to choose among.
        selection: ``aicc`` or ``tail``.
        rng: Source of randomness.
        questions: For each curve what the choice of questions does to its start and gain, shape ``(refits, 2)``; None
            where the pass rates are not known.
    """
    allowed = [[p for p in own if p.parameters.form in forms] for own in every]
    noise = estimate_noise(curves, [nearest(curve, own) for curve, own in zip(curves, allowed, strict=True)])
    criteria = [
        {p.parameters.form: criterion(curve, p.parameters, noise.autocorrelation) for p in own}
        for curve, own in zip(curves, every, strict=True)
    ]
    tails = [held_out(curve, [p.parameters.form for p in own]) for curve, own in zip(curves, every, strict=True)]
    best = [choose(own, c, t, selection) for own, c, t in zip(allowed, criteria, tails, strict=True)]
    within = [scatter(curve, p.parameters, noise) for curve, p in zip(curves, best, strict=True)]
    measuring = [
        measuring_error(curve, p.parameters, max(w.factor, float(curve.error_is_known)), noise.autocorrelation)
        for curve, p, w in zip(curves, best, within, strict=True)
    ]
    effects = seed_effects(curves, measuring, noise, refits=refits, rng=rng)
    results = []
    for i, curve in enumerate(curves):
        likely = _likely(allowed[i], criteria[i], best[i], selection)
        setting = Resampling(
            curve=curve, fitted=best[i].parameters, likely=likely, noise=noise, scatter=within[i], effects=effects[i],
            questions=None if questions is None else questions[i], selection=selection,
        )  # fmt: skip
        draws = refit(setting, forms, rng=rng)
        results.append(
            curve_fit(
                curve,
                best[i],
                every[i],
                draws,
                within[i],
                criteria=criteria[i],
                tails=tails[i],
                seeds=effects[i],
                within_run=noise.amplitude is None,
            )
        )
    return results


def _likely(
    allowed: Sequence[PointFit], criteria: dict[str, float], best: PointFit, selection: str
) -> dict[Parameters, float]:
    """Curves that the truth may have followed, by Akaike weight; the chosen one where the tail has chosen."""
    if selection == "tail" or len(allowed) == 1:
        return {best.parameters: 1.0}
    weights = weights_of({p.parameters.form: criteria[p.parameters.form] for p in allowed})
    return {p.parameters: weights[p.parameters.form] for p in allowed}
