"""Errors that a user can act on, and flags that say when a result cannot be trusted."""

from __future__ import annotations

from enum import StrEnum

from .contract.errors import IsoComputeError


class FrontierError(IsoComputeError):
    """A request that cannot be fulfilled; the message says what is wrong and what would be right."""


class InputWarning(UserWarning):
    """A warning about the input that does not stop a fit."""


class Flag(StrEnum):
    """A reason to read a result with care."""

    AT_BOUND = "parameter_at_bound"
    TOO_FEW_POINTS = "too_few_points"
    ASYMPTOTE_NOT_IDENTIFIED = "asymptote_not_identified"
    WITHIN_RUN_ONLY = "within_run_only"
    FIT_FAILED = "fit_failed"
    K_UNIDENTIFIED = "k_unidentified"
    EXTENSION_FAILED = "extension_failed"
    AT_LARGEST_N = "n_star_at_largest_n"


MEANING = {
    Flag.AT_BOUND: "a fitted parameter lies on the edge of what is searched",
    Flag.TOO_FEW_POINTS: "few evaluations after the start: fewer than five, or than eight for a forecast",
    Flag.ASYMPTOTE_NOT_IDENTIFIED: "the data do not say where the curve levels off",
    Flag.WITHIN_RUN_ONLY: "one seed: the interval leaves out how seeds differ",
    Flag.FIT_FAILED: "no curve could be fitted",
    Flag.K_UNIDENTIFIED: "fewer than four n are ever best, so the sigmoid's steepness means nothing",
    Flag.EXTENSION_FAILED: "later points contradict the forecast",
    Flag.AT_LARGEST_N: "the largest n that was run is the best at the end, so a larger n may be better still",
}
