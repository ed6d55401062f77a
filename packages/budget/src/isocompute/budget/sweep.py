"""The public address of ``planning.sweep``: a sweep that fits a total budget."""

from .planning.sweep import MOST_POINTS, Sweep, SweepCell, design, evaluation_points

__all__ = ["MOST_POINTS", "Sweep", "SweepCell", "design", "evaluation_points"]
