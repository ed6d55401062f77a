"""Errors a user can act on, and flags that say when a result cannot be trusted."""

from __future__ import annotations

from enum import StrEnum

from .contract.errors import IsoComputeError


class FrontierError(IsoComputeError):
    """Something asked of the package cannot be done; the message says what is wrong and what would be right."""


class InputWarning(UserWarning):
    """A warning about the input that does not stop a fit."""


class Flag(StrEnum):
    """Why a result should be read with care."""

    AT_BOUND = "parameter_at_bound"
    TOO_FEW_POINTS = "too_few_points"
    SUPPORT_TOO_SHORT = "support_too_short"
    ASYMPTOTE_NOT_IDENTIFIED = "asymptote_not_identified"
    FORMS_DISAGREE = "forms_disagree"
    TAIL_FALLING = "tail_falling"
    STARTS_DISAGREE = "starts_disagree"
    WITHIN_RUN_ONLY = "within_run_only"
    FIT_FAILED = "fit_failed"
    K_UNIDENTIFIED = "k_unidentified"
    BEYOND_SUPPORT = "beyond_support"
    RIVALS_UNMEASURED = "rivals_unmeasured"
    NOT_DISTINGUISHABLE = "not_distinguishable"
    EXTENSION_FAILED = "extension_failed"
    AT_LARGEST_N = "n_star_at_largest_n"
    STILL_GROWING = "n_star_still_growing"


MEANING = {
    Flag.AT_BOUND: "a fitted parameter lies on the edge of what is searched",
    Flag.TOO_FEW_POINTS: "few evaluations after the start: fewer than five, or than eight for a forecast",
    Flag.SUPPORT_TOO_SHORT: "the run ends before 1.5 times the compute of half the gain",
    Flag.ASYMPTOTE_NOT_IDENTIFIED: "the data do not say where the curve levels off",
    Flag.FORMS_DISAGREE: "a form that fits about as well levels off outside the interval",
    Flag.TAIL_FALLING: "the reward falls at the end of the run",
    Flag.STARTS_DISAGREE: "almost equally good fits from other starting points have different asymptotes",
    Flag.WITHIN_RUN_ONLY: "one seed: the interval leaves out how seeds differ",
    Flag.FIT_FAILED: "no curve could be fitted",
    Flag.K_UNIDENTIFIED: "fewer than four n are ever best, so the sigmoid's steepness means nothing",
    Flag.BEYOND_SUPPORT: "the budget lies beyond the compute that was measured",
    Flag.RIVALS_UNMEASURED: "another curve is extrapolated to this budget, or refused because its data end too early",
    Flag.EXTENSION_FAILED: "later points contradict the forecast",
    Flag.AT_LARGEST_N: "n* is the largest n measured, so a larger n may be better still",
    Flag.STILL_GROWING: "n* still grew within the last doubling of compute, so where it stops is not known",
    Flag.NOT_DISTINGUISHABLE: "another n is best in more than a fifth of the refits",
}
