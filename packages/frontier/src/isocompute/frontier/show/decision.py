"""The figure of the decision: expected regret by n at chosen budgets, and n* over compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..answers.answer import short
from ..answers.fitted import Fitted
from .drawing import ACCENT, styled, subplots

BUDGETS = (1.0, 0.5, 0.25, 0.125)
"""Of the compute that was measured."""


@styled
def decision_figure(fitted: Fitted) -> Any:
    """Both panels beside each other."""
    figure, (left, right) = subplots(1, 2, figsize=(9.5, 3.8))
    draw_regret(fitted, left)
    draw_n_star(fitted, right)
    return figure


def draw_regret(fitted: Fitted, axes: Any) -> Any:
    """Expected regret of each n at some budgets; of several settings of one n the best."""
    ns = sorted({c.rollouts_per_problem for c in fitted.cells})
    first = float(fitted.path_start)
    for budget, shade in zip(BUDGETS, np.linspace(0.0, 0.65, len(BUDGETS)), strict=True):
        compute = fitted.largest * budget
        if compute < first:
            continue
        options = fitted.decide(compute).options
        regret = [min(o.regret for o in options if o.cell.rollouts_per_problem == n) for n in ns]
        axes.plot(ns, regret, marker="o", color=str(shade), linewidth=1.6 if budget == 1 else 1.0, label=short(compute))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ns, [f"{n:,}" for n in ns])
    axes.set_ylim(bottom=0)
    axes.set(title="What each n is expected to lose", xlabel="rollouts per problem n",
             ylabel=f"expected regret in {fitted.metric}")  # fmt: skip
    axes.legend(title=f"budget in {fitted.unit}", frameon=False, fontsize=8)
    return axes


def draw_n_star(fitted: Fitted, axes: Any) -> Any:
    """The n of least expected regret against compute, over P(best) of every n."""
    path = fitted.path()
    each = np.array([c.rollouts_per_problem for c in fitted.cells])
    ns = np.unique(each)
    share = np.stack([path.probability_best[:, each == n].sum(axis=1) for n in ns])
    mesh = axes.pcolormesh(path.compute, np.arange(len(ns)), share, cmap="Blues", vmin=0, vmax=1, shading="nearest",
                           rasterized=True)  # fmt: skip
    chosen = np.searchsorted(ns, each[path.chosen])
    axes.step(path.compute, chosen, where="mid", color=ACCENT, linewidth=2, label="least expected regret")
    axes.set_xscale("log")
    axes.set_yticks(np.arange(len(ns)), [f"{n:,}" for n in ns])
    low, high = path.compute[[0, -1]]
    ticks = [t for t in 10.0 ** np.arange(0, 13) if low <= t <= high]
    ticks = ticks if len(ticks) > 1 else [low, float(np.sqrt(low * high)), high]
    axes.set_xticks(ticks, [short(t) for t in ticks])
    axes.minorticks_off()
    axes.set(title="n* over compute", xlabel=f"compute in {fitted.unit}", ylabel="rollouts per problem n")
    axes.figure.colorbar(mesh, ax=axes, label="P(best)")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return axes
