"""Sweeps of known truth: the public address of ``fitting.simulation``."""

from .fitting.simulation import Simulation

__all__ = ["Simulation"]
