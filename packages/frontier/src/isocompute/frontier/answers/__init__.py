"""Answers: fits of a sweep, prescriptions, forecasts and comparisons, each a result that can be printed."""
