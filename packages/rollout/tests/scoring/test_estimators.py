from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.estimators import avg_at_k, best_at_k, worst_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_estimators_are_means_over_all_draws_without_replacement(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    draws = list(combinations(right, k))
    args = ([sum(right)], [len(right)], k)
    assert avg_at_k(*args)[0] == pytest.approx(np.mean([np.mean(d) for d in draws]))
    assert best_at_k(*args)[0] == pytest.approx(np.mean([any(d) for d in draws]))
    assert worst_at_k(*args)[0] == pytest.approx(np.mean([all(d) for d in draws]))


def test_k_beyond_the_samples_is_refused() -> None:
    with pytest.raises(RolloutError, match="k is 5"):
        best_at_k([1], [4], 5)
