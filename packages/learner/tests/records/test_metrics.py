import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import LearnerConfig, ObjectiveConfig
from isocompute.learner.objective.loss import ObjectiveInputs, loss_metrics, objective
from isocompute.learner.records.steps import Mean, Share, added, numbers, reduced


def mean(*values: float) -> Mean:
    numbers_of = torch.tensor(values, dtype=torch.float64)
    return Mean(total=numbers_of.sum(), count=torch.tensor(float(len(values)), dtype=torch.float64))


@given(st.lists(st.lists(st.floats(-9, 9), max_size=5), min_size=1, max_size=4).filter(any))
def test_a_mean_is_that_of_all_values_and_not_of_means(parts: list[list[float]]) -> None:
    whole = {"x": mean()}
    for part in parts:
        whole = added(whole, {"x": mean(*part)})
    assert whole["x"].value == pytest.approx(np.mean([value for part in parts for value in part]))


def test_shares_add_up_and_a_mean_of_nothing_is_no_number() -> None:
    half = torch.tensor(0.5, dtype=torch.float64)
    two = Share(total=half, count=half * 6) + Share(total=half, count=half * 2)
    assert isinstance(two, Share)
    assert two.value == 1.0
    assert math.isnan(mean().value)
    assert numbers({"x": mean(), "y": mean(1.0, 2.0)}) == {"y": 1.5}


def test_ranks_are_added_up_in_one_message() -> None:
    mine = {"x": mean(1.0, 2.0), "loss": Share(total=torch.tensor(0.5).double(), count=torch.tensor(2.0).double())}
    sent = []

    def all_reduce(sums: torch.Tensor) -> None:
        sent.append(sums.clone())
        # The other rank has the same.
        sums.mul_(2)

    found = reduced(mine, all_reduce)
    assert len(sent) == 1
    assert (found["x"].value, float(found["x"].count)) == (1.5, 4.0)
    assert found["loss"].value == 1.0
    assert reduced({}, all_reduce) == {}


def test_what_is_shown_is_made_of_sums_over_the_whole_batch() -> None:
    random = torch.Generator().manual_seed(0)
    count = 40
    columns = {name: torch.randn(count, generator=random, dtype=torch.float64) for name in ("a", "v", "r", "s")}
    logprobs = -columns["s"].abs() - 1
    response = torch.arange(count) // 4
    config = LearnerConfig(learning_rate=1.0, objective=ObjectiveConfig(algorithm="ppo"))
    totals = loss_metrics(config)
    for first in (0, 4, 20):
        last = {0: 4, 4: 20, 20: 40}[first]
        part = slice(first, last)
        _, metrics = objective(
            ObjectiveInputs(
                logprobs=logprobs[part],
                sampler_logprobs=logprobs[part] + 0.1 * columns["a"][part],
                advantages=columns["a"][part],
                weights=torch.full((last - first,), 1 / count, dtype=torch.float64),
                response=response[part] - response[first],
                responses=int(response[last - 1] - response[first]) + 1,
                zero_variance=torch.zeros(last - first, dtype=torch.bool),
                values=columns["v"][part],
                returns=columns["r"][part],
            ),
            config,
        )
        totals = added(totals, metrics)
    found = numbers(totals)
    assert found["advantage_std"] == pytest.approx(float(columns["a"].std(correction=0)))
    residual = (columns["r"] - columns["v"]).var(correction=0)
    assert found["explained_variance"] == pytest.approx(float(1 - residual / columns["r"].var(correction=0)))
    ratio = (-0.1 * columns["a"]).exp()
    assert found["effective_sample_size"] == pytest.approx(float(ratio.mean() ** 2 / ratio.square().mean()))
    products = torch.stack([each.prod() for each in ratio.split(4)])
    whole = float(products.mean() ** 2 / products.square().mean())
    assert found["effective_sample_size_responses"] == pytest.approx(whole)
    assert not {"token_ratio", "response_ratio", "value_error"} & set(found)
    assert not any(name.endswith("_square") or set(name) & set("@=*") for name in found)
