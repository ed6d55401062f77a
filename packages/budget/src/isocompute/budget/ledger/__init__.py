"""What was generated: counted, kept in a file that survives crashes, summed up, and held against limits."""

from .accounts import Account, account
from .counts import COHORTS, TRAINING_COHORTS, Counts, counts_by_cohort
from .fold import Totals
from .history import History
from .ledger import Ledger
from .limits import Admission, Limits
from .meter import Meter
from .standing import Standing

__all__ = [
    "COHORTS",
    "TRAINING_COHORTS",
    "Account",
    "Admission",
    "Counts",
    "History",
    "Ledger",
    "Limits",
    "Meter",
    "Standing",
    "Totals",
    "account",
    "counts_by_cohort",
]
