"""A command that trains, held to a budget by the log that its trainer writes."""

from .charging import Charging
from .following import AT_BUDGET, Outcome, follow
from .live import LiveLog

__all__ = ["AT_BUDGET", "Charging", "LiveLog", "Outcome", "follow"]
