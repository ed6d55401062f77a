"""What does a budget buy, and how should it be split? Compute-optimal frontiers of LLM reinforcement learning."""

from .comparison import Comparison, compare
from .errors import MEANING, Flag, FrontierError
from .fits import FitConfig, fit
from .prescription import Prescription, prescribe
from .results import Fits

__all__ = [
    "MEANING",
    "Comparison",
    "FitConfig",
    "Fits",
    "Flag",
    "FrontierError",
    "Prescription",
    "compare",
    "fit",
    "prescribe",
]
