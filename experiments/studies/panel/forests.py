"""The figures of the page: n* of every unit under each protocol, and its shift in every reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...figures import COLOURS, pyplot, save
from .advice import PROTOCOLS
from .cards import FIELDS, Read
from .claims import signed
from .measures import AS_PINNED
from .questions import OCTAVE, Measured, mean_of, read
from .statistics import Verdict, over_units
from .study import UNITS

MARKERS = "os^"
"""By base model."""
SEEN = {Verdict.CONTRADICTED: "#c44e52", Verdict.SUPPORTED: "#55a868", Verdict.UNDECIDED: "0.45"}


def draw_protocols(measured: Measured, path: Path) -> None:
    """Draw n* at C_max/8 and at C_max under each protocol, a line for each unit, and their mean."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(PROTOCOLS), figsize=(7.2, 3.0), sharey=True, layout="constrained")
    for axis, (protocol, title), question in zip(axes, PROTOCOLS.items(), ("Q1", "Q2", "Q3"), strict=True):
        _protocol(axis, measured, protocol)
        axis.set_title(title, fontsize=9)
        shift = mean_of(read(question, measured))
        low, high = shift.interval
        axis.set_xlabel(f"{signed(shift.value, 2)} octaves ({signed(low, 2)} to {signed(high, 2)})", fontsize=9)
        axis.set_xticks([0, 1], ["C_max/8", "C_max"])
        axis.set(xlim=(-0.4, 1.4), ylim=(0.8, 5.2))
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(range(1, 6), [str(2**k) for k in range(1, 6)])
    axes[0].set_ylabel("n*")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=5,
        fontsize=8,
        frameon=False,
        title_fontsize=8,
        title="Each unit with its 95 % interval (posterior), a marker for each base model, and their mean with its "
        "95 % interval (t).\nIn octaves: the mean of the units' posterior-median shifts, "
        "not the difference of the diamonds",
    )
    save(figure, path)


def _protocol(axis: Any, measured: Measured, protocol: str) -> None:
    colours = {setting: COLOURS[k % len(COLOURS)] for k, setting in enumerate(_settings())}
    pairs = {}
    for k, unit in enumerate(UNITS):
        own = np.array(measured[unit.name]["vertices"][protocol][:2])
        pairs[unit.problem_set, unit.base_seed] = own[:, 0]
        axis.errorbar(
            np.arange(2) + 0.025 * (k - (len(measured) - 1) / 2),
            own[:, 0],
            np.abs(own[:, 1:] - own[:, :1]).T,
            fmt=f"{MARKERS[unit.base_seed]}-",
            markersize=4,
            linewidth=1.2,
            alpha=0.8,
            capsize=2,
            color=colours[unit.problem_set],
            label=None if unit.base_seed else unit.problem_set,
        )
    means = [over_units({key: float(pair[side]) for key, pair in pairs.items()}) for side in (0, 1)]
    values = np.array([mean.value for mean in means])
    ends = np.array([mean.interval for mean in means])
    axis.errorbar(
        [-0.28, 1.28],
        values,
        np.abs(ends.T - values),
        fmt="D",
        color="black",
        capsize=4,
        label=f"mean of {len(pairs)} units",
    )


FOREST = {
    ("Q1", "anchor: × ½"): "√B rule, half the rate",
    ("Q1", AS_PINNED): "√B rule, the chosen rate",
    ("Q1", "anchor: × 2"): "√B rule, twice the rate",
    ("Q2", AS_PINNED): "best of three rates",
    ("Q3", AS_PINNED): "best rate at each budget, with decay",
}
"""Rows of the front page's plot: a question and its reading, and the way of choosing the learning rate."""


def draw_forest(cards: Mapping[str, Sequence[Read]], path: Path) -> None:
    """Draw the shift of n* for five ways of choosing the learning rate: what the front page shows."""
    figure, axis = pyplot().subplots(figsize=(7.2, 2.5), layout="constrained")
    for k, ((question, reading), words) in enumerate(FOREST.items()):
        own = next(each for each in cards[question] if each.name == reading).estimate
        low, high = own.interval
        axis.plot([low, high], [-k, -k], color="#2b6cb0", linewidth=2.2)
        axis.plot(own.value, -k, "o", markersize=6, color="#2b6cb0")
        axis.annotate(words, (-0.01, -k), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=9)
    axis.axvline(0, color="0.3", linewidth=0.9)
    axis.axvspan(OCTAVE, 3, color="#55a868", alpha=0.15, lw=0)
    axis.annotate(
        "n* grows, as claimed", (OCTAVE, 1.02), xycoords=("data", "axes fraction"), fontsize=9, color="#2f6b3d"
    )
    axis.set(xlim=(-2.5, 2.5), yticks=[])
    axis.set_xlabel(f"shift of n* in octaves at 8 times the budget (95 %, {len(UNITS)} units)", fontsize=9)
    axis.spines[["left", "right", "top"]].set_visible(False)
    save(figure, path)


def draw_readings(cards: Mapping[str, Sequence[Read]], path: Path) -> None:
    """Draw the shift of n* in every reading, a panel for each way of choosing the rate.

    Args:
        cards: Of the questions about them, in the order of ``PROTOCOLS``.
    """
    every = {each.name: each.field for reads in cards.values() for each in reads}
    names = sorted(every, key=lambda name: ["", *FIELDS].index(every[name]))
    size = (7.2, 1.1 + 0.17 * len(names))
    figure, axes = pyplot().subplots(1, len(cards), figsize=size, sharey=True, layout="constrained")
    for axis, reads, title in zip(axes, cards.values(), PROTOCOLS.values(), strict=True):
        for own in reads:
            at = -names.index(own.name)
            axis.plot(own.estimate.interval, [at, at], color=SEEN[own.verdict], linewidth=1.4)
            axis.plot(own.estimate.value, at, "o", markersize=4, color=SEEN[own.verdict])
        axis.axvline(0, color="0.6", linewidth=0.8)
        axis.axvline(OCTAVE, color="0.6", linewidth=0.8, linestyle="--")
        axis.set_title(title, fontsize=9)
        axis.set_xlim(-2, 2)
        axis.tick_params(labelsize=8)
    axes[0].set_yticks([-k for k in range(len(names))], [_said(name) for name in names], fontsize=8)
    figure.supxlabel(
        "octaves by which n* moves, 95 %; dashed: half an octave; red: excluded, green: seen, grey: undecided",
        fontsize=8,
    )
    save(figure, path)


def _said(name: str) -> str:
    return "today's posterior" if name == AS_PINNED else name


def _settings() -> list[str]:
    return list(dict.fromkeys(unit.problem_set for unit in UNITS))
