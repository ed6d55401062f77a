"""Counts of what was generated, kept in a file that survives crashes, summed up, and held against limits."""
