"""``params.yaml``: what can be set, how it is read, and what is refused."""

from .model import (
    CommandTrainer,
    DifficultyConfig,
    ModelConfig,
    PreparedConfig,
    PrescribeConfig,
    Preset,
    ResourcesConfig,
)
from .reading import load

__all__ = [
    "CommandTrainer",
    "DifficultyConfig",
    "ModelConfig",
    "PreparedConfig",
    "PrescribeConfig",
    "Preset",
    "ResourcesConfig",
    "load",
]
