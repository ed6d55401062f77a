"""The public address of the meter: ``ledger.meter`` and ``ledger.limits``."""

from .ledger.limits import Admission, overshoot, time_overshoot
from .ledger.meter import Meter

__all__ = ["Admission", "Meter", "overshoot", "time_overshoot"]
