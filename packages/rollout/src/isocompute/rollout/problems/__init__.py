"""Where problems come from: reasoning-gym tasks, Hugging Face datasets, the user's own files."""

from .loading import Loaded, joined, load_checked, load_problems
from .named import NAMED, named_set
from .sources import HubSource, LocalSource, ReasoningGymSource, Source, source_from

__all__ = [
    "NAMED",
    "HubSource",
    "Loaded",
    "LocalSource",
    "ReasoningGymSource",
    "Source",
    "joined",
    "load_checked",
    "load_problems",
    "named_set",
    "source_from",
]
