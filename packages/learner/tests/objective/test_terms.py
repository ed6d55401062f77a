import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.objective.terms import token_terms

LOGITS = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6)


@given(LOGITS, st.floats(0.25, 4))
def test_log_probabilities_are_a_distribution_at_any_temperature(logits: list[float], temperature: float) -> None:
    size = len(logits)
    terms = token_terms(torch.tensor([logits] * size), torch.arange(size), temperature=temperature)
    assert float(terms.logprobs.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert -1e-6 <= float(terms.entropy[0]) <= math.log(size) + 1e-5
    assert float(terms.entropy[0]) == pytest.approx(-float((terms.logprobs.exp() * terms.logprobs).sum()), abs=1e-5)
