"""``params.yaml``: what can be set, how it is read, and what is refused."""

from .model import (
    CommandTrainer,
    DifficultyConfig,
    EvaluationConfig,
    FrontierConfig,
    ModelConfig,
    PreparedConfig,
    PrescribeConfig,
    Preset,
    ResourcesConfig,
    SweepConfig,
)
from .reading import load

__all__ = [
    "CommandTrainer",
    "DifficultyConfig",
    "EvaluationConfig",
    "FrontierConfig",
    "ModelConfig",
    "PreparedConfig",
    "PrescribeConfig",
    "Preset",
    "ResourcesConfig",
    "SweepConfig",
    "load",
]
