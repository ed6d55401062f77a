import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.units import (
    DeviceSeconds,
    Flops,
    Interval,
    Money,
    PromptTokens,
    ResponseTokens,
    Rollouts,
    UnitError,
    UpdateSteps,
)

UNITS = (Rollouts, PromptTokens, ResponseTokens, UpdateSteps, DeviceSeconds, Flops, Money)


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.truediv, operator.lt, operator.ge])
def test_no_two_units_go_together(operation):
    for one in UNITS:
        for other in (*UNITS, float):
            if one is other:
                continue
            with pytest.raises(UnitError, match="convert one of them first"):
                operation(one(2), other(1))
    assert Rollouts(1) != ResponseTokens(1)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_amounts_of_one_unit_add_up(a, b):
    assert Rollouts(a) + Rollouts(b) == Rollouts(a + b)
    assert (Rollouts(a) < Rollouts(b)) == (a < b)
    assert 3 * ResponseTokens(a) == ResponseTokens(3 * a)
    if b:
        assert Rollouts(a) / Rollouts(b) == a / b


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), "many", True, 1.5])
def test_an_amount_that_cannot_be_is_refused(amount):
    with pytest.raises(BudgetError, match="an amount of rollouts is"):
        Rollouts(amount)
    with pytest.raises(BudgetError, match="an amount of rollouts is -1"):
        Rollouts(1) - Rollouts(2)


def test_money_keeps_its_currency_and_hours_are_seconds():
    assert Money(1.5, "EUR") + Money(1, "EUR") == Money(2.5, "EUR")
    with pytest.raises(UnitError, match="cannot add USD to EUR"):
        Money(1, "EUR") + Money(1)
    assert DeviceSeconds.of_hours(2) == DeviceSeconds(7200)
    assert DeviceSeconds(5400).hours == 1.5
    assert [str(Money(1234.5)), str(Rollouts(1000)), str(Flops(2e20))] == [
        "1,234.50 USD",
        "1,000 rollouts",
        "2e+20 FLOPs",
    ]


def test_an_interval_is_in_order_and_gathers_what_it_rests_on():
    one = Interval(low=Rollouts(1), likely=Rollouts(2), high=Rollouts(4), assumptions=("a",))
    both = one + Interval(low=Rollouts(1), likely=Rollouts(1), high=Rollouts(1), assumptions=("a", "b"))
    assert (both.low, both.likely, both.high) == (Rollouts(2), Rollouts(3), Rollouts(5))
    assert both.assumptions == ("a", "b")
    assert one.convert(lambda r: ResponseTokens(r.amount * 10), "ten each").high == ResponseTokens(40)
    with pytest.raises(BudgetError, match="must be in order"):
        Interval(low=Rollouts(3), likely=Rollouts(2), high=Rollouts(4))
