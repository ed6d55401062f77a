"""Figures, and a one-page report."""
