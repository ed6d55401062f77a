"""Gradients of groups, against those that autograd gives of the same objective, and as short vectors."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from isocompute.learner import LearnerConfig
from isocompute.learner.noise import scale
from isocompute.learner.noise.scale import Sketch, halves


def rollouts() -> pl.DataFrame:
    """Two problems with four responses each, of which the second's have equal rewards."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "problem_id": problem,
            "sample": sample,
            "reward": reward,
            "finish_reason": "stop",
            "weights_version": 0,
            "prompt_ids": [3, 4, 5],
            "response_ids": (ids := rng.integers(3, 12, size=2 + sample).tolist()),
            "logprobs": [-1.0] * len(ids),
        }
        for problem, rewards in (("a", (1.0, 0.0, 0.0, 1.0)), ("b", (0.0, 0.0, 0.0, 0.0)))
        for sample, reward in enumerate(rewards)
    ]
    return pl.DataFrame(rows)


def test_a_group_has_the_gradient_of_its_objective(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(scale, "SKETCHED", 10**9)
    config = LearnerConfig(learning_rate=1.0, temperature=1.0)
    first, equal = scale.gradients(model, rollouts(), config, device="cpu")
    policy = AutoModelForCausalLM.from_pretrained(model).eval()
    group = rollouts().filter(pl.col("problem_id") == "a")
    rewards = group["reward"].to_numpy()
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    tokens = group["response_ids"].list.len().sum()
    loss = torch.zeros(())
    for row, advantage in zip(group.iter_rows(named=True), advantages, strict=True):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        scores = policy(ids).logits[0, 2:-1].log_softmax(-1)
        own = scores.gather(1, torch.tensor(row["response_ids"])[:, None]).sum()
        loss = loss + advantage * own / tokens
    loss.backward()
    expected = torch.cat([each.grad.flatten() for each in policy.parameters() if each.grad is not None]).numpy()
    np.testing.assert_allclose(first, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
    assert not equal.any()


def test_the_halves_of_a_problem_are_groups_of_their_own() -> None:
    split = halves(rollouts())
    assert split["problem_id"].unique().sort().to_list() == ["a/0", "a/1", "b/0", "b/1"]
    assert split.filter(pl.col("problem_id") == "a/1")["sample"].to_list() == [1, 3]


def test_products_of_sketches_are_those_of_the_vectors() -> None:
    rng = torch.Generator().manual_seed(0)
    one, other = torch.randn(300_000, generator=rng), torch.randn(300_000, generator=rng)
    sketch = Sketch(300_000, device="cpu")
    a, b = sketch.of([one[:1000], one[1000:]]), sketch.of([other[:1000], other[1000:]])
    assert len(a) == 2**16
    # Standard error of a product: the lengths' product over the root of the sketch's length.
    error = float(one.norm() * other.norm()) / 2**8
    assert abs(float(a @ b) - float(one @ other)) < 4 * error
    assert abs(float(a @ a) / float(one @ one) - 1) < 4 * 2**0.5 / 2**8
