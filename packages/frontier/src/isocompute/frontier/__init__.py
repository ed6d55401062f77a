"""What does a budget buy, and how should it be split? Compute-optimal frontiers of LLM reinforcement learning."""

from .comparison import Comparison, compare
from .efficiency import efficiency, leave_one_out
from .errors import MEANING, Flag, FrontierError
from .fits import FitConfig, fit
from .forecast import Forecast, ForecastConfig, forecast
from .interference import interference, train_validation_gap
from .nstar import fit_points
from .prescription import Prescription, prescribe
from .reading import read_evals
from .records import isotonic, records
from .results import Fits
from .sensitivity import sensitivity, smallest_stable
from .units import convert, with_gpu_hours

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
    "convert",
    "efficiency",
    "fit",
    "fit_points",
    "forecast",
    "interference",
    "isotonic",
    "leave_one_out",
    "prescribe",
    "read_evals",
    "records",
    "sensitivity",
    "smallest_stable",
    "train_validation_gap",
    "with_gpu_hours",
]
