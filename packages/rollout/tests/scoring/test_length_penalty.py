"""The over-long penalty: its formula, its bounds, and whom it spares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.sampling import LengthPenalty

PENALTIES = st.tuples(st.integers(1, 50), st.integers(0, 50)).map(
    lambda pair: LengthPenalty(longest=pair[0] + pair[1], margin=pair[0])
)


@given(PENALTIES, st.integers(0, 200))
def test_a_right_response_loses_what_the_formula_says(penalty: LengthPenalty, tokens: int) -> None:
    start = penalty.longest - penalty.margin
    if tokens <= start:
        expected = 1.0
    elif tokens <= penalty.longest:
        expected = 1.0 + (start - tokens) / penalty.margin
    else:
        expected = 0.0
    reward = penalty.reward(1.0, tokens=tokens, phase="train")
    assert reward == pytest.approx(expected, abs=1e-12)
    assert 0.0 <= reward <= 1.0
    assert penalty.reward(1.0, tokens=tokens + 1, phase="train") <= reward


@given(PENALTIES, st.integers(0, 200), st.floats(0, 1, exclude_max=True))
def test_a_response_that_is_not_right_keeps_its_reward(penalty: LengthPenalty, tokens: int, reward: float) -> None:
    assert penalty.reward(reward, tokens=tokens, phase="train") == reward


@pytest.mark.parametrize("phase", ["eval", "difficulty", "baseline", "canary"])
def test_what_is_measured_has_no_penalty(phase: str) -> None:
    assert LengthPenalty(longest=4, margin=2).reward(1.0, tokens=400, phase=phase) == 1.0


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((0, 1), r"longest is 0"),
        ((8, 2.5), r"margin is 2\.5"),
        ((8, True), r"margin is True"),
        ((8, 9), r"margin is 9"),
    ],
)
def test_lengths_that_cannot_be_are_named(lengths: tuple[int, int], message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        LengthPenalty(longest=lengths[0], margin=lengths[1])
