from pathlib import Path

import polars as pl
import pytest
import torch
from isocompute.learner.config import AdapterConfig, LearnerConfig
from isocompute.learner.cost.rate import Shape, forward_operations, matmul_rate, shape_of, training_operations
from isocompute.learner.policy.adapter import adapt
from isocompute.learner.updates.learner import Learner
from tiny_models import TWO_LAYERS
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM


def test_the_rate_is_measured_when_a_learner_is_loaded_and_not_in_an_update(
    model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    """Its factors are large on a GPU, which is fullest after an update's first step."""
    matmul_rate.cache_clear()
    learner = Learner(model, config)
    assert matmul_rate.cache_info().misses == 1
    report = learner.update(rollouts)
    assert matmul_rate.cache_info().misses == 1
    assert report.machine_rate == matmul_rate("cpu", torch.float32)


@pytest.mark.slow
def test_operations_beneath_an_adapter_are_those_that_torch_counts() -> None:
    """But for the gradients of the first layer's inputs, which nothing needs."""
    config = LlamaConfig(**{**TWO_LAYERS, "num_hidden_layers": 24}, attn_implementation="eager")
    policy = adapt(LlamaForCausalLM(config), AdapterConfig(rank=4))
    ids = torch.arange(32)[None] % config.vocab_size
    with FlopCounterMode(display=False) as counter:
        policy(input_ids=ids, use_cache=False).logits.sum().backward()
    shape, passed = shape_of(policy), {"tokens": 32, "predictions": 32, "keys": 32 * 32}
    assert shape is not None
    assert training_operations(shape, **passed) == pytest.approx(counter.get_total_flops(), rel=0.03)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        policy(input_ids=ids, use_cache=False)
    assert forward_operations(shape, **passed) == pytest.approx(counter.get_total_flops(), rel=0.03)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_the_embedding_is_counted_where_it_predicts(tied: bool) -> None:
    config = LlamaConfig(**TWO_LAYERS, head_dim=16, tie_word_embeddings=tied)
    # Of each layer: queries, keys, values and output of 32 × 16, and three of 32 × 64.
    body = 2 * (4 * 32 * 16 + 3 * 32 * 64)
    assert shape_of(LlamaForCausalLM(config)) == Shape(body=body, head=12 * 32, layers=2, width=16)
