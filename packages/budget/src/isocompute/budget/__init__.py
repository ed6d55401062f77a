"""What does reinforcement learning on samples cost, and what may still be spent?

``Allocation`` splits a budget, ``Ledger`` records what was generated, ``Meter`` enforces the limits, and
``account`` sums ledgers up. Importing the package is quick: polars is loaded when a table is asked for,
MLflow only for an MLflow source or log.
"""

from .accounts import Account, account
from .allocation import Allocation, Scaling
from .counts import COHORTS, TRAINING_COHORTS, Counts, Limits
from .errors import BudgetError, LedgerError
from .history import History, Totals
from .ledger import Ledger
from .meter import Admission, Meter

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
]
