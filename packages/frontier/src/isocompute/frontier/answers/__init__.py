"""Answers: fits of a sweep, prescriptions, forecasts and comparisons, each as a printable result."""
