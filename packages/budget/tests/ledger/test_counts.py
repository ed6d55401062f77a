import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError, Counts

counts = st.builds(
    Counts, rollouts=st.integers(0, 10**9), prompt_tokens=st.integers(0, 10**12), response_tokens=st.integers(0, 10**12)
)


@given(counts, counts, counts)
def test_counts_add_up_in_any_order(a, b, c):
    assert a + b == b + a
    assert (a + b) + c == a + (b + c) == sum([a, b, c], Counts())
    assert (a + b).response_tokens == a.response_tokens + b.response_tokens


def test_counts_do_not_add_to_bare_numbers():
    with pytest.raises(TypeError):
        Counts(rollouts=1) + 1


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, 2**63])
def test_a_count_that_is_no_count_is_refused_by_name(value):
    with pytest.raises(BudgetError, match="response_tokens is"):
        Counts(response_tokens=value)


def test_counts_are_empty_only_when_nothing_was_generated():
    assert not Counts()
    assert Counts(prompt_tokens=1)
