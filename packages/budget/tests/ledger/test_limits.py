import pytest
from isocompute.budget import BudgetError, Limits


@pytest.mark.parametrize("value", [0, -5, 2.5, "many"])
def test_a_limit_below_one_is_refused_by_name(value):
    with pytest.raises(BudgetError, match="limit on rollouts"):
        Limits(rollouts=value)
