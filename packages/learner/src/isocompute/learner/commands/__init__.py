"""The commands of ``isocompute-learner``, one per module."""
