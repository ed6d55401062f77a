"""The commands of ``isocompute-rollout``, one per module."""
