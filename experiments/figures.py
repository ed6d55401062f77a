"""Figures of the pipeline that belong to no package, and functions to write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout.contract.files import atomic_write

from .settings import DifficultyConfig

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#975a16")


def difficulty_histogram(counts: pl.DataFrame, settings: DifficultyConfig, path: Path) -> None:
    """Draw the base model's pass rates, with the problem sets marked (IsoCompute Playbook, Figure 2)."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    width = float(counts["highest"][0] - counts["lowest"][0])
    axes.bar(counts["lowest"], counts["problems"], width=width, align="edge", color="#9aa5b1", edgecolor="white")
    for (name, wanted), colour in zip(settings.sets.items(), COLOURS, strict=False):
        axes.axvspan(wanted.lowest, wanted.highest, alpha=0.15, color=colour, label=name)
    axes.set(xlabel=f"pass rate of the base model (avg@{settings.samples})", ylabel="problems", xlim=(0, 1))
    axes.legend(frameon=False)
    save(figure, path)


def pyplot() -> Any:
    """Matplotlib without a display, with reproducible files."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "isocompute"
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, path: Path) -> None:
    """Write a figure without a date or a version, and close it.

    Args:
        path: File name without suffix; ``.svg`` and ``.png`` are written.
    """
    with atomic_write(path.with_suffix(".svg")) as stream:
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    with atomic_write(path.with_suffix(".png")) as stream:
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    pyplot().close(figure)
