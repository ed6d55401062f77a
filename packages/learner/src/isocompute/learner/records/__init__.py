"""Records of a run, step by step: sums and counts, statistics, timings, health."""
