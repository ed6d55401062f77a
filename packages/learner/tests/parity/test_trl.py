"""TRL's trainer, given the same log-probabilities and rewards, has our advantages, weights, losses and gradients.

A real ``GRPOTrainer`` computes them in float64; only what would generate, score or run the model is replaced by the
numbers of the batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import EntropyConfig, ImportanceConfig, KLConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.objective.advantages import response_advantages
from isocompute.learner.records.steps import numbers
from tiny_models import tiny_config, tiny_model

SEEDS = st.integers(0, 2**32 - 1)
AGREED = {"rtol": 1e-6, "atol": 1e-6}
LONGEST = 9
EPSILON = 1e-4
"""What TRL adds to a standard deviation."""

examples = settings(max_examples=15)

CLIP = {"epsilon": 0.15, "epsilon_high": 0.25}
OF_CLIP = {"surrogate": "clip", "clip_low": 0.15, "clip_high": 0.25}
SEQUENCE = {"epsilon": 0.05, "epsilon_high": 0.06, "importance_sampling_level": "sequence"}
OF_SEQUENCE = {"surrogate": "gspo", "clip_low": 0.05, "clip_high": 0.06}
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": (CLIP | {"loss_type": "grpo"}, OF_CLIP | {"aggregation": "sequence"}),
    "bnpo": (CLIP | {"loss_type": "bnpo"}, OF_CLIP | {"aggregation": "token"}),
    "dapo": (CLIP | {"loss_type": "dapo"}, OF_CLIP | {"aggregation": "token"}),
    "dr_grpo": (CLIP | {"loss_type": "dr_grpo"}, OF_CLIP | {"aggregation": "constant", "constant_length": LONGEST}),
    # TRL's bound is the largest ratio, and ours how far above 1 that is.
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.25},
        {"algorithm": "cispo", "clip_high": 0.25, "aggregation": "token"},
    ),
    "gspo": (SEQUENCE | {"loss_type": "grpo"}, OF_SEQUENCE | {"aggregation": "sequence"}),
    "gspo by token": (SEQUENCE | {"loss_type": "dapo"}, OF_SEQUENCE | {"aggregation": "token"}),
}

# TRL's only estimator is k3, here without the importance weight of π/π_old that it gives it otherwise.
WITH_KL = {"beta": 0.3, "use_bias_correction_kl": False}, {"kl": KLConfig(coefficient=0.3)}

# TRL's bonus is a mean over tokens whatever the aggregation: equal where ours is one, too.
WITH_ENTROPY = {"entropy_coef": 0.2}, {"entropy": EntropyConfig(coefficient=0.2)}


def truncated(level: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Importance weights; of GSPO per response only, as TRL spreads a response's gradient evenly over its tokens."""
    theirs = {"vllm_importance_sampling_mode": f"{level}_truncate", "vllm_importance_sampling_clip_max": 1.2}
    return theirs, {"importance": ImportanceConfig(level=level, cap=1.2)}


CASES = [
    *((name, ({}, {})) for name in LOSSES),
    *((name, WITH_KL) for name in ("grpo", "dapo", "dr_grpo")),
    ("dapo", WITH_ENTROPY),
    *((name, truncated(level)) for name in ("grpo", "cispo") for level in ("token", "sequence")),
    ("gspo", truncated("sequence")),
]


@pytest.fixture(scope="session")
def trainer(needed: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """TRL's trainer with some settings, each made once, for three groups of four."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
            patch.setenv(name, value)
        trl, tokenizers, transformers = needed("trl"), needed("tokenizers"), needed("transformers")
        words = {word: place for place, word in enumerate(["<pad>", "<eos>", "<unk>", "1"])}
        plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
        )
        folder = tmp_path_factory.mktemp("trl")
        tiny_model(tiny_config("qwen2", vocab_size=4, num_hidden_layers=1)).save_pretrained(folder)
        made: dict[str, Any] = {}

        def of(**chosen: Any) -> Any:
            key = repr(sorted(chosen.items()))
            if key not in made:
                made[key] = a_trainer(trl, tokenizer, folder, needed("datasets"), chosen)
            return made[key]

        yield of


def a_trainer(trl: Any, tokenizer: Any, folder: Path, datasets: Any, chosen: dict[str, Any]) -> Any:
    config = trl.GRPOConfig(
        output_dir=str(folder / "out"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=12,
        num_generations=4,
        max_completion_length=LONGEST,
        **{"beta": 0.0, "num_iterations": 2} | chosen,
    )
    trainer = trl.GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda **_: [0.0],
        args=config,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["1"] * 12}),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def of_trl(trainer: Any, rows: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Any, Any]:
    """What TRL makes of a batch: its scored rollouts, its loss, and the gradient of the log-probabilities."""
    wide = int(rows.mask.sum(0).nonzero().max()) + 1
    lengths = [int(row.nonzero().max()) + 1 for row in rows.mask]
    leaf = rows.logprobs[:, :wide].clone().requires_grad_()

    def logprobs(model: Any, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        if model is trainer.ref_model:
            return rows.reference[:, :wide], None, None
        if torch.is_grad_enabled():
            return leaf, rows.entropy[:, :wide] * -leaf, None
        return rows.old[:, :wide], None, None

    def generated(prompts: list[str]) -> tuple[Any, ...]:
        ids = [[3] * length for length in lengths]
        marks = [row[:length].long().tolist() for row, length in zip(rows.mask, lengths, strict=True)]
        sampler = [row[:length].tolist() for row, length in zip(rows.sampler, lengths, strict=True)]
        return [[3]] * 12, ids, marks, [""] * 12, sampler, {}, None, [None] * 12

    monkeypatch.setattr(trainer, "_generate", generated)
    monkeypatch.setattr(trainer, "_calculate_rewards", lambda *_, **__: rows.rewards[:, None])
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", logprobs)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        scored = trainer._generate_and_score_completions([{"prompt": "1"}] * 12)
        loss = trainer._compute_loss(trainer.model, scored)
        loss.backward()
    finally:
        torch.set_default_dtype(before)
    return scored, loss.detach(), leaf.grad


def compare(trainer: Any, rows: Any, config: LearnerConfig) -> Any:
    """Compare loss and gradient, with advantages that were found equal; returns our metrics."""
    advantages = response_advantages(rows.rewards.numpy(), rows.groups, epsilon=EPSILON)
    rows = replace(rows, advantages=torch.from_numpy(advantages))
    with pytest.MonkeyPatch.context() as patch:
        scored, expected, gradient = of_trl(trainer, rows, patch)
    torch.testing.assert_close(rows.advantages, scored["advantages"], **AGREED)
    loss, ours, metrics = rows.learn(config)
    torch.testing.assert_close(loss, expected, **AGREED)
    torch.testing.assert_close(ours[:, : gradient.shape[1]], gradient, **AGREED)
    return numbers(metrics)


@pytest.mark.parametrize(("name", "more"), CASES)
@given(seed=SEEDS)
@examples
def test_losses(trainer: Any, batch: Any, name: str, more: tuple[dict[str, Any], dict[str, Any]], seed: int) -> None:
    theirs, objective = LOSSES[name]
    chosen = trainer(**theirs, **more[0])
    # What makes TRL correct for the sampler; vLLM itself is not asked for anything here.
    chosen.use_vllm = "importance" in more[1]
    parts = {"importance": ImportanceConfig(level="none"), **more[1]}
    config = LearnerConfig(learning_rate=1.0, objective=ObjectiveConfig(**objective), **parts)
    found = compare(chosen, batch(seed), config)
    logged = {name: values[-1] for name, values in chosen._metrics["train"].items()}
    if name in ("grpo", "bnpo", "dapo", "dr_grpo"):
        for side in ("low", "high"):
            assert found[f"clip_fraction_{side}"] == pytest.approx(logged[f"clip_ratio/{side}_mean"], abs=1e-6)
    for part in {"kl", "entropy"} & parts.keys():
        assert found[part] == pytest.approx(logged[part], rel=1e-6)


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@given(seed=SEEDS)
@examples
def test_advantages(trainer: Any, batch: Any, scale: str, seed: int) -> None:
    """The batch's scale is there that of the rewards, and here that of the advantages: its parts agree."""
    rows = batch(seed)
    with pytest.MonkeyPatch.context() as patch:
        scored, _, _ = of_trl(trainer(loss_type="grpo", scale_rewards=scale), rows, patch)
    rewards = rows.rewards.numpy()
    if scale == "batch":
        found = response_advantages(rewards, rows.groups, scale="none") / (rewards.std(ddof=1) + EPSILON)
    else:
        found = response_advantages(rewards, rows.groups, scale=scale, epsilon=EPSILON)
    assert found == pytest.approx(scored["advantages"].numpy(), abs=1e-6)
