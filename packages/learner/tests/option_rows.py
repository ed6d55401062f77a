"""For each option a case in which it acts, with everything that changes, and one in which it must change nothing."""

from dataclasses import dataclass
from typing import Any

import torch
from isocompute.learner.config import AdapterConfig, LearnerConfig
from observed import given


@dataclass(frozen=True, kw_only=True)
class Case:
    """An option set to another value.

    Attributes:
        base: The other settings.
        value: The other value.
        changes: Everything that it changes, by the names of ``observed``.
        kind: The batch.
        start: ``base`` or ``moved``: where the policy is.
        rounding: Whether what is the same may differ by rounding.
        most: Largest relative change of what changes.
        dtype: Type of the weights.
    """

    base: LearnerConfig
    value: Any
    changes: frozenset[str]
    kind: str = "mixed"
    start: str = "moved"
    rounding: bool = False
    most: float = float("inf")
    dtype: torch.dtype = torch.float64


def acts(base: LearnerConfig, value: Any, *changes: str, **where: Any) -> Case:
    return Case(base=base, value=value, changes=frozenset(changes), **where)


def idle(base: LearnerConfig, value: Any, **where: Any) -> Case:
    return Case(base=base, value=value, changes=frozenset(), **where)


ALL_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GRADIENT = ("policy", "gradient_norm")
LOSS = ("loss", "policy_loss")
LEARNT = (*GRADIENT, *LOSS)
ADVANTAGE = ("advantages", "advantage", "advantage_std", *LEARNT)
LOW, HIGH = "clip_fraction_low", "clip_fraction_high"
CORRECTED = (*LEARNT, "importance_weight")
SYNC = ("sync_error", "sync_mean", "sync_k3", "sync_quantile")
RATIOS = ("mismatch_kl", "mismatch_k3", "effective_sample_size", "effective_sample_size_responses")
TOKENS = ("advantage", "advantage_std", "importance_weight", *RATIOS)
"""Means over the tokens that pass through the model: which those are changes them."""
STEPS = ("policy step", "critic step")
CRITIC = ("critic", "loss", "value_loss")
OF_A_CRITIC = (*CRITIC, "value", "return", "explained_variance", "critic step")
RETURNS = ("advantages", *LEARNT, *CRITIC, "return", "explained_variance")
"""Advantages of tokens are whitened: what changes them leaves their mean and their deviation as they are."""
ROUNDED, SINGLE = {"rounding": True}, {"dtype": torch.float32, "most": 0.1}

GRPO = given(LearnerConfig(learning_rate=5e-4), {"sync.tolerance": 1e9, "optimizer.warmup_steps": 0})
WHOLE = given(GRPO, {"entropy.measured": True})
UNSCALED = given(WHOLE, {"objective.scale": "none"})
CONSTANT = given(GRPO, {"objective.aggregation": "constant", "objective.constant_length": 9})
TERMS = given(GRPO, {"kl.coefficient": 0.1, "entropy.coefficient": 0.02})
MASKED = given(GRPO, {"entropy.coefficient": 0.02, "entropy.mask_zero_variance": True})
AGAIN = given(GRPO, {"objective.epochs": 2, "objective.constant_length": 9})
HALF = given(GRPO, {"batch.trained_rollouts": 2})
PPO = given(GRPO, {"objective.algorithm": "ppo"})
PPO_AGAIN = given(PPO, {"objective.epochs": 2})
THROUGH = given(PPO, {"critic.through_policy": True})
AT_THE_END = given(PPO, {"optimizer.decay": "linear", "optimizer.decay_steps": 1})
COSINE = given(PPO, {"optimizer.decay": "cosine", "optimizer.decay_steps": 10})
WARMING = given(COSINE, {"optimizer.warmup_steps": 4})
LOWER = given(GRPO, {"compute.precision": "bfloat16"})

ADAPTED = given(GRPO, {"adapter": AdapterConfig(rank=4)})
STILL = given(ADAPTED, {"optimizer.decay": "linear", "optimizer.decay_steps": 1})

OBJECTIVE: dict[str, tuple[Case, ...]] = {
    "objective.algorithm": (
        acts(AGAIN, "dapo", *LEARNT, HIGH),
        idle(GRPO, "dapo"),
        acts(AGAIN, "dr_grpo", *ADVANTAGE, "loss_weight", "ratio"),
        acts(
            AGAIN,
            "ppo",
            *ADVANTAGE,
            *RETURNS,
            *TOKENS,
            LOW,
            HIGH,
            "ratio",
            "value",
            "critic step",
            "skipped_share",
            "passes",
            "logits",
            # Only responses that are learnt from are measured, and compared with the sampler.
            "sync_mean",
            "sync_k3",
        ),
        acts(AGAIN, "cispo", *ADVANTAGE, LOW, HIGH, "loss_weight", "ratio"),
        acts(AGAIN, "gspo", *LEARNT, LOW, HIGH, "loss_weight", "ratio"),
    ),
    "objective.surrogate": (
        acts(GRPO, "policy_gradient", *LOSS),
        acts(AGAIN, "gspo", *LEARNT, LOW, HIGH, "ratio"),
        idle(AGAIN, "clip"),
    ),
    "objective.clip_low": (acts(AGAIN, 0.05, *LEARNT, LOW), idle(GRPO, 0.05)),
    "objective.clip_high": (acts(AGAIN, 0.05, *LEARNT, HIGH), idle(GRPO, 0.05)),
    "objective.baseline": (acts(UNSCALED, "batch", *ADVANTAGE), idle(UNSCALED, "batch", kind="one group")),
    "objective.scale": (
        acts(GRPO, "none", *ADVANTAGE),
        acts(GRPO, "batch", *ADVANTAGE),
        idle(GRPO, "batch", kind="one group"),
    ),
    "objective.std": (
        acts(GRPO, "population", *ADVANTAGE),
        acts(PPO, "population", "advantages", "advantage_std", *LEARNT, **ROUNDED),
        idle(UNSCALED, "population"),
    ),
    "objective.aggregation": (
        acts(GRPO, "sequence", *LEARNT, "loss_weight"),
        acts(GRPO, "prompt", *LEARNT, "loss_weight"),
        idle(GRPO, "sequence", kind="one length"),
    ),
    "objective.constant_length": (acts(CONSTANT, 18, *LEARNT, "loss_weight"), idle(GRPO, 18)),
    "objective.updates_per_batch": (
        acts(WHOLE, 2, *LEARNT, *SYNC, "ratio", "entropy", "loss_weight", "optimizer_steps", "passes", **ROUNDED),
        # A group is not split; that it is measured first costs a pass.
        acts(GRPO, 2, "passes", kind="one group", **ROUNDED),
    ),
    "objective.epochs": (
        acts(
            WHOLE, 2, *LEARNT, LOW, HIGH, "ratio", "entropy", "optimizer_steps", "trained_tokens", "passes", **ROUNDED
        ),
        acts(GRPO, 2, "trained_tokens", "passes", kind="equal"),
    ),
}
TERMS_OF_THE_LOSS: dict[str, tuple[Case, ...]] = {
    "kl.coefficient": (
        acts(TERMS, 0.2, *GRADIENT, "loss"),
        acts(given(TERMS, {"kl.coefficient": 0.0}), 0.1, *GRADIENT, "loss", "kl"),
        idle(TERMS, 0.2, start="base"),
    ),
    "kl.estimator": (
        acts(TERMS, "k1", *GRADIENT, "loss", "kl"),
        acts(TERMS, "k2", *GRADIENT, "loss", "kl"),
        idle(TERMS, "k2", start="base"),
    ),
    "kl.place": (acts(TERMS, "reward", *ADVANTAGE, "passes", **ROUNDED), idle(GRPO, "reward")),
    "kl.mask_zero_variance": (acts(TERMS, True, *GRADIENT, "loss"), idle(TERMS, True, kind="unequal")),
    "entropy.coefficient": (acts(TERMS, 0.04, *GRADIENT, "loss"), idle(MASKED, 0.04, kind="equal")),
    "entropy.mask_zero_variance": (acts(TERMS, True, *GRADIENT, "loss"), idle(TERMS, True, kind="unequal")),
    "entropy.measured": (
        acts(GRPO, True, "entropy", kind="unequal"),
        # Nothing is skipped, so that the entropy is that of all tokens.
        acts(GRPO, True, *TOKENS, "entropy", "skipped_share", "sync_mean", "sync_k3", "passes", "logits", **ROUNDED),
        idle(TERMS, True),
    ),
    "importance.level": (
        acts(GRPO, "sequence", *CORRECTED),
        acts(GRPO, "none", *CORRECTED),
        idle(GRPO, "none", kind="agreeing", **ROUNDED),
        idle(GRPO, "sequence", kind="agreeing", **ROUNDED),
    ),
    "importance.cap": (acts(GRPO, 1.01, *CORRECTED), idle(GRPO, 1.01, kind="agreeing")),
    "critic.coefficient": (acts(THROUGH, 1.0, *GRADIENT), idle(PPO, 1.0)),
    "critic.through_policy": (
        acts(PPO, True, *GRADIENT),
        idle(given(PPO, {"critic.coefficient": 0.0}), True),
        idle(GRPO, True),
    ),
    "critic.learning_rate": (acts(PPO, 2e-3, "critic step"), idle(GRPO, 2e-3)),
    "critic.discount": (acts(PPO, 0.5, *RETURNS, **ROUNDED), idle(PPO, 0.5, kind="one token")),
    "critic.gae_lambda": (acts(PPO, 0.5, *RETURNS, **ROUNDED), idle(PPO, 0.5, kind="one token")),
    "critic.clip": (acts(PPO_AGAIN, 1e-3, *CRITIC), idle(PPO, 1e-3)),
}
BATCHES_AND_STEPS: dict[str, tuple[Case, ...]] = {
    "learning_rate": (acts(PPO, 2e-2, "policy step", "learning_rate"), acts(AT_THE_END, 2e-2, "learning_rate")),
    "temperature": (
        acts(TERMS, 1.5, *CORRECTED, *RATIOS, *SYNC, "kl", "entropy"),
        acts(GRPO, 1.5, *SYNC, kind="equal"),
    ),
    "batch.filter_zero_variance": (
        acts(GRPO, True, *LEARNT, "cohort", "loss_weight", "skipped_share", "trained_tokens"),
        acts(HALF, True, *LEARNT, "cohort", "loss_weight", "skipped_share", "trained_tokens"),
        idle(GRPO, True, kind="unequal"),
    ),
    "batch.trained_rollouts": (
        acts(
            WHOLE,
            2,
            *LEARNT,
            *TOKENS,
            "entropy",
            "sync_mean",
            "sync_k3",
            "cohort",
            "loss_weight",
            "trained_tokens",
            "passes",
            "logits",
        ),
        acts(GRPO, 5, "refused"),
        idle(GRPO, 4),
    ),
    "batch.drop_above": (acts(GRPO, 0.5, "next problems"), idle(GRPO, 1.0, kind="unequal")),
    "optimizer.beta1": (acts(PPO, 0.8, *STEPS), idle(AT_THE_END, 0.8)),
    "optimizer.beta2": (acts(PPO, 0.9, *STEPS), idle(AT_THE_END, 0.9)),
    "optimizer.epsilon": (acts(PPO, 1e-4, *STEPS), idle(AT_THE_END, 1e-4)),
    "optimizer.weight_decay": (acts(PPO, 0.1, *STEPS), idle(AT_THE_END, 0.1)),
    "optimizer.gradient_clip": (acts(PPO, 5.0, *STEPS), idle(given(PPO, {"optimizer.gradient_clip": 20.0}), 40.0)),
    "optimizer.warmup_steps": (acts(PPO, 4, *STEPS, "learning_rate"), idle(PPO, 1)),
    "optimizer.decay": (acts(COSINE, "linear", *STEPS, "learning_rate"), idle(WARMING, "linear")),
    "optimizer.decay_after": (acts(COSINE, 3, *STEPS, "learning_rate"), idle(WARMING, 3)),
    "optimizer.decay_steps": (acts(COSINE, 20, *STEPS, "learning_rate"), idle(WARMING, 20)),
    "compute.micro_batch_tokens": (
        # The sampler is compared in the first micro-batch.
        acts(TERMS, 12, *SYNC, "passes", "logits", **ROUNDED),
        # Where a batch is measured first, it is compared in all of it.
        acts(PPO, 12, "passes", "logits", **ROUNDED),
        idle(TERMS, 4096),
    ),
    "compute.layout": (acts(TERMS, "padded", "passes", **ROUNDED), idle(TERMS, "packed")),
    "compute.precision": (acts(GRPO, "bfloat16", *CORRECTED, *RATIOS, *SYNC, **SINGLE), idle(GRPO, "bfloat16")),
    "compute.float32_head": (acts(LOWER, False, *CORRECTED, *RATIOS, *SYNC, **SINGLE), idle(GRPO, False, **SINGLE)),
    "compute.head_chunk_tokens": (acts(TERMS, 3, "logits", **ROUNDED), idle(TERMS, 1024)),
    "compute.gradient_checkpointing": (acts(TERMS, True, "passes", **ROUNDED), idle(GRPO, True, kind="equal")),
    "adapter.rank": (
        acts(ADAPTED, 2, *GRADIENT, "policy step", start="base"),
        idle(STILL, 2, kind="equal", start="base"),
    ),
    "adapter.alpha": (
        acts(ADAPTED, 16.0, *GRADIENT, start="base"),
        acts(ADAPTED, 16.0, *CORRECTED, *RATIOS, *SYNC),
        idle(ADAPTED, 16.0, kind="equal", start="base"),
    ),
    "adapter.target_modules": (
        acts(ADAPTED, ("q_proj", "down_proj"), *GRADIENT, "policy step", start="base"),
        idle(ADAPTED, ALL_LAYERS),
    ),
    "sync.tolerance": (acts(GRPO, 1e-4, "refused"), idle(GRPO, 1e-4, kind="agreeing")),
    # The mean is 0.39 and k3 is 0.19.
    "sync.mean": (acts(GRPO, 0.3, "refused"), idle(GRPO, 1e-4, kind="agreeing")),
    "sync.k3": (acts(GRPO, 1e-4, "refused"), idle(GRPO, 0.3), idle(GRPO, 1e-4, kind="agreeing")),
    "sync.quantile": (acts(GRPO, 1e-4, "refused"), idle(GRPO, 1e-4, kind="agreeing")),
}
CASES = OBJECTIVE | TERMS_OF_THE_LOSS | BATCHES_AND_STEPS
