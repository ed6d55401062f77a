"""Traced memory next to that which an update allocates, in every layout and with every setting that changes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from isocompute.learner.config import (
    AdapterConfig,
    BatchConfig,
    ComputeConfig,
    CriticConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    SyncConfig,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.memory.update import Load, parameters_of, update_memory
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.updates.learner import Learner
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

pytestmark = [pytest.mark.slow("dozens of models, trained"), pytest.mark.xdist_group("traces")]

PROMPT, RESPONSE, N, PROBLEMS = 12, 40, 8, 4
SMALL = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
MIDDLE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
LARGE = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8}
Lengths = Callable[[np.random.Generator], int]


def saved(folder: Path, config: PretrainedConfig) -> dict[str, Any]:
    """Save a model of random weights; return its ``config.json``."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def batch(config: LearnerConfig, *, vocabulary: int, lengths: Lengths) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for problem in range(PROBLEMS):
        prompt = rng.integers(0, vocabulary, PROMPT).tolist()
        for sample in range(N):
            response = rng.integers(0, vocabulary, lengths(rng)).tolist()
            rows.append(
                {
                    "problem_id": f"p{problem}",
                    "sample": sample,
                    "prompt_ids": prompt,
                    "response_ids": response,
                    "logprobs": [-1.0] * len(response),
                    "reward": float(sample % 2),
                    "finish_reason": "stop",
                    "weights_version": 0,
                }
            )
    return with_cohorts(pl.DataFrame(rows), BatchConfig())


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


def ratio(folder: Path, model: PretrainedConfig, config: LearnerConfig, *, lengths: Lengths | None = None) -> float:
    """Traced over measured bytes of an update that is not the first."""
    described = saved(folder, model)
    rollouts = batch(config, vocabulary=model.vocab_size, lengths=lengths or (lambda rng: RESPONSE))
    learner = Learner(folder, config)

    def prepared(version: int) -> pl.DataFrame:
        given = rollouts.with_columns(weights_version=pl.lit(version))
        return prepare(learner.measure(given) if config.measures_first else given, config)

    each = rollouts["response_ids"].list.len()
    load = Load(
        prompt_tokens=PROMPT,
        rollouts_per_problem=N,
        problems=PROBLEMS,
        response_tokens=round(each.mean()) if learner._forward.packs else each.max(),
    )
    # A first update makes the moments, so that they are there at the peak of the second.
    learner.update(prepared(0))
    traced = update_memory(described, config, load)
    return traced.peak / measured(learner, prepared(1), folder / "trace.json")


def settings(**given: Any) -> LearnerConfig:
    names = ("objective", "kl", "entropy", "critic", "adapter")
    parts = {name: given.pop(name) for name in names if name in given}
    return LearnerConfig(learning_rate=1e-3, sync=SyncConfig(tolerance=1e6), compute=ComputeConfig(**given), **parts)


def llama(sizes: dict[str, int], *, vocabulary: int = 512, **others: Any) -> LlamaConfig:
    return LlamaConfig(
        **sizes, vocab_size=vocabulary, max_position_embeddings=128, **{"tie_word_embeddings": False, **others}
    )


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_the_peak_of_an_update_is_traced_within_a_twentieth(sizes: dict[str, int], tmp_path: Path) -> None:
    assert ratio(tmp_path, llama(sizes), settings()) == pytest.approx(1, abs=0.05)


def some(rng: np.random.Generator) -> int:
    return int(rng.integers(20, 61))


KL, ENTROPY = KLConfig(coefficient=0.01), EntropyConfig(coefficient=0.01)


@pytest.mark.parametrize(
    ("given", "model", "lengths"),
    [
        ({"layout": "padded"}, {}, some),
        ({"layout": "padded", "micro_batch_tokens": 512}, {}, some),
        ({}, {}, some),
        ({"gradient_checkpointing": True, "micro_batch_tokens": 512}, {}, None),
        ({}, {"num_key_value_heads": 1}, None),
        ({}, {"tie_word_embeddings": True, "vocabulary": 8192}, None),
        ({"kl": KL}, {}, None),
        ({"kl": KLConfig(coefficient=0.01, place="reward")}, {}, None),
        ({"objective": ObjectiveConfig(algorithm="ppo"), "critic": CriticConfig()}, {}, None),
        ({"head_chunk_tokens": 256}, {"vocabulary": 8192}, None),
        ({"entropy": ENTROPY, "head_chunk_tokens": 256}, {"vocabulary": 8192}, None),
        ({"head_chunk_tokens": 32, "precision": "bfloat16", "float32_head": False}, {"vocabulary": 8192}, None),
        ({"precision": "bfloat16", "kl": KL}, {}, None),
        ({"precision": "bfloat16", "gradient_checkpointing": True}, {}, None),
        ({"adapter": AdapterConfig(rank=8), "kl": KL, "gradient_checkpointing": True}, {}, None),
        ({"adapter": AdapterConfig(rank=8), "kl": KL, "precision": "bfloat16", "float32_head": False}, {}, None),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_every_setting_that_changes_memory_is_traced(
    given: dict[str, Any], model: dict[str, Any], lengths: Lengths | None, tmp_path: Path
) -> None:
    # Padded responses of several lengths are traced as of one, which shows in the smallest model.
    sizes = MIDDLE if "layout" in given else SMALL
    found = ratio(tmp_path, llama(sizes, **model), settings(**given), lengths=lengths)
    assert found == pytest.approx(1, abs=0.05)


def load(**given: int) -> Load:
    return Load(**{"prompt_tokens": 12, "response_tokens": 40, "rollouts_per_problem": 8, "problems": 4, **given})


def test_ranks_share_weights_moments_and_gradients_and_not_activations() -> None:
    """Where activations are few, the peak falls as the number of ranks grows."""
    deep = llama({**LARGE, "num_hidden_layers": 6}).to_dict()
    few = settings(micro_batch_tokens=64, gradient_checkpointing=True)
    one, four = (update_memory(deep, few, load(), ranks=n) for n in (1, 4))
    for held in ("weights", "moments", "gradients"):
        assert getattr(four, held) == pytest.approx(getattr(one, held) / 4, rel=0.01), held
    assert one.gradients == one.weights > 0
    assert one.peak / 4 < four.peak < one.peak / 2
    assert (one.ranks, four.ranks) == (1, 4)
    assert one.parameters == four.parameters == parameters_of(deep)


def test_ranks_that_share_nothing_are_traced_as_one() -> None:
    alone, whole = (update_memory(llama(SMALL).to_dict(), settings(sharding="none"), load(), ranks=n) for n in (1, 4))
    assert whole == alone
    assert whole.ranks == 1


def test_a_head_of_its_own_is_not_gathered_beside_the_embedding() -> None:
    """With the gradient of one and the buffer that it is summed in there are two such tables at the peak, not five."""
    vocabulary = 32_768
    wide = llama(LARGE, vocabulary=vocabulary)
    few = settings(micro_batch_tokens=64, head_chunk_tokens=16, gradient_checkpointing=True)
    shared = update_memory(wide.to_dict(), few, load(), ranks=4)
    table = 4 * vocabulary * wide.hidden_size
    assert 2 * table < shared.temporary < 3 * table


def test_beneath_an_adapter_a_model_has_no_gradient_and_no_moments_and_may_be_in_bfloat16() -> None:
    """On one rank and on two."""
    adapter = AdapterConfig(rank=4)
    for ranks in (1, 2):
        whole = update_memory(llama(MIDDLE).to_dict(), settings(kl=KL), load(), ranks=ranks)
        single, lower = (
            update_memory(llama(MIDDLE).to_dict(), settings(kl=KL, adapter=adapter, **given), load(), ranks=ranks)
            for given in ({}, {"precision": "bfloat16"})
        )
        learnt = single.moments / 8
        assert 0 < single.moments == lower.moments < whole.moments / 20
        assert max(single.gradients, lower.gradients) <= 4 * learnt
        assert single.reference == lower.reference == 0 < whole.reference
        assert single.weights == pytest.approx(whole.weights + 4 * learnt, rel=0.01)
        assert lower.weights == pytest.approx(whole.weights / 2 + 4 * learnt, rel=0.01)
        assert lower.peak < single.peak < whole.peak


def test_a_process_that_has_ranks_of_its_own_traces_in_another_one(tmp_path: Path) -> None:
    alone = update_memory(llama(SMALL).to_dict(), settings(), load(), ranks=2)
    begun = not dist.is_initialized()
    if begun:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:
        assert update_memory(llama(SMALL).to_dict(), settings(), load(), ranks=2) == alone
        assert dist.get_world_size() == 1
    finally:
        if begun:
            dist.destroy_process_group()


def test_a_model_of_billions_of_parameters_is_traced_without_its_memory() -> None:
    wide = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32}
    traced = update_memory(llama(wide, vocabulary=128_000).to_dict(), settings(), load(response_tokens=4096))
    assert traced.parameters == pytest.approx(1.5e9, rel=0.05)
    # fp32 weights and gradients, and two moments.
    assert traced.weights + traced.moments + traced.gradients == pytest.approx(16 * traced.parameters, rel=1e-6)
    assert "GiB" in str(traced)


def test_what_is_no_load_or_no_language_model_is_refused() -> None:
    with pytest.raises(LearnerError, match="problems is 0"):
        load(problems=0)
    for config in ({"model_type": "no_such_model"}, {"model_type": "vit"}, {}):
        with pytest.raises(LearnerError, match="causal language model"):
            update_memory(config, settings(), load())
