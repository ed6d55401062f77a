"""Convert an allocation to the settings of common trainers, and back.

``convert`` writes the batch, micro-batch and step keys with which a trainer generates exactly B_p · n · M
rollouts and takes M optimizer steps; ``read`` understands such settings, and says what they leave open and
where they contradict each other. The keys were read in each trainer's own source; each trainer has a module.
"""

from .forms import load, nested, render
from .framework import Framework
from .reading import Reading
from .registry import FRAMEWORKS, convert, framework, read
from .run import Configuration, Parallelism, Run

__all__ = [
    "FRAMEWORKS",
    "Configuration",
    "Framework",
    "Parallelism",
    "Reading",
    "Run",
    "convert",
    "framework",
    "load",
    "nested",
    "read",
    "render",
]
