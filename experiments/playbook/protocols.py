"""The figure of the three protocols: n* at C_max/8 and at C_max, a line for each unit, and their mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..figures import COLOURS, pyplot, save
from . import study as panel
from .advice import PROTOCOLS
from .questions import Measured
from .statistics import over_units

MARKERS = "os^"
"""By base model."""


def draw(measured: Measured, path: Path) -> None:
    """Draw it."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(PROTOCOLS), figsize=(7.2, 3.0), sharey=True, layout="constrained")
    for axis, (protocol, title) in zip(axes, PROTOCOLS.items(), strict=True):
        _panel(axis, measured, protocol)
        axis.set_title(title, fontsize=9)
        axis.set_xticks([0, 1], ["C_max/8", "C_max"])
        axis.set(xlim=(-0.4, 1.4), ylim=(0.8, 5.2))
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(range(1, 6), [str(2**k) for k in range(1, 6)])
    axes[0].set_ylabel("n*")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        means = ", and their mean with its 95 % interval (t)" if len(measured) > 1 else ""
        figure.legend(
            handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False, title_fontsize=8,
            title="Each unit with its 95 % interval (posterior), a marker for each base model" + means,
        )  # fmt: skip
    save(figure, path)


def _panel(axis: Any, measured: Measured, protocol: str) -> None:
    colours = {setting: COLOURS[k % len(COLOURS)] for k, setting in enumerate(_settings())}
    shown: set[str] = set()
    pairs = {}
    for k, unit in enumerate(each for each in panel.load().units() if each.name in measured):
        own = np.array(measured[unit.name]["vertices"][protocol][:2])
        pairs[unit.problem_set, unit.base_seed] = own[:, 0]
        label = unit.problem_set
        axis.errorbar(
            np.arange(2) + 0.025 * (k - (len(measured) - 1) / 2), own[:, 0], np.abs(own[:, 1:] - own[:, :1]).T,
            fmt=f"{MARKERS[unit.base_seed]}-", markersize=4, linewidth=1.2, alpha=0.8, capsize=2,
            color=colours[unit.problem_set], label=None if label in shown else label,
        )  # fmt: skip
        shown.add(label)
    means = [over_units({key: float(pair[side]) for key, pair in pairs.items()}) for side in (0, 1) if pairs]
    if any(mean.interval for mean in means):
        ends = np.array([mean.interval for mean in means])
        values = np.array([mean.value for mean in means])
        axis.errorbar(
            [-0.28, 1.28], values, np.abs(ends.T - values), fmt="D", color="black", capsize=4,
            label=f"mean of {len(pairs)} units",
        )  # fmt: skip


def _settings() -> list[str]:
    return list(dict.fromkeys(unit.problem_set for unit in panel.load().units()))
