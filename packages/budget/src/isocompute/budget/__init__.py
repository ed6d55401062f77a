"""Rollout budgets for reinforcement learning: what a run costs, and what it may still spend.

``Allocation`` splits a budget, ``Ledger`` records what was generated, ``Meter`` enforces the limits, and ``account``
sums ledgers. The package imports quickly: polars is loaded when a table is requested, MLflow only for an MLflow source
or log.
"""

from .errors import BudgetError, LedgerError
from .ledger.counts import COHORTS, TRAINING_COHORTS, Counts, counts_by_cohort
from .ledger.fold import Totals
from .ledger.ledger import Account, History, Ledger, account
from .ledger.limits import Admission, Limits
from .ledger.meter import Meter
from .planning.compute import Allocation, Scaling

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
