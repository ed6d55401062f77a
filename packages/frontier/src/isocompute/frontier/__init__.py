"""What does a budget buy, and how should it be split? Compute-optimal frontiers of LLM reinforcement learning."""

from .answers.fitted import Fitted
from .answers.forecast import Forecast, ForecastConfig, Verdict, forecast
from .answers.interference import interference, train_validation_gap
from .answers.paper import PaperConfig, PaperFits, fit_as_paper
from .answers.recipes import efficiency, leave_one_out
from .data.curves import isotonic, records
from .data.reading import read_evals, with_gpu_hours
from .errors import MEANING, Flag, FrontierError
from .fitting.nstar import fit_points
from .notebook import Fit, Frontier
from .posterior.density import Priors

__all__ = [
    "MEANING",
    "Fit",
    "Fitted",
    "Flag",
    "Forecast",
    "ForecastConfig",
    "Frontier",
    "FrontierError",
    "PaperConfig",
    "PaperFits",
    "Priors",
    "Verdict",
    "efficiency",
    "fit_as_paper",
    "fit_points",
    "forecast",
    "interference",
    "isotonic",
    "leave_one_out",
    "read_evals",
    "records",
    "train_validation_gap",
    "with_gpu_hours",
]
