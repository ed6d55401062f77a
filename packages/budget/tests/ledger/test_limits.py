import pytest
from isocompute.budget import BudgetError, Counts, Limits
from isocompute.budget.ledger.counts import admission


@pytest.mark.parametrize("value", [0, -5, 2.5, "many"])
def test_a_limit_below_one_is_refused_by_name(value):
    with pytest.raises(BudgetError, match="limit on rollouts"):
        Limits(rollouts=value)


def test_a_step_that_generates_nothing_is_refused_only_by_time_and_money():
    spent = {"used": Counts(rollouts=9, response_tokens=9), "lost": Counts(), "reserved": 0, "device_seconds": 9.0}
    assert admission(Limits(rollouts=8, response_tokens=8), 2, 0, **spent)
    assert not admission(Limits(rollouts=8), 2, 1, **spent)
    assert not admission(Limits(device_seconds=9.0), 2, 0, **spent)
