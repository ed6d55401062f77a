"""Where problems come from: reasoning-gym tasks, Hugging Face datasets, the user's own files."""

from .loading import Loaded, load_checked, load_problems
from .sources import HubSource, LocalSource, ReasoningGymSource, Source, source_from

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
