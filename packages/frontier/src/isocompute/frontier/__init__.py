"""What does a budget buy, and how should it be split? Compute-optimal frontiers of LLM reinforcement learning."""

from .comparison import Comparison, compare
from .errors import MEANING, Flag, FrontierError
from .fits import FitConfig, fit
from .forecast import Forecast, ForecastConfig, efficiency, forecast
from .interference import interference, train_validation_gap
from .nstar import fit_points
from .prescription import Prescription, prescribe
from .reading import read_evals
from .records import isotonic, records
from .results import Fits
from .sensitivity import sensitivity, smallest_stable

__all__ = [
    "MEANING",
    "Comparison",
    "FitConfig",
    "Fits",
    "Flag",
    "Forecast",
    "ForecastConfig",
    "FrontierError",
    "Prescription",
    "compare",
    "efficiency",
    "fit",
    "fit_points",
    "forecast",
    "interference",
    "isotonic",
    "prescribe",
    "read_evals",
    "records",
    "sensitivity",
    "smallest_stable",
    "train_validation_gap",
]
