"""Runs of other frameworks as ``evals`` tables: each adapter knows how its framework counts."""

from .adapters import ADAPTERS, Adapter, ingest
from .run import Layout, Run
from .settings import Settings

__all__ = ["ADAPTERS", "Adapter", "Layout", "Run", "Settings", "ingest"]
