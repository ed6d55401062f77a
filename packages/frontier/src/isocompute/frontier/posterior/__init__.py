"""One posterior over all runs of a sweep, and what to decide by it."""
