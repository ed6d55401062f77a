"""Predicted memory next to that which an update allocates, in every layout and with every setting that changes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.batch import micro_batches, read
from isocompute.learner.batch import packed as pack
from isocompute.learner.batch import padded as pad
from isocompute.learner.config import (
    BatchConfig,
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    SyncConfig,
)
from isocompute.learner.cost.memory import GIB, Load, predict
from isocompute.learner.cost.shape import ModelShape, shape_of
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.cohorts import with_cohorts
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.updates.learner import Learner
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

PROMPT, RESPONSE, N, PROBLEMS = 12, 40, 8, 4
SMALL = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
MIDDLE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
LARGE = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8}


def saved(folder: Path, sizes: dict[str, int], *, vocabulary: int, key_heads: int | None = None) -> ModelShape:
    config = LlamaConfig(
        **sizes, vocab_size=vocabulary, num_key_value_heads=key_heads, max_position_embeddings=128,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    shape = shape_of(json.loads((folder / "config.json").read_text()))
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    return shape


def batch(config: LearnerConfig, *, vocabulary: int, lengths: Callable[[np.random.Generator], int]) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for problem in range(PROBLEMS):
        prompt = rng.integers(0, vocabulary, PROMPT).tolist()
        for sample in range(N):
            response = rng.integers(0, vocabulary, lengths(rng)).tolist()
            rows.append({
                "problem_id": f"p{problem}", "sample": sample, "prompt_ids": prompt, "response_ids": response,
                "logprobs": [-1.0] * len(response), "reward": float(sample % 2), "finish_reason": "stop",
                "weights_version": 0,
            })  # fmt: skip
    return prepare(with_cohorts(pl.DataFrame(rows), BatchConfig()), config)


def measured(learner: Learner, rollouts: pl.DataFrame, file: Path) -> float:
    """Bytes of the tensors at the peak of an update: those there before it, and those that torch allocated in it."""
    models = [learner.policy, *([learner._models.reference.policy] if learner._models.reference is not None else [])]
    held = sum(p.numel() * p.element_size() for model in models for p in model.parameters())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        learner.update(rollouts)
    profile.export_chrome_trace(str(file))
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    # The totals go on from one profile of a process to the next.
    before = events[0]["args"]["Total Allocated"] - events[0]["args"]["Bytes"]
    return float(held + max(event["args"]["Total Allocated"] for event in events) - before)


def ratio(
    folder: Path,
    sizes: dict[str, int],
    *,
    vocabulary: int = 512,
    key_heads: int | None = None,
    lengths: Callable[[np.random.Generator], int] = lambda rng: RESPONSE,
    kl: float = 0.0,
    entropy: float = 0.0,
    **compute: object,
) -> float:
    """Predicted over measured bytes of an update that is not the first."""
    shape = saved(folder, sizes, vocabulary=vocabulary, key_heads=key_heads)
    config = LearnerConfig(
        learning_rate=1e-3, kl=KLConfig(coefficient=kl), entropy=EntropyConfig(coefficient=entropy),
        compute=ComputeConfig(**compute), sync=SyncConfig(tolerance=1e6),
    )  # fmt: skip
    rollouts = batch(config, vocabulary=vocabulary, lengths=lengths)
    packed, each = config.compute.layout != "padded", rollouts["response_ids"].list.len()
    load = Load.of(
        prompt_tokens=PROMPT, response_tokens=round(each.mean()) if packed else each.max(), rollouts_per_problem=N,
        problems=PROBLEMS, micro_batch_tokens=config.compute.micro_batch_tokens, packed=packed,
    )  # fmt: skip
    learner = Learner(folder, config)
    # A first update makes the moments, so that they are there at the peak of the second.
    learner.update(rollouts)
    moments = sum(t.numel() * t.element_size() for t in learner._optimizer.state().values())
    second = rollouts.with_columns(weights_version=pl.lit(1))
    return predict(shape, config, load).peak / (measured(learner, second, folder / "trace.json") + moments)


@pytest.mark.parametrize("sizes", [SMALL, MIDDLE, LARGE], ids=["small", "middle", "large"])
def test_the_peak_of_an_update_is_predicted_within_a_fifth(sizes: dict[str, int], tmp_path: Path) -> None:
    assert ratio(tmp_path, sizes) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batch_tokens": 512},
        {"layout": "padded"},
        {"layout": "padded", "lengths": lambda rng: int(rng.integers(20, 61))},
        {"layout": "padded", "lengths": lambda rng: int(rng.integers(20, 61)), "micro_batch_tokens": 512},
        {"lengths": lambda rng: int(rng.integers(20, 61))},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "micro_batch_tokens": 512},
        {"key_heads": 1},
        {"kl": 0.01},
        {"vocabulary": 8192, "head_chunk_tokens": 256},
        {"vocabulary": 8192, "entropy": 0.01},
        {"vocabulary": 8192, "entropy": 0.01, "head_chunk_tokens": 256},
        {"vocabulary": 8192, "head_chunk_tokens": 256, "precision": "bfloat16", "float32_head": False},
        {"vocabulary": 8192, "head_chunk_tokens": 32, "precision": "bfloat16", "float32_head": False},
        {"precision": "bfloat16", "kl": 0.01},
        {"precision": "bfloat16", "gradient_checkpointing": True},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_every_setting_that_changes_memory_is_predicted(settings: dict[str, object], tmp_path: Path) -> None:
    assert ratio(tmp_path, MIDDLE, **settings) == pytest.approx(1, abs=0.2)  # type: ignore[arg-type]


SEVEN = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip


def test_seven_billion_parameters_take_sixteen_bytes_each_before_any_activation() -> None:
    shape = shape_of(SEVEN)
    assert shape.parameters == pytest.approx(7.6e9, rel=0.01)
    load = Load(positions=1, attended=1, sampled=1, passes=2)
    plan = predict(shape, LearnerConfig(learning_rate=1e-6), load)
    assert plan.weights + plan.moments + plan.gradients == 16 * shape.parameters
    assert plan.base == 0
    with_reference = predict(shape, LearnerConfig(learning_rate=1e-6, kl=KLConfig(coefficient=0.001)), load)
    assert with_reference.base == 4 * shape.parameters


BATCHES: dict[str, Any] = {
    "prompt": st.integers(1, 50), "response": st.integers(1, 50), "n": st.integers(1, 8), "problems": st.integers(1, 8),
    "tokens": st.integers(1, 500), "packed": st.booleans(),
}  # fmt: skip
"""Batches of responses of one length, and the tokens of a micro-batch."""


@given(**BATCHES)
def test_a_load_holds_no_more_than_its_micro_batch_may_and_misses_no_response(
    prompt: int, response: int, n: int, problems: int, tokens: int, packed: bool
) -> None:
    load = Load.of(
        prompt_tokens=prompt, response_tokens=response, rollouts_per_problem=n, problems=problems,
        micro_batch_tokens=tokens, packed=packed,
    )  # fmt: skip
    count = load.sampled // response
    assert load.positions <= max(tokens, prompt + response - 1)
    assert load.attended <= max(4 * tokens, prompt + response - 1)
    assert (load.passes - 1) * count < n * problems <= load.passes * count
    assert load.attended == count * (prompt + response - 1) >= load.positions


def test_a_load_of_packed_responses_is_that_of_the_example() -> None:
    load = Load.of(prompt_tokens=4, response_tokens=10, rollouts_per_problem=3, problems=2, micro_batch_tokens=1000)
    assert load == Load(positions=62, attended=78, sampled=60, passes=1)


def test_a_load_of_short_responses_to_a_long_prompt_ends_where_attention_sees_too_much() -> None:
    load = Load.of(prompt_tokens=700, response_tokens=8, rollouts_per_problem=128, problems=1, micro_batch_tokens=2048)
    assert load == Load(positions=700 + 11 * 7, attended=11 * 707, sampled=11 * 8, passes=12)


@given(**BATCHES)
def test_a_load_is_that_of_the_first_micro_batch(
    prompt: int, response: int, n: int, problems: int, tokens: int, packed: bool
) -> None:
    load = Load.of(
        prompt_tokens=prompt, response_tokens=response, rollouts_per_problem=n, problems=problems,
        micro_batch_tokens=tokens, packed=packed,
    )  # fmt: skip
    rows = problems * n
    table = pl.DataFrame({
        "problem_id": [f"p{i // n}" for i in range(rows)], "sample": list(range(rows)),
        "prompt_ids": [[i // n] * prompt for i in range(rows)], "response_ids": [[0] * response] * rows,
        "logprobs": [[0.0] * response] * rows,
    })  # fmt: skip
    responses = read(table, vocabulary=problems)
    first = next(micro_batches(responses, np.arange(rows), tokens=tokens, share_prompts=packed))
    inputs = (pack if packed else pad)(responses, first, "cpu", torch.float32)
    assert load.sampled == len(inputs.tokens)
    assert load.positions == inputs.input_ids.numel()


def test_a_plan_prints_parts_that_add_up() -> None:
    load = Load(positions=9215, attended=9215, sampled=8192, passes=64)
    plan = predict(shape_of(SEVEN), LearnerConfig(learning_rate=1e-6), load)
    *parts, total = [float(line[60:].removesuffix(" GiB")) for line in str(plan).splitlines()]
    assert sum(parts) == pytest.approx(total, abs=0.01 * len(parts))
    assert total == pytest.approx(plan.peak / GIB, abs=0.01)


def test_a_model_of_another_kind_is_refused() -> None:
    with pytest.raises(LearnerError, match="no intermediate_size"):
        shape_of({name: value for name, value in SEVEN.items() if name != "intermediate_size"})


def test_a_load_without_responses_is_refused() -> None:
    with pytest.raises(LearnerError, match="problems is 0"):
        Load.of(prompt_tokens=4, response_tokens=10, rollouts_per_problem=3, problems=0, micro_batch_tokens=1000)


MIXTURES = {
    # mistralai/Mixtral-8x7B-v0.1: each layer has eight experts, of which a token takes two.
    "mixtral": (
        MixtralConfig,
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
        46.7e9,
    ),
    # Qwen/Qwen3-30B-A3B: intermediate_size is that of layers without experts, of which it has none.
    "qwen3_moe": (
        Qwen3MoeConfig,
        {"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
         "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": []},
        30.5e9,
    ),
    "qwen3_moe, some layers without experts": (
        Qwen3MoeConfig,
        {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 64, "num_hidden_layers": 6,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "num_experts": 16,
         "num_experts_per_tok": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
        None,
    ),
    "qwen2_moe, with a shared expert": (
        Qwen2MoeConfig,
        {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "num_experts": 16,
         "num_experts_per_tok": 4, "shared_expert_intermediate_size": 128},
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_memory_counts_all_experts_of_a_mixture(name: str) -> None:
    kind, numbers, published = MIXTURES[name]
    config = kind(**numbers, tie_word_embeddings=False)
    with torch.device("meta"):
        actual = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    shape = shape_of(config.to_dict())
    # Norms of queries and keys, biases and a gate of the shared expert are not counted.
    assert shape.parameters == pytest.approx(actual, rel=2e-3)
    if published is not None:
        assert shape.parameters == pytest.approx(published, rel=2e-3)
        learner = LearnerConfig(learning_rate=1e-6, compute=ComputeConfig(precision="bfloat16"))
        load = Load.of(
            prompt_tokens=200, response_tokens=2000, rollouts_per_problem=8, problems=1, micro_batch_tokens=8192
        )
        # Weights, both moments and gradients in float32.
        assert predict(shape, learner, load).peak > 16 * published


def test_a_mixture_whose_experts_are_not_understood_is_not_predicted() -> None:
    config = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    with pytest.raises(LearnerError, match="num_experts_per_tok"):
        shape_of({**config, "vocab_size": 100, "n_routed_experts": 8})
