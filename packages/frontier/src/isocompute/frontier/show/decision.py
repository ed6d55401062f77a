"""The figure of the decision: expected regret by n (or B_p) at chosen budgets, and n* (or B_p*) over compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..answers.fitted import Fitted
from ..data.reading import short
from .drawing import ACCENT, compute_axis, styled, subplots

BUDGETS = (1.0, 0.5, 0.25, 0.125)
"""Of the compute that was measured."""
MARKERS = "osD^"
NAMES = {"rollouts_per_problem": "n", "problems_per_batch": "B_p"}
WORDS = {"rollouts_per_problem": "rollouts per problem n", "problems_per_batch": "problems per batch B_p"}


@styled
def decision_figure(fitted: Fitted, setting: str = "rollouts_per_problem") -> Any:
    """Both panels beside each other.

    Args:
        setting: What is decided about; the other one is at its best for each value.
    """
    figure, (left, right) = subplots(1, 2, figsize=(9.5, 3.8))
    draw_regret(fitted, left, setting)
    draw_best(fitted, right, setting)
    return figure


def draw_regret(fitted: Fitted, axes: Any, setting: str = "rollouts_per_problem") -> Any:
    """Expected regret at some budgets (IsoCompute Playbook, Figure 10).

    Args:
        setting: As of ``decision_figure``.
    """
    values = sorted({getattr(c, setting) for c in fitted.settings})
    for budget, shade, marker in zip(BUDGETS, np.linspace(0.0, 0.65, len(BUDGETS)), MARKERS, strict=True):
        compute = fitted.largest * budget
        if compute < fitted.path_start:
            continue
        options = fitted.decide(compute).options
        regret = [min((o.regret for o in options if getattr(o.cell, setting) == v), default=np.nan) for v in values]
        width = 1.6 if budget == 1 else 1.0
        axes.plot(values, regret, marker=marker, color=str(shade), lw=width, label=short(compute))
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{v:,}" for v in values])
    axes.set_ylim(bottom=0)
    axes.set(
        title=f"Expected regret of each {NAMES[setting]}",
        xlabel=WORDS[setting],
        ylabel=f"expected regret in {fitted.metric}",
    )
    axes.legend(title=f"budget in {fitted.unit}", frameon=False, fontsize=8)
    return axes


def draw_best(
    fitted: Fitted, axes: Any, setting: str = "rollouts_per_problem", *, batch_rollouts: int | None = None
) -> Any:
    """The value of least expected regret against compute, over P(best) of every value (Figures 7, 21, 22, 24).

    Args:
        setting: As of ``decision_figure``.
        batch_rollouts: B, to draw against update steps M = C/B (Figure 9).
    """
    path = fitted.path()
    each = np.array([getattr(c, setting) for c in fitted.settings])
    values = np.unique(each)
    share = np.stack([path.probability_best[:, each == v].sum(axis=1) for v in values])
    at = path.compute / (batch_rollouts or 1)
    mesh = axes.pcolormesh(
        at, np.arange(len(values)), share, cmap="Blues", vmin=0, vmax=1, shading="nearest", rasterized=True
    )
    chosen = np.searchsorted(values, each[path.chosen])
    axes.step(at, chosen, where="mid", color=ACCENT, linewidth=2, label=f"{NAMES[setting]}*")
    axes.set_yticks(np.arange(len(values)), [f"{v:,}" for v in values])
    unit = f"compute in {fitted.unit}" if batch_rollouts is None else f"update steps at B = {batch_rollouts:,}"
    compute_axis(axes, unit)
    axes.set(title=f"{NAMES[setting]}* over compute", ylabel=WORDS[setting])
    axes.figure.colorbar(mesh, ax=axes, label="P(best)")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return axes


@styled
def trade_figure(fitted: Fitted, batch_rollouts: int) -> Any:
    """n*(M) and B_p*(M) at one B = B_p·n (Figure 9)."""
    figure, axes = subplots(1, 2, figsize=(9.5, 3.4))
    for axis, setting in zip(axes, NAMES, strict=True):
        draw_best(fitted, axis, setting, batch_rollouts=batch_rollouts)
    return figure
