"""Figures, and a report on one page."""
