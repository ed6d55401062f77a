"""Typed records of each step and each evaluation, with the names under which their numbers are logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .updates import Agreement, Average, UpdateReport

__all__ = [
    "AdvantageStatistics",
    "Agreement",
    "Average",
    "EvaluationRecord",
    "Record",
    "ResponseStatistics",
    "StepRecord",
    "UpdateReport",
    "from_plain",
    "to_plain",
]


HEALTH = frozenset({
    "truncated_share", "interrupted_share", "score_error_share", "sampled_entropy", "importance_weight",
    "mismatch_kl", "mismatch_k3", "effective_sample_size", "effective_sample_size_responses", "gradient_norm",
    "gradient_retries", "sync_error", "sync_mean", "sync_k3", "sync_quantile",
})  # fmt: skip
"""Numbers of a step that say whether the run is sound."""
PERFORMANCE = ("_seconds", "_per_second", "model_flops_utilisation")
"""How the names of numbers end that say what it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics:
    """The completed responses of a step: those that did not fail, whether trained on or filtered.

    Attributes:
        reward: Mean reward.
        reward_std: Mean over groups of the sample standard deviation of a group's rewards, as in TRL; 0 for n = 1.
        zero_variance_share: Share of the responses in groups of equal rewards (TRL: ``frac_reward_zero_std``, which
            counts groups).
        response_length: Mean number of response tokens (TRL: ``completions/mean_length``).
        truncated_share: Share of the responses that ended at the length limit, ``finish_reason`` ``length`` (TRL:
            ``completions/clipped_ratio``).
        interrupted_share: Share of the responses with tokens that were not sampled (column ``sampled``).
        score_error_share: Share of the responses that broke their verifier (column ``score_error``) and earned 0.
        response_length_max: Tokens of the longest response.
        sampled_entropy: −mean log-probability of the sampled tokens under the sampler (nats per token): an unbiased
            estimate of the policy's entropy at the sampling temperature, at no cost. None where the sampler reports no
            log-probabilities.
    """

    reward: float
    reward_std: float
    zero_variance_share: float | None
    response_length: float
    truncated_share: float
    interrupted_share: float = 0.0
    score_error_share: float = 0.0
    response_length_max: int = 0
    sampled_entropy: float | None = None

    def metrics(self) -> dict[str, float]:
        """The numbers by name; those that do not exist are left out."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageStatistics:
    """The advantages that a step was learnt from, one per response, or with a critic one per token.

    Attributes:
        advantage: Their mean: 0 up to rounding where they are relative to their group or batch and all are used.
        advantage_std: Their standard deviation about that mean (n).
    """

    advantage: float
    advantage_std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One update step, or the try at it that ended a run.

    Attributes:
        step: The step, counted from 1.
        rollouts: Rollouts generated for training so far, this step's included.
        sample_seconds: Wall time of sampling.
        update_seconds: Wall time of learning: measuring the batch, where that is needed, and the optimizer steps.
        measure_seconds: The part of it that measuring took.
        sync_seconds: Wall time of handing the weights to the sampler; None where they have not changed.
        responses: The completed responses; None when there is none.
        advantages: The advantages of those that were learnt from; None when there is none.
        update: What the update did; None when every group was filtered, or the policy diverged.
        gradient_retries: How often an optimizer step was tried again because its gradient was not finite.
        sampled_tokens: Response tokens generated in this step.
        dropped_problems: Problems that no-positive resampling has left out of this pass.
    """

    step: int
    rollouts: int
    sample_seconds: float
    update_seconds: float
    measure_seconds: float = 0.0
    sync_seconds: float | None = None
    responses: ResponseStatistics | None = None
    advantages: AdvantageStatistics | None = None
    update: UpdateReport | None = None
    gradient_retries: int = 0
    sampled_tokens: int = 0
    dropped_problems: int = 0

    def seconds(self) -> dict[str, float]:
        """Wall time of each phase of the step: ``sample``, ``update`` and, when there was one, ``sync``."""
        phases = {"sample": self.sample_seconds, "update": self.update_seconds}
        return phases if self.sync_seconds is None else phases | {"sync": self.sync_seconds}

    def metrics(self) -> dict[str, float]:
        """The numbers of the step as they are logged, ``train/reward``; those that do not exist are left out.

        Charts are grouped by the part before the slash: ``train``, ``perf`` (what it costs) or ``health`` (whether the
        run is sound).
        """
        found = _named(self.seconds()) | self._rates()
        found |= {} if self.responses is None else self.responses.metrics()
        found |= {} if self.update is None else self.update.metrics()
        # In place of the objective's, which are of the tokens that passed through the model: what is skipped counts.
        found |= {} if self.advantages is None else asdict(self.advantages)
        for name in ("gradient_retries", "dropped_problems"):
            found |= {name: float(getattr(self, name))} if getattr(self, name) else {}
        return {f"{_group(name)}/{name}": value for name, value in found.items()}

    def _rates(self) -> dict[str, float]:
        """What was done per second, and the share of the devices' own rate that the update reached (MFU)."""
        found, update = {}, self.update
        if self.sampled_tokens and self.sample_seconds:
            found["sampled_tokens_per_second"] = self.sampled_tokens / self.sample_seconds
        if update is not None and update.trained_tokens and self.update_seconds:
            found["trained_tokens_per_second"] = update.trained_tokens / self.update_seconds
            found["passed_tokens_per_second"] = update.passed_tokens / self.update_seconds
            seconds = self.update_seconds - self.measure_seconds
            if update.operations and update.machine_rate and seconds > 0:
                found["model_flops_utilisation"] = update.operations / seconds / update.machine_rate
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation.

    Attributes:
        step: Updates taken before it.
        rollouts: Rollouts generated for training so far.
        scores: What was measured, by the metric columns of the ``evals`` table, such as ``avg_at_4``.
        evaluate_seconds: Wall time of the evaluation.
    """

    step: int
    rollouts: int
    scores: Mapping[str, float]
    evaluate_seconds: float

    def seconds(self) -> dict[str, float]:
        """Wall time of the one phase, ``evaluate``."""
        return {"evaluate": self.evaluate_seconds}

    def metrics(self) -> dict[str, float]:
        """The scores and the time as they are logged: ``eval/avg_at_4``, ``perf/evaluate_seconds``."""
        named = {f"eval/{name}": score for name, score in self.scores.items()}
        return named | {f"perf/{name}": value for name, value in _named(self.seconds()).items()}


Record = StepRecord | EvaluationRecord
"""What ``watch`` of the training loop is called with."""


def to_plain(record: Record) -> dict[str, Any]:
    """Return a record as what JSON can express; ``from_plain`` makes the record of it again."""
    return {"kind": "step" if isinstance(record, StepRecord) else "evaluation", **asdict(record)}


def from_plain(plain: Mapping[str, Any]) -> Record:
    """Return the record that ``to_plain`` made this of.

    Args:
        plain: From ``to_plain``, through JSON or not.
    """
    found = {name: value for name, value in plain.items() if name != "kind"}
    if plain["kind"] == "evaluation":
        return EvaluationRecord(**found)
    for name, kind in (("responses", ResponseStatistics), ("advantages", AdvantageStatistics)):
        found[name] = None if found.get(name) is None else kind(**found[name])
    if found.get("update") is not None:
        update = dict(found["update"])
        update["objective"] = {name: Average(**average) for name, average in update["objective"].items()}
        found["update"] = UpdateReport(**update | {"skipped": Average(**update["skipped"])})
    return StepRecord(**found)


def _group(name: str) -> str:
    if name in HEALTH:
        return "health"
    return "perf" if name.endswith(PERFORMANCE) else "train"


def _named(seconds: Mapping[str, float]) -> dict[str, float]:
    return {f"{phase}_seconds": value for phase, value in seconds.items()}
