"""What does reinforcement learning on samples cost, and what may still be spent?

``Allocation`` splits a budget, ``Ledger`` records what was generated, ``Meter`` enforces the limits, and
``account`` sums ledgers up. Importing the package is quick: polars is loaded when a table is asked for,
MLflow only for an MLflow source or log.
"""

from .errors import BudgetError, LedgerError
from .ledger.accounts import Account, account
from .ledger.counts import COHORTS, TRAINING_COHORTS, Counts, counts_by_cohort
from .ledger.fold import Totals
from .ledger.history import History
from .ledger.ledger import Ledger
from .ledger.limits import Admission, Limits
from .ledger.meter import Meter
from .planning.allocation import Allocation, Scaling

__all__ = [
    "COHORTS",
    "TRAINING_COHORTS",
    "Account",
    "Admission",
    "Allocation",
    "BudgetError",
    "Counts",
    "History",
    "Ledger",
    "LedgerError",
    "Limits",
    "Meter",
    "Scaling",
    "Totals",
    "account",
    "counts_by_cohort",
]
