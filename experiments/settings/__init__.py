"""``params.yaml``: what can be set, how it is read, and what is refused."""

from .command import CommandTrainer
from .preset import DifficultyConfig, ModelConfig, PreparedConfig, PreparedModel, Preset
from .reading import find, leaves, load
from .resources import CheckpointsConfig, ResourcesConfig
from .sweep import DeclaredRate, PrescribeConfig, SweepConfig

__all__ = [
    "CheckpointsConfig",
    "CommandTrainer",
    "DeclaredRate",
    "DifficultyConfig",
    "ModelConfig",
    "PreparedConfig",
    "PreparedModel",
    "PrescribeConfig",
    "Preset",
    "ResourcesConfig",
    "SweepConfig",
    "find",
    "leaves",
    "load",
]
