"""Fits of single curves, with their noise and intervals, and the log2-sigmoid of n*(C)."""
