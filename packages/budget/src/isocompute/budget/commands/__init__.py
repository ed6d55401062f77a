"""The commands of ``isocompute-budget``, one idea a module."""
