"""The commands of ``isocompute-rollout``: those that belong together in one module."""
