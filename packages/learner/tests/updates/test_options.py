"""Each option changes what it should, and nothing else, in all that comes of one batch.

For each option there is a case in which it acts, with everything that changes, and one in which it changes nothing.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from isocompute.learner.config import AdapterConfig, LearnerConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.training.loop import learn
from isocompute.learner.updates.learner import Learner
from small_run import RUN, moved, recorded, scored
from torch.overrides import TorchFunctionMode
from transformers import LlamaForCausalLM

pytestmark = pytest.mark.slow("an update for each option")

ROUNDING = 1e-6
"""Largest relative difference of what is the same but for the order of its sums, or for a column of float32."""

ALWAYS = {"temperature", "objective.epochs", "objective.updates_per_batch"}
"""Options that change what is measured or what it costs in every batch; in one case they change no gradient."""

ELSEWHERE = {"compute.sharding", "sampler_dtype", "batch.drop_above", "learning_rate", "critic.learning_rate"}
ELSEWHERE |= {f"optimizer.{name}" for name in ("beta1", "beta2", "epsilon", "weight_decay", "gradient_clip")}
ELSEWHERE |= {"pipeline.mode", "pipeline.update_time", "pipeline.jitter"}
ELSEWHERE |= {f"optimizer.{name}" for name in ("warmup_steps", "decay", "decay_after", "decay_steps")}
"""An option of several ranks (``test_sharding.py``), one that only tolerances follow (``test_sync.py``), one of the
batches that follow (``test_run.py``), those of the optimizer's step (``test_learner.py``), and those of engines that
sample ahead (``test_lag.py``)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An option set to another value.

    Attributes:
        base: The other settings.
        changes: Everything that it changes, by the names of ``observed``.
        kind: The batch.
        start: ``base`` or ``moved``: where the policy is.
        rounding: Whether what is the same may differ by rounding.
        most: Largest relative change of what changes.
    """

    base: LearnerConfig
    value: Any
    changes: frozenset[str]
    kind: str = "mixed"
    start: str = "moved"
    rounding: bool = False
    most: float = float("inf")
    dtype: torch.dtype = torch.float64


def acts(base: LearnerConfig, value: Any, changes: str, **where: Any) -> Case:
    return Case(base=base, value=value, changes=frozenset(changes.split()), **where)


def idle(base: LearnerConfig, value: Any, **where: Any) -> Case:
    return acts(base, value, "", **where)


def given(config: LearnerConfig, settings: dict[str, Any]) -> LearnerConfig:
    """Settings by their dotted names in place of others, those of a group at once."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, _, field = name.rpartition(".")
        groups.setdefault(group, {})[field] = value
    changed = groups.pop("", {})
    return replace(config, **changed, **{name: replace(getattr(config, name), **own) for name, own in groups.items()})


LEARNT = "policy gradient_norm loss policy_loss"
GRADIENT, ADVANTAGE = "policy gradient_norm", f"advantages advantage advantage_std {LEARNT}"
LOW, HIGH = "clip_fraction_low", "clip_fraction_high"
CORRECTED = f"{LEARNT} importance_weight"
SYNC = "sync_error sync_mean sync_k3 sync_quantile"
RATIOS = "mismatch_kl mismatch_k3 effective_sample_size effective_sample_size_responses"
TOKENS = f"advantage advantage_std importance_weight {RATIOS}"
"""Means over the tokens that pass through the model: which those are changes them."""

CRITIC = "critic loss value_loss"
RETURNS = f"advantages {LEARNT} {CRITIC} return explained_variance"
"""Advantages of tokens are whitened: what changes them leaves their mean and their deviation as they are."""

ROUNDED, SINGLE = {"rounding": True}, {"dtype": torch.float32, "most": 0.1}
ALL_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
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
LOWER = given(GRPO, {"compute.precision": "bfloat16"})
ADAPTED = given(GRPO, {"adapter": AdapterConfig(rank=4)})

# Only responses that are learnt from are measured, and compared with the sampler.
TO_PPO = f"{ADVANTAGE} {RETURNS} {TOKENS} {LOW} {HIGH} ratio value skipped_share passes logits"
CASES: dict[str, tuple[Case, ...]] = {
    "objective.algorithm": (
        acts(AGAIN, "dapo", f"{LEARNT} {HIGH}"),
        idle(GRPO, "dapo"),
        acts(AGAIN, "dr_grpo", f"{ADVANTAGE} loss_weight ratio"),
        acts(AGAIN, "ppo", f"{TO_PPO} sync_mean sync_k3"),
        acts(AGAIN, "cispo", f"{ADVANTAGE} {LOW} {HIGH} loss_weight ratio"),
        acts(AGAIN, "gspo", f"{LEARNT} {LOW} {HIGH} loss_weight ratio"),
    ),
    "objective.surrogate": (acts(GRPO, "policy_gradient", "loss policy_loss"), idle(AGAIN, "clip")),
    "objective.clip_low": (acts(AGAIN, 0.05, f"{LEARNT} {LOW}"), idle(GRPO, 0.05)),
    "objective.clip_high": (acts(AGAIN, 0.05, f"{LEARNT} {HIGH}"), idle(GRPO, 0.05)),
    "objective.baseline": (acts(UNSCALED, "batch", ADVANTAGE), idle(UNSCALED, "batch", kind="one group")),
    "objective.scale": (
        acts(GRPO, "none", ADVANTAGE),
        acts(GRPO, "batch", ADVANTAGE),
        idle(GRPO, "batch", kind="one group"),
    ),
    "objective.std": (
        acts(GRPO, "population", ADVANTAGE),
        acts(PPO, "population", f"advantages advantage_std {LEARNT}", **ROUNDED),
        idle(UNSCALED, "population"),
    ),
    "objective.aggregation": (
        acts(GRPO, "sequence", f"{LEARNT} loss_weight"),
        acts(GRPO, "prompt", f"{LEARNT} loss_weight"),
        idle(GRPO, "sequence", kind="one length"),
    ),
    "objective.constant_length": (acts(CONSTANT, 18, f"{LEARNT} loss_weight"), idle(GRPO, 18)),
    "objective.updates_per_batch": (
        acts(WHOLE, 2, f"{LEARNT} {SYNC} ratio entropy loss_weight optimizer_steps passes", **ROUNDED),
        # A group is not split; that it is measured first costs a pass.
        acts(GRPO, 2, "passes", kind="one group", **ROUNDED),
    ),
    "objective.epochs": (
        acts(WHOLE, 2, f"{LEARNT} {LOW} {HIGH} ratio entropy optimizer_steps trained_tokens passes", **ROUNDED),
        # Measuring compared a response with the sampler; the updates have none that they learn from.
        acts(GRPO, 2, f"{SYNC} trained_tokens passes", kind="equal"),
    ),
    "kl.coefficient": (
        acts(TERMS, 0.2, f"{GRADIENT} loss"),
        acts(given(TERMS, {"kl.coefficient": 0.0}), 0.1, f"{GRADIENT} loss kl"),
        idle(TERMS, 0.2, start="base"),
    ),
    "kl.estimator": (
        acts(TERMS, "k1", f"{GRADIENT} loss kl"),
        acts(TERMS, "k2", f"{GRADIENT} loss kl"),
        idle(TERMS, "k2", start="base"),
    ),
    "kl.place": (acts(TERMS, "reward", f"{ADVANTAGE} passes", **ROUNDED), idle(GRPO, "reward")),
    "kl.mask_zero_variance": (acts(TERMS, True, f"{GRADIENT} loss"), idle(TERMS, True, kind="unequal")),
    "entropy.coefficient": (acts(TERMS, 0.04, f"{GRADIENT} loss"), idle(MASKED, 0.04, kind="equal")),
    "entropy.mask_zero_variance": (acts(TERMS, True, f"{GRADIENT} loss"), idle(TERMS, True, kind="unequal")),
    "entropy.measured": (
        acts(GRPO, True, "entropy", kind="unequal"),
        # A token that is skipped counts as not clipped.
        acts(AGAIN, True, f"{TOKENS} ratio entropy skipped_share sync_mean sync_k3 passes logits", **ROUNDED),
        # Nothing is skipped, so that the entropy is that of all tokens.
        acts(GRPO, True, f"{TOKENS} entropy skipped_share sync_mean sync_k3 passes logits", **ROUNDED),
        idle(TERMS, True),
    ),
    "importance.level": (
        acts(GRPO, "sequence", CORRECTED),
        acts(GRPO, "none", CORRECTED),
        idle(GRPO, "none", kind="agreeing", **ROUNDED),
        idle(GRPO, "sequence", kind="agreeing", **ROUNDED),
    ),
    "pipeline.lag": (
        # One ratio from the sampler to the policy, and no correction before it.
        acts(GRPO, 2, f"{CORRECTED} {LOW} {HIGH} ratio"),
        idle(GRPO, 2, kind="agreeing", **ROUNDED),
    ),
    "importance.cap": (acts(GRPO, 1.01, CORRECTED), idle(GRPO, 1.01, kind="agreeing")),
    "critic.coefficient": (acts(THROUGH, 1.0, GRADIENT), idle(PPO, 1.0)),
    "critic.through_policy": (acts(PPO, True, GRADIENT), idle(given(PPO, {"critic.coefficient": 0.0}), True)),
    "critic.discount": (acts(PPO, 0.5, RETURNS, **ROUNDED), idle(PPO, 0.5, kind="one token")),
    "critic.gae_lambda": (acts(PPO, 0.5, RETURNS, **ROUNDED), idle(PPO, 0.5, kind="one token")),
    "critic.clip": (acts(PPO_AGAIN, 1e-3, CRITIC), idle(PPO, 1e-3)),
    "temperature": (
        acts(TERMS, 1.5, f"{CORRECTED} {RATIOS} {SYNC} kl entropy"),
        acts(GRPO, 1.5, SYNC, kind="equal"),
    ),
    "batch.filter_zero_variance": (
        acts(GRPO, True, f"{LEARNT} cohort loss_weight skipped_share trained_tokens"),
        acts(HALF, True, f"{LEARNT} cohort loss_weight skipped_share trained_tokens"),
        idle(GRPO, True, kind="unequal"),
    ),
    "batch.trained_rollouts": (
        acts(WHOLE, 2, f"{LEARNT} {TOKENS} entropy sync_mean sync_k3 cohort loss_weight trained_tokens passes logits"),
        acts(GRPO, 5, "refused"),
        idle(GRPO, 4),
    ),
    "compute.micro_batch_tokens": (
        # The sampler is compared in the first micro-batch.
        acts(TERMS, 12, f"{SYNC} passes logits", **ROUNDED),
        # Where a batch is measured first, it is compared in all of it.
        acts(PPO, 12, "passes logits", **ROUNDED),
        idle(TERMS, 4096),
    ),
    "compute.layout": (acts(TERMS, "padded", "passes", **ROUNDED), idle(TERMS, "packed")),
    "compute.precision": (acts(GRPO, "bfloat16", f"{CORRECTED} {RATIOS} {SYNC}", **SINGLE), idle(GRPO, "bfloat16")),
    "compute.float32_head": (acts(LOWER, True, f"{CORRECTED} {RATIOS} {SYNC}", **SINGLE), idle(GRPO, True, **SINGLE)),
    "compute.head_chunk_tokens": (acts(TERMS, 3, "logits", **ROUNDED), idle(TERMS, 1024)),
    "compute.gradient_checkpointing": (acts(TERMS, True, "passes", **ROUNDED), idle(GRPO, True, kind="equal")),
    "adapter.rank": (acts(ADAPTED, 2, GRADIENT, start="base"), idle(ADAPTED, 2, kind="equal", start="base")),
    "adapter.alpha": (
        acts(ADAPTED, 16.0, GRADIENT, start="base"),
        acts(ADAPTED, 16.0, f"{CORRECTED} {RATIOS} {SYNC}"),
        idle(ADAPTED, 16.0, kind="equal", start="base"),
    ),
    "adapter.target_modules": (
        acts(ADAPTED, ("q_proj", "down_proj"), GRADIENT, start="base"),
        idle(ADAPTED, ALL_LAYERS),
    ),
    **{
        f"sync.{name}": (acts(GRPO, value, "refused"), idle(GRPO, 1e-4, kind="agreeing"))
        for name, value in {"tolerance": 1e-4, "mean": 0.3, "quantile": 1e-4}.items()
    },
    # The mean is 0.39 and k3 is 0.19.
    "sync.k3": (acts(GRPO, 1e-4, "refused"), idle(GRPO, 0.3), idle(GRPO, 1e-4, kind="agreeing")),
}


@cache
def batch(model: Path, kind: str) -> pl.DataFrame:
    """Five groups of four responses, p3 with equal rewards, from a sampler that is not quite the learner.

    Args:
        kind: ``mixed``; ``agreeing`` (the sampler is the learner), ``unequal`` (without p3), ``equal`` (all rewards
            are), ``one group``, ``one length``, or ``one token`` of each response.
    """
    policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    rows = recorded(groups=5)
    lengths = {"one token": 1, "one length": 3}
    if kind in lengths:
        tokens = pl.concat_list("response_ids", "response_ids", "response_ids").list.head(lengths[kind])
        rows = rows.with_columns(response_ids=tokens)
    rows = scored(moved(policy, 1e-2 if kind == "agreeing" else 3e-2), rows, numbers=pl.Float64)
    alike = pl.lit(True) if kind == "equal" else pl.col("problem_id") == "p3"
    rows = rows.with_columns(reward=pl.when(alike).then(1.0).otherwise("reward"))
    left_out = {"unequal": ["p3"], "one group": ["p0", "p2", "p3", "p4"]}.get(kind, [])
    return rows.filter(~pl.col("problem_id").is_in(left_out))


class Watched(Learner):
    """A learner that keeps what it was given, and the sum of its gradients before they are clipped."""

    def watch(self) -> None:
        self.parts: list[pl.DataFrame] = []
        self.gradients: dict[str, Any] = {}
        self.passes: list[Any] = []
        self._clip, self._optimizer.clip = self._optimizer.clip, self._keep  # type: ignore[method-assign]
        base = self.policy.base_model
        base.register_forward_pre_hook(self._count, with_kwargs=True)
        for layer in base.layers:
            layer.register_forward_pre_hook(lambda *_: self.passes.append("layer"))

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> Any:
        self.parts.append(batch)
        return super().update(batch, advance=advance)

    def _count(self, _: Any, arguments: Any, named: Any) -> None:
        self.passes.append(tuple(named["input_ids"].shape))

    def _keep(self) -> float:
        for name, model in (("policy", self.policy), ("critic", self.critic)):
            parts = [p.grad.flatten().double() for p in (model.parameters() if model else ()) if p.requires_grad]
            if parts:
                self.gradients[name] = self.gradients.get(name, 0) + torch.cat(parts)
        return self._clip()


class Logits(TorchFunctionMode):  # type: ignore[misc]
    """Counts the tokens whose logits are held at a time."""

    most = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.logsumexp:
            self.most = max(self.most, len(args[0]))
        return func(*args, **(kwargs or {}))


@cache
def observed(model: Path, config: LearnerConfig, kind: str, start: str, dtype: torch.dtype) -> dict[str, Any]:
    """Everything that comes of one batch, by name.

    ``cohort``, ``advantages`` and ``loss_weight`` of each response that is learnt from; the gradients of ``policy`` and
    ``critic``; what the report says, by its names; ``passes`` and ``logits``, which are what it costs; and what is
    ``refused``.
    """
    learner, rows = Watched(model, config, dtype=dtype), with_cohorts(batch(model, kind), config.batch)
    if start == "moved":
        moved(learner.policy, 1e-2)
        moved(learner.critic or torch.nn.Identity(), 1e-1)
    learner.watch()
    found: dict[str, Any] = {"cohort": rows["cohort"].to_list(), "refused": None}
    try:
        RUN.check(config)
        with Logits() as logits:
            learnt = learn(learner=learner, run=RUN, step=1, rollouts=rows)
    except LearnerError as error:
        return found | {"refused": str(error)}
    assert learnt.update is not None
    found |= {"passes": learner.passes, "logits": logits.most, "trained_tokens": learnt.update.trained_tokens}
    return found | learnt.update.metrics() | learner.gradients | of_responses(learner.parts)


def of_responses(parts: list[pl.DataFrame]) -> dict[str, Any]:
    """The weight and the advantages of each response, by problem and sample."""
    found: dict[str, Any] = {"advantages": {}, "loss_weight": {}}
    for part in parts:
        name = "advantages" if "advantages" in part.columns else "advantage"
        for problem, sample, weight, advantage in part.select("problem_id", "sample", "loss_weight", name).iter_rows():
            found["loss_weight"][problem, sample] = np.atleast_1d(weight)
            found["advantages"][problem, sample] = np.atleast_1d(advantage)
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """How far everything is apart that differs at all, relative to the first; infinite where that has no meaning."""
    names = before.keys() | after.keys()
    if before["refused"] or after["refused"]:
        names = before.keys() & after.keys()
    found = {name: apart(before.get(name), after.get(name)) for name in names}
    return {name: difference for name, difference in found.items() if difference}


def apart(before: Any, after: Any) -> float:
    if isinstance(before, dict) and isinstance(after, dict):
        # Of the responses that are learnt from either way; the cohorts tell which those are.
        pairs = [(before[key], after[key]) for key in before.keys() & after.keys()]
        if any(one.shape != other.shape for one, other in pairs):
            return np.inf
        before, after = (torch.from_numpy(np.concatenate(side)) for side in zip(*pairs, strict=True))
    if isinstance(before, float) and isinstance(after, float):
        # A mean of 0 has a rounding error, too.
        return abs(before - after) / max(abs(before), abs(after), 1e-2)
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        # Nothing is nothing, of whatever shape.
        if torch.equal(before, after) or not (before.any() or after.any()):
            return 0.0
        if before.shape == after.shape:
            return float((before - after).norm() / max(before.norm(), after.norm()))
    return 0.0 if type(before) is type(after) is not torch.Tensor and before == after else np.inf


def options(config: Any, prefix: str = "") -> list[str]:
    """Every setting by its dotted name, whatever group it is in; those of a group that is None are not."""
    found = []
    for field in fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        found += options(value, f"{name}.") if is_dataclass(value) else [name]
    return found


def test_every_option_has_a_case_in_which_it_acts_and_one_in_which_it_does_not() -> None:
    assert CASES.keys() == set(options(LearnerConfig(learning_rate=1.0, adapter=AdapterConfig()))) - ELSEWHERE
    for option, cases in CASES.items():
        assert any(case.changes for case in cases), option
        least = min((case.changes for case in cases), key=len)
        assert not least & {"policy", "critic"}, option
        assert not least or option in ALWAYS, option


@pytest.mark.parametrize("option", CASES)
def test_an_option_changes_what_it_should_and_nothing_else(model: Path, option: str) -> None:
    for case in CASES[option]:
        config = given(case.base, {option: case.value})
        assert config != case.base
        before, after = (observed(model, c, case.kind, case.start, case.dtype) for c in (case.base, config))
        found = differences(before, after)
        changed = {name for name, apart in found.items() if apart > ROUNDING}
        assert changed == case.changes, case
        assert case.rounding or found.keys() == changed, "what stays is the same bit for bit"
        assert all(found[name] <= case.most for name in changed), case
        if "refused" in case.changes:
            last = option.rpartition(".")[2]
            named = f"above {option} = " if option.startswith("sync") else f"{last} is {case.value}"
            assert named in after["refused"]
