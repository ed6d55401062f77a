"""What a run reports, step by step: sums and counts, statistics, timings, and whether it is healthy."""

from .steps import Record, from_plain, to_plain

__all__ = ["Record", "from_plain", "to_plain"]
