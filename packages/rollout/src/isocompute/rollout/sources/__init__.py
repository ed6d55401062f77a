"""Where problems come from: reasoning-gym tasks, Hugging Face datasets, the user's own files."""

from __future__ import annotations

from .base import HubSource, LocalSource, ReasoningGymSource, Source, load_problems, source_from

__all__ = ["HubSource", "LocalSource", "ReasoningGymSource", "Source", "load_problems", "source_from"]
