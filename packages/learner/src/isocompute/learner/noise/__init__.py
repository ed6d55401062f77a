"""Noise of the policy gradient at a model, before anything is trained, within and between problems."""
