"""All that comes of one batch with some settings, by name, so that two settings can be compared."""

from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.training.loop import learn
from isocompute.learner.training.run import Place, ProblemOrder
from isocompute.learner.updates.adam import Optimizer
from isocompute.learner.updates.learner import Learner
from small_run import RUN, moved, recorded, scored
from torch.overrides import TorchFunctionMode
from transformers import LlamaForCausalLM

ROUNDING = 1e-6
"""Largest relative difference of what is the same but for the order of its sums, or for a column of float32."""


def options(config: Any, prefix: str = "") -> list[str]:
    """Every setting by its dotted name, whatever group it is in; those of a group that is None are not."""
    found = []
    for field in fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        found += options(value, f"{name}.") if is_dataclass(value) else [name]
    return found


def given(config: LearnerConfig, settings: dict[str, Any]) -> LearnerConfig:
    """Settings by their dotted names in place of others, those of a group at once."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, _, field = name.rpartition(".")
        groups.setdefault(group, {})[field] = value
    changed = groups.pop("", {})
    return replace(config, **changed, **{name: replace(getattr(config, name), **own) for name, own in groups.items()})


@cache
def batch(model: Path, kind: str) -> pl.DataFrame:
    """Five groups of four responses, p3 with equal rewards, from a sampler that is not quite the learner.

    Args:
        model: The base model.
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
    """A learner that keeps what it was given, and the gradient of each optimizer step before it is clipped."""

    def watch(self) -> None:
        """Begin."""
        self.parts: list[pl.DataFrame] = []
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.passes: list[Any] = []
        base = self.policy.base_model
        base.register_forward_pre_hook(self._count, with_kwargs=True)
        for layer in base.layers:
            layer.register_forward_pre_hook(lambda *_: self.passes.append("layer"))
        for name, parameter in self.trained().items():
            parameter.register_post_accumulate_grad_hook(partial(self._keep, name))

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """All parameters that are learnt, by their names."""
        critic = [] if self.critic is None else self.critic.named_parameters()
        learnt = ((n, p) for n, p in self.policy.named_parameters() if p.requires_grad)
        return {f"policy.{n}": p for n, p in learnt} | {f"critic.{n}": p for n, p in critic}

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> Any:
        self.parts.append(batch)
        self.gradients.append({name: torch.zeros_like(p, requires_grad=False) for name, p in self.trained().items()})
        return super().update(batch, advance=advance)

    def gradient(self, of: str) -> torch.Tensor:
        """The sum over the optimizer steps."""
        steps = [torch.cat([g.flatten() for name, g in step.items() if name.startswith(of)]) for step in self.gradients]
        return torch.stack(steps).sum(0).double()

    def _count(self, _: Any, arguments: Any, named: Any) -> None:
        self.passes.append(tuple(named["input_ids"].shape))

    def _keep(self, name: str, parameter: torch.nn.Parameter) -> None:
        assert parameter.grad is not None
        # With every micro-batch; the last one is the whole gradient.
        self.gradients[-1][name] = parameter.grad.clone()


class Logits(TorchFunctionMode):  # type: ignore[misc]
    """Counts the tokens whose logits are held at a time."""

    most = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.logsumexp:
            self.most = max(self.most, len(args[0]))
        return func(*args, **(kwargs or {}))


@cache
def observed(model: Path, config: LearnerConfig, kind: str, start: str, dtype: torch.dtype) -> dict[str, Any]:
    """Everything that comes of one batch.

    Args:
        model: The base model.
        config: The settings.
        kind: See ``batch``.
        start: Whether the policy is at first the ``base`` model or has ``moved`` away from it.
        dtype: Type of the weights.

    Returns:
        By name: ``cohort``, ``advantages`` and ``loss_weight`` of each response that is learnt from; the gradients
        of ``policy`` and ``critic``; the ``policy step`` and ``critic step`` that are taken with two gradients that
        are always the same; what the report says, by its names; ``passes`` and ``logits``, which are what it
        costs; the ``next problems``; and what is ``refused``.
    """
    learner, rows = Watched(model, config, dtype=dtype), batch(model, kind)
    if start == "moved":
        moved(learner.policy, 1e-2)
        moved(learner.critic or torch.nn.Identity(), 1e-1)
    learner.watch()
    rows = with_cohorts(rows, config.batch)
    found: dict[str, Any] = {"cohort": rows["cohort"].to_list(), "next problems": following(rows, config)}
    found["refused"] = None
    try:
        RUN.check(config)
        with Logits() as logits:
            learnt = learn(learner=learner, run=RUN, step=1, rollouts=rows)
    except LearnerError as error:
        return found | {"refused": str(error)} | fixed_step(learner, config)
    assert learnt.update is not None
    found |= {"passes": learner.passes, "logits": logits.most, "trained_tokens": learnt.update.trained_tokens}
    found |= learnt.update.metrics() | {"policy": learner.gradient("policy")}
    found |= {} if learner.critic is None else {"critic": learner.gradient("critic")}
    return found | of_responses(learner.parts) | fixed_step(learner, config)


def following(rows: pl.DataFrame, config: LearnerConfig) -> list[str]:
    """The problems of the next pass, of which these were the last."""
    problems = rows[["problem_id"]].unique()
    order = ProblemOrder(problems, problems_per_batch=1, seed=3, drop_above=config.batch.drop_above)
    place = order.after(Place(taken=len(problems) - 1), rows)
    left = len(problems) - len(place.dropped)
    return [order.batch(replace(place, taken=taken))["problem_id"].item() for taken in range(left)]


def of_responses(parts: list[pl.DataFrame]) -> dict[str, Any]:
    """The weight and the advantages of each response, by problem and sample."""
    found: dict[str, Any] = {"advantages": {}, "loss_weight": {}}
    for part in parts:
        name = "advantages" if "advantages" in part.columns else "advantage"
        for problem, sample, weight, advantage in part.select("problem_id", "sample", "loss_weight", name).iter_rows():
            found["loss_weight"][problem, sample] = np.atleast_1d(weight)
            found["advantages"][problem, sample] = np.atleast_1d(advantage)
    return found


def fixed_step(learner: Watched, config: LearnerConfig) -> dict[str, Any]:
    """What the second and the third step do, with gradients that are always the same, of the norms 0.5 and 10."""
    optimizer, found = Optimizer(learner.policy, learner.critic, config), {}
    parts = {"policy step": (p for p in learner.policy.parameters() if p.requires_grad)}
    parts |= {} if learner.critic is None else {"critic step": learner.critic.parameters()}
    parts = {name: list(parameters) for name, parameters in parts.items()}
    for parameters in parts.values():
        weights = torch.sin(torch.arange(size(parameters)) + 1.0).to(parameters[0].dtype)
        torch.nn.utils.vector_to_parameters(weights, parameters)
    before = {name: torch.nn.utils.parameters_to_vector(parameters).detach() for name, parameters in parts.items()}
    for number, norm in ((2, 0.5), (3, 10.0)):
        for parameters in parts.values():
            gradient = torch.cos((number - 1) * torch.arange(size(parameters), dtype=torch.float64))
            spread(gradient * (norm / gradient.norm()), parameters)
        optimizer.clip()
        optimizer.step(number)
    for name, parameters in parts.items():
        found[name] = (torch.nn.utils.parameters_to_vector(parameters).detach() - before[name]).double()
    return found


def size(parameters: list[torch.nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def spread(gradient: torch.Tensor, parameters: list[torch.nn.Parameter]) -> None:
    for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype)


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
        if before.shape != after.shape:
            return np.inf
        return float((before - after).norm() / max(before.norm(), after.norm()))
    return 0.0 if before == after else np.inf
