"""The scores of pilots against their learning rates, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..figures import COLOURS, pyplot, save
from .search import Pilot, Search


def rates_figure(pilot: Pilot, path: Path) -> None:
    """Draw the scores of pilots against their learning rates, a line for each n (IsoCompute Playbook, Figure 4).

    Bars are one standard error, a filled dot is the rate chosen, a cross at the bottom a rate that diverged.
    """
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    base, several = pilot.base, len({each.problems_per_batch for each in pilot.searches}) > 1
    axes.axhline(base.score, color="#4a5568", linestyle=":", linewidth=1, label="base model")
    for index, found in enumerate(pilot.searches):
        size = f", B_p = {found.problems_per_batch}" if several else ""
        label = f"n = {found.rollouts_per_problem}{size}"
        _draw_search(axes, found, label, COLOURS[index % len(COLOURS)])
    axes.set(xlabel="learning rate", ylabel=pilot.metric.replace("_at_", "@"), xscale="log")
    rates = sorted({each.learning_rate for found in pilot.searches for each in found.grid})
    axes.set_xticks(rates, labels=[f"{rate:.3g}" for rate in rates])
    axes.minorticks_off()
    axes.legend(frameon=False)
    save(figure, path)


def _draw_search(axes: Any, found: Search, label: str, colour: str) -> None:
    scored = [each for each in found.grid if each.score is not None and not each.diverged]
    rates = [each.learning_rate for each in scored]
    errors = [each.standard_error for each in scored]
    axes.errorbar(
        rates, [each.score for each in scored], yerr=errors, color=colour, marker="o", markerfacecolor="white",
        capsize=2, linewidth=1.2, label=label,
    )  # fmt: skip
    axes.plot([found.chosen.learning_rate], [found.chosen.score], marker="o", color=colour, zorder=3)
    lost = [each.learning_rate for each in found.grid if each.diverged]
    axes.plot(lost, [0.02] * len(lost), "x", color=colour, transform=axes.get_xaxis_transform())
