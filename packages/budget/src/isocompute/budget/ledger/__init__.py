"""Counts of what was generated: stored in a crash-safe file, summed up, and checked against limits."""
