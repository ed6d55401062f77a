"""One posterior over all runs of a sweep, and decisions based on it."""
