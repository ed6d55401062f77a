"""Figures of a fitted sweep: the public address of ``show.figures``."""

from .show.figures import (
    all_figures,
    b_p_star,
    curve_panels,
    frontier,
    n_star,
    sensitivity_panels,
    trade,
)

__all__ = ["all_figures", "b_p_star", "curve_panels", "frontier", "n_star", "sensitivity_panels", "trade"]
