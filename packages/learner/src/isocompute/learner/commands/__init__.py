"""The commands of ``isocompute-learner``, one a module."""
