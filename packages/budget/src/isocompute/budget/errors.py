"""The errors of this package, each of one sentence.

Whatever is refused raises a ``BudgetError``; a docstring speaks of it only where it says more than that.
"""

from .contract.errors import IsoComputeError


class BudgetError(IsoComputeError):
    """A count, a limit, an allocation or a ledger is not what it must be."""


class LedgerError(BudgetError):
    """A ledger is damaged, held by another writer, of another run, or cannot be written."""


class DamagedLogError(BudgetError):
    """A log is damaged, or not in the format that its name says."""
