"""``params.yaml``: what can be set, how it is read, and what is refused."""

from .bases import ModelConfig, PreparedConfig
from .model import DifficultyConfig, Preset
from .reading import load
from .resources import ResourcesConfig
from .sweep import PrescribeConfig
from .trainer import CommandTrainer

__all__ = [
    "CommandTrainer", "DifficultyConfig", "ModelConfig", "PreparedConfig", "PrescribeConfig", "Preset",
    "ResourcesConfig", "load",
]  # fmt: skip
