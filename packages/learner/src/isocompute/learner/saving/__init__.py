"""Writes checkpoints and the trained policy, each whole or not at all."""
