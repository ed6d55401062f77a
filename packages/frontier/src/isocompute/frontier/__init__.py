"""What does a budget buy, and how should it be split? Compute-optimal frontiers of LLM reinforcement learning."""

from .answers.comparison import Comparison, compare
from .answers.efficiency import efficiency, leave_one_out
from .answers.fits import FitConfig, fit
from .answers.fitted import Fitted
from .answers.forecast import Forecast, ForecastConfig, forecast
from .answers.interference import interference, train_validation_gap
from .answers.notebook import Frontier
from .answers.paper import fit_as_paper
from .answers.prescription import Prescription, prescribe
from .answers.results import Fits
from .answers.sensitivity import sensitivity, smallest_stable
from .data.reading import read_evals
from .data.records import isotonic, records
from .data.units import convert, with_gpu_hours
from .errors import MEANING, Flag, FrontierError
from .fitting.nstar import fit_points
from .posterior.priors import Priors

__all__ = [
    "MEANING",
    "Comparison",
    "FitConfig",
    "Fits",
    "Fitted",
    "Flag",
    "Forecast",
    "ForecastConfig",
    "Frontier",
    "FrontierError",
    "Prescription",
    "Priors",
    "compare",
    "convert",
    "efficiency",
    "fit",
    "fit_as_paper",
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
