"""Timings of the composed parts, as ratios within one run."""
