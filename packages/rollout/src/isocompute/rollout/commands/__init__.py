"""The commands of ``isocompute-rollout``; related commands share a module."""
