"""Tiny base models, and the synthetic tasks that they are taught: chains, needle and mixture."""
