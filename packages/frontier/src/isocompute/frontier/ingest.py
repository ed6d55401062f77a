"""Runs of other frameworks as ``evals`` tables: the public address of ``data.ingest``."""

from .data.ingest import ADAPTERS, Adapter, Layout, Run, Settings, ingest

__all__ = ["ADAPTERS", "Adapter", "Layout", "Run", "Settings", "ingest"]
