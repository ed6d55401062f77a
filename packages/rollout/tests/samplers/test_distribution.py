"""What is sampled from, against the rules written out token by token."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import Sampling
from isocompute.rollout.samplers.transformers import distribution, draw

torch = pytest.importorskip("torch")

LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=2, max_size=12)
SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.3137, 0.7731, 1.0]),
    top_k=st.integers(0, 14),
    min_p=st.sampled_from([0.0, 0.07, 0.6]),
)


def written_out(logits: list[float], sampling: Sampling) -> list[float]:
    """Probabilities of what is sampled from: tempered, then min-p, top-k and top-p, each of what the former left."""
    weights = [math.exp((x - max(logits)) / sampling.temperature) for x in logits]
    # The most probable token has weight 1.
    weights = [w if w >= sampling.min_p else 0.0 for w in weights]
    if 0 < sampling.top_k < len(weights):
        least = sorted(weights)[-sampling.top_k]
        weights = [w if w >= least else 0.0 for w in weights]
    total, before = sum(weights), 0.0
    for place in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        weight = weights[place]
        if before >= sampling.top_p * total and before > 0:
            weights[place] = 0.0
        before += weight
    return [w / sum(weights) for w in weights]


@given(LOGITS, SETTINGS)
def test_log_probabilities_are_of_what_the_options_leave(logits: list[float], sampling: Sampling) -> None:
    found = distribution(torch.tensor([logits]), sampling).exp()[0].tolist()
    # Where tokens are equally probable, which of them top-p keeps is open: compare the sorted ones.
    assert sorted(found) == pytest.approx(sorted(written_out(logits, sampling)), abs=1e-5)
    assert sum(found) == pytest.approx(1.0, abs=1e-5)
    assert found[logits.index(max(logits))] > 0 or logits.count(max(logits)) > 1


@given(LOGITS)
def test_temperature_0_leaves_everything_and_takes_the_best(logits: list[float]) -> None:
    sampling = Sampling(temperature=0.0, top_p=0.1, top_k=1, min_p=0.9)
    scores = distribution(torch.tensor([logits]), sampling)
    assert scores[0].tolist() == pytest.approx(torch.tensor(logits).log_softmax(0).tolist())
    assert logits[int(draw(scores, [torch.Generator()], greedy=True)[0])] == max(logits)


def test_tokens_are_drawn_as_often_as_they_are_probable_and_none_that_is_left_out() -> None:
    sampling = Sampling(top_k=3)
    count = 20_000
    scores = distribution(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), sampling).repeat(count, 1)
    generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
    drawn = draw(scores, generators, greedy=False).bincount(minlength=4)
    assert drawn[3] == 0
    for seen, chance in zip(drawn.tolist(), scores[0].exp().tolist(), strict=True):
        assert abs(seen - count * chance) <= 6 * math.sqrt(count * chance * (1 - chance) + 1e-9)


def test_half_precision_logits_are_scored_in_float32() -> None:
    assert distribution(torch.zeros(1, 3, dtype=torch.bfloat16), Sampling()).dtype == torch.float32
