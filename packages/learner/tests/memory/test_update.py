"""Traced memory next to that which an update allocates, in every layout and with every setting that changes it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import (
    AdapterConfig,
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    SyncConfig,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.memory.update import Load, UpdateMemory, parameters_of, update_memory
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.updates.learner import Learner
from tiny_models import unsampled
from transformers import AutoModelForCausalLM, LlamaConfig

pytestmark = [pytest.mark.slow("models, traced and trained"), pytest.mark.xdist_group("traces")]

PROMPT, RESPONSE, N, PROBLEMS = 12, 40, 8, 4
SMALL = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
MIDDLE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
KL, ADAPTER = KLConfig(coefficient=0.01), AdapterConfig(rank=8)
FEW = {"micro_batch_tokens": 64, "gradient_checkpointing": True}


def measured(learner: Learner, rollouts: pl.DataFrame, file: Path) -> float:
    """Bytes of the tensors at the peak of an update: those there before it, and those that torch allocated in it."""
    models = {learner.policy, *([learner._models.reference.policy] if learner._models.reference is not None else [])}
    models |= {learner.critic} if learner.critic is not None else set()
    held = sum(p.numel() * p.element_size() for model in models for p in model.parameters())
    held += sum(t.numel() * t.element_size() for t in learner._optimizer.state().values())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        learner.update(rollouts)
    profile.export_chrome_trace(str(file))
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    # The totals go on from one profile of a process to the next.
    before = events[0]["args"]["Total Allocated"] - events[0]["args"]["Bytes"]
    return float(held + max(event["args"]["Total Allocated"] for event in events) - before)


def settings(**given: Any) -> LearnerConfig:
    names = ("objective", "kl", "entropy", "adapter")
    parts = {name: given.pop(name) for name in names if name in given}
    return LearnerConfig(learning_rate=1e-3, sync=SyncConfig(tolerance=1e6), compute=ComputeConfig(**given), **parts)


def llama(sizes: dict[str, int], *, vocabulary: int = 512, **others: Any) -> LlamaConfig:
    return LlamaConfig(
        **sizes, vocab_size=vocabulary, max_position_embeddings=128, **{"tie_word_embeddings": False, **others}
    )


def load(**given: int) -> Load:
    sizes = {"prompt_tokens": PROMPT, "response_tokens": RESPONSE, "rollouts_per_problem": N, "problems": PROBLEMS}
    return Load(**{**sizes, **given})


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ({"layout": "padded", "micro_batch_tokens": 512}, {}),
        ({"gradient_checkpointing": True, "micro_batch_tokens": 512, "kl": KL}, {"num_key_value_heads": 1}),
        ({"objective": ObjectiveConfig(algorithm="ppo")}, {}),
        (
            {"entropy": EntropyConfig(coefficient=0.01), "kl": KLConfig(coefficient=0.01, place="reward")},
            {"tie_word_embeddings": True, "vocabulary": 4096},
        ),
        ({"head_chunk_tokens": 32, "precision": "bfloat16", "float32_head": False, "kl": KL}, {"vocabulary": 4096}),
        ({"adapter": ADAPTER, "kl": KL, "precision": "bfloat16", "gradient_checkpointing": True}, {}),
    ],
    ids=lambda given: "-".join(given),
)
def test_the_peak_of_an_update_is_traced_within_a_twentieth(
    given: dict[str, Any], model: dict[str, Any], tmp_path: Path
) -> None:
    """Of an update that is not the first; packed responses may have any lengths, and padded ones are as the longest."""
    config, shape = settings(**given), llama(SMALL, **model)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path)
    shortest = RESPONSE if "layout" in given else RESPONSE // 2
    sizes = {"problems": PROBLEMS, "samples": N, "prompt": PROMPT, "lengths": (shortest, 2 * RESPONSE - shortest)}
    rollouts = unsampled(0, **sizes, vocabulary=shape.vocab_size)
    learner = Learner(tmp_path, config)

    def prepared(version: int) -> pl.DataFrame:
        rows = rollouts.with_columns(weights_version=pl.lit(version))
        return prepare(learner.measure(rows) if config.measures_first else rows, config)

    # A first update makes the moments, so that they are there at the peak of the second.
    learner.update(prepared(0))
    mean = round(rollouts["response_ids"].list.len().mean())
    traced = update_memory(json.loads((tmp_path / "config.json").read_text()), config, load(response_tokens=mean))
    assert traced.peak / measured(learner, prepared(1), tmp_path / "trace.json") == pytest.approx(1, abs=0.05)


@cache
def traced(ranks: int, *, adapter: bool = False, **given: Any) -> UpdateMemory:
    """Of one model, so that each trace is taken once."""
    parts = {"kl": KL, **({"adapter": AdapterConfig(rank=4)} if adapter else {})}
    return update_memory(llama(MIDDLE).to_dict(), settings(**parts, **FEW, **given), load(), ranks=ranks)


def test_ranks_share_weights_moments_and_gradients_and_not_activations() -> None:
    """Where activations are few, the peak falls as the number of ranks grows."""
    one, two = traced(1), traced(2)
    for held in ("weights", "reference", "moments", "gradients"):
        assert getattr(two, held) == pytest.approx(getattr(one, held) / 2, rel=0.01), held
    assert one.gradients == one.weights > 0
    assert one.peak / 2 < two.peak < one.peak
    assert (one.ranks, two.ranks) == (1, 2)
    assert one.parameters == two.parameters == parameters_of(llama(MIDDLE).to_dict())
    assert traced(2, sharding="none") == one


def test_beneath_an_adapter_a_model_has_no_gradient_and_no_moments_and_may_be_in_bfloat16() -> None:
    whole, single, lower = traced(2), traced(2, adapter=True), traced(2, adapter=True, precision="bfloat16")
    learnt = single.moments / 8
    assert 0 < single.moments == lower.moments < whole.moments / 20
    assert max(single.gradients, lower.gradients) <= 4 * learnt
    assert single.reference == lower.reference == 0 < whole.reference
    assert single.weights == pytest.approx(whole.weights + 4 * learnt, rel=0.01)
    assert lower.weights == pytest.approx(whole.weights / 2 + 4 * learnt, rel=0.01)
    assert lower.peak < single.peak < whole.peak


def test_a_model_of_billions_of_parameters_is_traced_without_its_memory() -> None:
    wide = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32}
    found = update_memory(llama(wide, vocabulary=128_000).to_dict(), settings(), load(response_tokens=4096))
    assert found.parameters == pytest.approx(1.5e9, rel=0.05)
    # fp32 weights and gradients, and two moments.
    assert found.weights + found.moments + found.gradients == pytest.approx(16 * found.parameters, rel=1e-6)


def test_a_head_of_its_own_is_not_gathered_beside_the_embedding() -> None:
    """With the gradient of one and the buffer that it is summed in there are two such tables at the peak, not five."""
    wide = llama(MIDDLE, vocabulary=32_768)
    shared = update_memory(wide.to_dict(), settings(head_chunk_tokens=8, **FEW), load(), ranks=2)
    table = 4 * wide.vocab_size * wide.hidden_size
    assert 2 * table < shared.temporary < 3 * table


def test_what_is_no_language_model_is_refused() -> None:
    for config in ({"model_type": "no_such_model"}, {"model_type": "vit"}):
        with pytest.raises(LearnerError, match="causal language model"):
            update_memory(config, settings(), load())
