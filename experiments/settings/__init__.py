"""``params.yaml``: what can be set, how it is read, and what is refused."""

from .preset import DifficultyConfig, ModelConfig, PreparedConfig, PreparedModel, Preset
from .reading import find, leaves, load
from .sections import CheckpointsConfig, CommandTrainer, DeclaredRate, PrescribeConfig, ResourcesConfig, SweepConfig

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
