"""Where problems come from: reasoning-gym tasks, Hugging Face datasets, the user's own files."""

from __future__ import annotations

from .base import HubSource, LocalSource, ReasoningGymSource, Source, source_from
from .loading import Loaded, load_checked, load_problems

__all__ = [
    "HubSource",
    "Loaded",
    "LocalSource",
    "ReasoningGymSource",
    "Source",
    "load_checked",
    "load_problems",
    "source_from",
]
