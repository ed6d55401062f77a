"""Per-step records of a run: sums and counts, statistics, timings, health."""
