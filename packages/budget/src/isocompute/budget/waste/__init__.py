"""What training paid for and did not learn from, from the responses themselves and from ledgers."""

from .expectation import Expectation, expected_zero_variance
from .measure import summed, waste
from .summary import Paid, Waste

__all__ = ["Expectation", "Paid", "Waste", "expected_zero_variance", "summed", "waste"]
