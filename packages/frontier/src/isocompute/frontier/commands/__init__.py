"""The commands of ``isocompute-frontier``, one per module."""
