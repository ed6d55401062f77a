"""Records of each step and evaluation, and the names under which their numbers are logged.

Sums and counts are added over micro-batches, ranks and optimizer steps, and are divided once, at the end: two
micro-batches of 3 and 1 tokens whose entropies sum to 6 and 1 have a mean entropy of 7 / 4, not of 3 / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, reduce
from operator import add
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
from pydantic import TypeAdapter

from ..batch.responses import marks
from ..contract import tables

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean before division: sum and count are float64 scalars without gradient, or plain numbers."""

    total: Any
    count: Any

    def __add__(self, other: Mean) -> Mean:
        """The mean over both."""
        return replace(self, total=self.total + other.total, count=self.count + other.count)

    @property
    def value(self) -> float:
        """The mean; NaN where nothing was counted."""
        return float(self.total) / float(self.count) if float(self.count) else math.nan

    def plain(self) -> Mean:
        """The same, as plain numbers."""
        return Mean(total=float(self.total), count=float(self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Mean):
    """A share that already includes its normaliser, such as that of the loss: shares are added and not divided."""

    @property
    def value(self) -> float:
        """The sum of the shares."""
        return float(self.total)

    def plain(self) -> Mean:
        """All shares added up to one plain value."""
        return Mean(total=float(self.total), count=1.0)


def added(one: Mapping[str, Mean], other: Mapping[str, Mean]) -> dict[str, Mean]:
    """Add the metrics of two micro-batches, ranks or updates."""
    return {name: metric + other[name] for name, metric in one.items()}


def with_zeros(metrics: Mapping[str, Mean], names: Iterable[str], count: float) -> dict[str, Mean]:
    """Add ``count`` known zeros, which were not measured, to the means of these names where they exist."""
    known = {name: replace(metrics[name], count=metrics[name].count + count) for name in names if name in metrics}
    return {**metrics, **known}


def reduced(metrics: Mapping[str, Mean], all_reduce: Callable[[torch.Tensor], None]) -> dict[str, Mean]:
    """Add the metrics of all ranks, which have the same names in the same order, with one in-place reduction."""
    # Imported here, so that saved records can be read without torch.
    import torch

    if not metrics:
        return {}
    sums = torch.stack([torch.stack([metric.total, metric.count]) for metric in metrics.values()])
    all_reduce(sums)
    return {
        name: replace(metric, total=total, count=count)
        for (name, metric), (total, count) in zip(metrics.items(), sums, strict=True)
    }


def numbers(metrics: Mapping[str, Mean]) -> dict[str, float]:
    """The plain numbers of metrics by their logged names.

    Every mean keeps its name. Means of squares become ``advantage_std``; the effective sample size of the learner's
    weights on the sampler's tokens (``effective_sample_size``) and responses (``effective_sample_size_responses``),
    (Σρ)²/(N·Σρ²), a fraction of N from 0 to 1; and the critic's ``explained_variance``, 1 − Var(return −
    value)/Var(return). Numbers with a count of 0 are left out.
    """
    values = {name: metric.value for name, metric in metrics.items()}
    shown = {name: value for name, value in values.items() if not name.endswith("_square") and name not in _INNER}
    if "advantage_square" in values:
        shown["advantage_std"] = math.sqrt(_variance(values, "advantage"))
    for name, weight in _WEIGHTS.items():
        if values.get(f"{weight}_square"):
            shown[name] = values[weight] ** 2 / values[f"{weight}_square"]
    if "return_square" in values:
        spread = _variance(values, "return")
        shown["explained_variance"] = 1.0 - _variance(values, "value_error") / spread if spread else math.nan
    return {name: value for name, value in shown.items() if not math.isnan(value)}


_WEIGHTS = {"effective_sample_size": "token_ratio", "effective_sample_size_responses": "response_ratio"}
_INNER = (*_WEIGHTS.values(), "value_error")


def _variance(values: Mapping[str, float], name: str) -> float:
    # With rounding errors, a variance may come out below 0.
    spread = values[f"{name}_square"] - values[name] ** 2
    return spread if math.isnan(spread) else max(0.0, spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Distance between a sampler's log-probabilities of its sampled tokens and the learner's of the same tokens.

    Each is infinite if one of the sampler's log-probabilities is not finite.

    Attributes:
        maximum: Largest |learner − sampler| (nats).
        mean: Mean |learner − sampler| (nats per token).
        k3: Mean of r − 1 − log r with r = π_learner/π_sampler, an estimate of KL(sampler ‖ learner) (nats per token).
        quantile: A bound on |learner − sampler| (nats) for 99 % of the tokens. With one rank it is the smallest
            difference of a token that is such a bound, with several ranks the largest over the ranks, which also bounds
            99 % of all tokens.
    """

    maximum: float
    mean: float
    k3: float
    quantile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """The outcome of an optimizer step, or of all steps of a batch (``of_batch``), over all ranks.

    Attributes:
        objective: Metrics of the objective, by the names of ``loss_metrics``, which depend on the settings.
        gradient_norm: Norm of the gradient before clipping (``grad_norm`` in TRL and veRL).
        sync_error: The maximum of the ``Agreement`` with the sampler, from the first micro-batch or, with a lag, from
            the probe of the step's new weights; ``sync_mean``, ``sync_k3`` and ``sync_quantile`` are its other values.
        optimizer_steps: Optimizer steps taken; 0 if no weight could change.
        trained_tokens: Response tokens in the loss, including those of skipped responses; each pass over a batch
            counts.
        passed_tokens: The ``trained_tokens`` that passed through the model.
        skipped: Responses without a forward or backward pass, since they could not change the update, out of those in
            the batch.
        operations: FLOPs of forward and backward (see ``rate.training_operations``); 0 if not known.
        machine_rate: Measured operations per second of all ranks' devices (``rate.matmul_rate``); 0 if not known. Two
            reports that differ only in this are equal.
    """

    objective: Mapping[str, Mean]
    gradient_norm: float
    learning_rate: float
    sync_error: float = 0.0
    sync_mean: float = 0.0
    sync_k3: float = 0.0
    sync_quantile: float = 0.0
    optimizer_steps: int = 1
    trained_tokens: int = 0
    passed_tokens: int = 0
    skipped: Mean = field(default_factory=lambda: Mean(total=0.0, count=0.0))
    operations: float = 0.0
    machine_rate: float = field(default=0.0, compare=False)

    def probed(self, found: Agreement) -> UpdateReport:
        """The same report with an agreement from a probe, for batches that older weights have sampled."""
        return replace(
            self, sync_error=found.maximum, sync_mean=found.mean, sync_k3=found.k3, sync_quantile=found.quantile
        )

    def metrics(self) -> dict[str, float]:
        """The numbers by name; means with a count of 0 are left out."""
        plain = ("gradient_norm", "learning_rate", "sync_error", "sync_mean", "sync_k3", "sync_quantile")
        found = numbers(self.objective) | {name: getattr(self, name) for name in plain}
        found["optimizer_steps"] = float(self.optimizer_steps)
        return found | ({"skipped_share": self.skipped.value} if self.skipped.count else {})


SUMMED = ("optimizer_steps", "trained_tokens", "passed_tokens", "operations")


def of_batch(reports: Sequence[UpdateReport]) -> UpdateReport:
    """Combine the reports of a batch's optimizer steps: sums and counts, the mean norm, and the last learning rate.

    The agreement with the sampler is that of the first step, the only one in which the policy is the one that sampled.
    """
    first, last = reports[0], reports[-1]
    if len(reports) == 1:
        return first
    return replace(
        first,
        objective={name: reduce(add, (report.objective[name] for report in reports)) for name in first.objective},
        gradient_norm=sum(report.gradient_norm for report in reports) / len(reports),
        learning_rate=last.learning_rate,
        skipped=reduce(add, (report.skipped for report in reports)),
        machine_rate=last.machine_rate,
        **{name: sum(getattr(report, name) for report in reports) for name in SUMMED},
    )


PERFORMANCE = ("_seconds", "virtual_time", "_per_second", "model_flops_utilisation")
"""Suffixes of the names of a step's cost metrics."""
HEALTH = (
    *("truncated_", "interrupted_", "score_error_", "lone_", "sampled_"),
    *("importance_", "mismatch_", "effective_", "gradient_", "sync_", "rounding_"),
    *("lag_", "mixed_", "stale_", "engines_", "trainer_"),
)
"""Prefixes of the names of health metrics; all other metrics belong to the group ``train``."""


class Numbers:
    """A dataclass whose fields are numbers, or None."""

    __slots__ = ()

    def metrics(self) -> dict[str, float]:
        """The numbers by name, without missing ones."""
        return {name: float(value) for name, value in asdict(cast(Any, self)).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics(Numbers):
    """Statistics of a step's completed responses, whether trained on or filtered.

    Attributes:
        reward_std: Mean over groups of the sample standard deviation of a group's rewards, as in TRL; 0 for n = 1.
        zero_variance_share: Share of the responses in groups of equal rewards (TRL: ``frac_reward_zero_std``, which
            counts groups).
        response_length: Mean number of response tokens (TRL: ``completions/mean_length``).
        truncated_share: Share of the responses that ended at the length limit, ``finish_reason`` ``length`` (TRL:
            ``completions/clipped_ratio``).
        interrupted_share: Share of the responses that contain tokens that were not sampled (column ``sampled``).
        score_error_share: Share of the responses whose verifier failed (column ``score_error``), with a reward of 0.
        lone_responses: Responses that are alone in their group since the others failed, and so give no signal; see
            ``with_cohorts``.
        sampled_entropy: −mean log-probability of the sampled tokens under the sampler (nats per token): an unbiased
            estimate of the policy's entropy at the sampling temperature, at no cost. None if the sampler reports no
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
    lone_responses: int = 0
    sampled_entropy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageStatistics(Numbers):
    """Mean and standard deviation (n) of a step's advantages: one per response, or with a critic one per token."""

    advantage: float
    advantage_std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LagStatistics(Numbers):
    """Age of a batch's tokens when they were learnt from, and the waiting times of engines and trainer.

    Attributes:
        lag_mean: Versions by which the weights that sampled a token are older than those that it updates; mean over
            tokens.
        lag_max: Largest lag of a token.
        mixed_share: Share of the responses with tokens of several versions.
        stale_groups: Groups that were dropped because one of their responses exceeded the bound.
        stale_length: Mean tokens of the responses in these groups; None without such groups.
        engines_idle_share: Share of the time since the previous step in which engines had nothing to do; None if the
            pipe does not report it.
        trainer_idle_share: Share of that time in which the trainer waited for groups.
        virtual_time: Time since the run began on a virtual clock (decoding steps); None without one.
    """

    lag_mean: float
    lag_max: int
    mixed_share: float
    stale_groups: int = 0
    stale_length: float | None = None
    engines_idle_share: float | None = None
    trainer_idle_share: float | None = None
    virtual_time: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One update step, or the failed attempt at it that ended a run.

    Attributes:
        step: The step, counted from 1.
        rollouts: Rollouts generated for training so far, this step's included.
        update_seconds: Wall time of learning: measuring the batch, if needed, and the optimizer steps.
        measure_seconds: The part of ``update_seconds`` that measuring took.
        sync_seconds: Wall time of the sync with the sampler; None if the weights have not changed.
        update: Outcome of the update; None if every group was filtered or the policy diverged.
        gradient_retries: How often an optimizer step was retried because its gradient was not finite.
        lag: Age of the batch's tokens; None if sampling and updates alternate.
        sampled_tokens: Response tokens generated in this step.
        dropped_problems: Problems that no-positive resampling leaves out of this pass.
        rounding_changes: How often the run was continued with settings that change rounding (``Progress.changes``).
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
    lag: LagStatistics | None = None
    gradient_retries: int = 0
    sampled_tokens: int = 0
    dropped_problems: int = 0
    rounding_changes: int = 0

    def seconds(self) -> dict[str, float]:
        """Wall time of each phase of the step: ``sample``, ``update`` and, if there was one, ``sync``."""
        phases = {"sample": self.sample_seconds, "update": self.update_seconds}
        return phases if self.sync_seconds is None else phases | {"sync": self.sync_seconds}

    def metrics(self) -> dict[str, float]:
        """The step's numbers under their logged names (``train/reward``), without missing ones."""
        found = _named(self.seconds()) | self._rates()
        # These advantages include skipped responses. They replace the objective's, which cover only tokens that passed
        # through the model.
        for part in (self.responses, self.update, self.lag, self.advantages):
            found |= {} if part is None else part.metrics()
        for name in ("gradient_retries", "dropped_problems", "rounding_changes"):
            found |= {name: float(getattr(self, name))} if getattr(self, name) else {}
        return {f"{_group(name)}/{name}": value for name, value in found.items()}

    def _rates(self) -> dict[str, float]:
        """Rates per second, and the utilisation of the devices in the update (MFU)."""
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
    """One evaluation; ``scores`` is keyed by the metric columns of the ``evals`` table, such as ``avg_at_4``."""

    step: int
    rollouts: int
    scores: Mapping[str, float]
    evaluate_seconds: float

    def seconds(self) -> dict[str, float]:
        """Wall time of the only phase, ``evaluate``."""
        return {"evaluate": self.evaluate_seconds}

    def metrics(self) -> dict[str, float]:
        """The scores and the time under their logged names: ``eval/avg_at_4``, ``perf/evaluate_seconds``."""
        named = {f"eval/{name}": score for name, score in self.scores.items()}
        return named | {f"perf/{name}": value for name, value in _named(self.seconds()).items()}


Record = StepRecord | EvaluationRecord
"""The argument of the training loop's ``watch``."""


def to_plain(record: Record) -> dict[str, Any]:
    """Convert a record to values for JSON; ``from_plain`` restores it."""
    return {"kind": "step" if isinstance(record, StepRecord) else "evaluation", **asdict(record)}


def from_plain(plain: Mapping[str, Any]) -> Record:
    """Restore a record from the values of ``to_plain``, directly or from JSON."""
    found: Record = _reader(EvaluationRecord if plain["kind"] == "evaluation" else StepRecord).validate_python(plain)
    return found


# Making an adapter takes milliseconds, and a run has thousands of records.
_reader = cache(TypeAdapter)


def _group(name: str) -> str:
    if name.endswith(PERFORMANCE):
        return "perf"
    return "health" if name.startswith(HEALTH) else "train"


def _named(seconds: Mapping[str, float]) -> dict[str, float]:
    return {f"{phase}_seconds": value for phase, value in seconds.items()}


def response_statistics(batch: pl.DataFrame) -> ResponseStatistics | None:
    """Compute statistics of a step's completed responses; the table has the columns of ``with_cohorts``.

    One group of four responses with 2, 4, 6 and 8 tokens and rewards 1, 0, 0 and 0, the last one truncated, has a
    reward of 0.25, a ``reward_std`` of 0.5, a ``response_length`` of 5, at most 8, and a ``truncated_share`` of 0.25.
    """
    completed = batch.filter(pl.col("cohort") != "failed")
    if not len(completed):
        return None
    deviations = completed.group_by("problem_id", maintain_order=True).agg(pl.col("reward").cast(pl.Float64).std())
    # A group of one always has equal rewards.
    alone, named = ~pl.col("problem_id").is_duplicated(), batch.columns
    grouped = completed.filter(~alone)
    lengths = completed["response_ids"].list.len().to_numpy()
    return ResponseStatistics(
        reward=float(completed["reward"].to_numpy().mean()),
        # A group of one has no standard deviation.
        reward_std=float(deviations["reward"].fill_null(0.0).to_numpy().mean()),
        zero_variance_share=float(grouped["zero_variance"].to_numpy().mean()) if len(grouped) else None,
        response_length=float(lengths.mean()),
        truncated_share=_share(completed, pl.col("finish_reason") == "length"),
        interrupted_share=_share(completed, ~pl.col("sampled").list.all()) if "sampled" in named else 0.0,
        score_error_share=_share(completed, pl.col("score_error").is_not_null()) if "score_error" in named else 0.0,
        response_length_max=int(lengths.max()),
        lone_responses=completed.filter(alone & (pl.col("cohort") == "filtered")).height,
        sampled_entropy=_sampled_entropy(completed),
    )


def advantage_statistics(trained: pl.DataFrame) -> AdvantageStatistics | None:
    """Compute statistics of a step's advantages, one per response or one per token."""
    column = trained["advantages"].explode() if "advantages" in trained.columns else trained["advantage"]
    values = column.drop_nulls().to_numpy().astype(np.float64)
    if not len(values):
        return None
    return AdvantageStatistics(advantage=float(values.mean()), advantage_std=float(values.std()))


def lag_statistics(
    used: pl.DataFrame, stale: pl.DataFrame, *, version: int, idle: Mapping[str, float]
) -> LagStatistics:
    """Compute statistics of a step's batch for weights of a ``version``: the used responses, and the stale ones."""
    lengths = used["response_ids"].list.len().to_numpy().astype(np.int64)
    oldest = used["weights_version"].to_numpy().astype(np.int64)
    versions, starts = oldest, np.zeros(len(used), dtype=np.int64)
    counts = np.ones(len(used), dtype=np.int64)
    if "versions" in used.columns:
        spans = used.with_columns(
            versions=pl.coalesce("versions", pl.concat_list("weights_version")),
            version_starts=pl.coalesce("version_starts", pl.concat_list(pl.lit(0, dtype=pl.Int32))),
        )
        counts = spans["versions"].list.len().to_numpy().astype(np.int64)
        versions = spans["versions"].explode().to_numpy().astype(np.int64)
        starts = spans["version_starts"].explode().to_numpy().astype(np.int64)
    # A span ends where the next one of its response begins, or at the end of the response.
    ends = np.append(starts[1:], 0)
    ends[np.cumsum(counts) - 1] = lengths
    tokens = ends - starts
    behind = version - versions
    return LagStatistics(
        lag_mean=float((behind * tokens).sum() / max(1, tokens.sum())),
        lag_max=int(behind.max(initial=0)),
        mixed_share=float((counts > 1).mean()) if len(used) else 0.0,
        stale_groups=stale["problem_id"].n_unique(),
        stale_length=float(stale["response_ids"].list.len().to_numpy().mean()) if len(stale) else None,
        engines_idle_share=idle.get("engines"),
        trainer_idle_share=idle.get("trainer"),
        virtual_time=idle.get("clock"),
    )


def _sampled_entropy(responses: pl.DataFrame) -> float | None:
    """−mean log-probability of the sampled tokens; None if there are none."""
    if "logprobs" not in responses.columns:
        return None
    given = responses.filter(pl.col("logprobs").list.len() > 0).select(
        "logprobs", sampled=marks(responses, of="logprobs")
    )
    scores, sampled = given["logprobs"].explode(), given["sampled"].explode()
    if len(sampled) == len(scores):
        scores = scores.filter(sampled.fill_null(value=False))
    return -float(scores.to_numpy().mean(dtype=np.float64)) if len(scores) else None


def _share(responses: pl.DataFrame, condition: pl.Expr) -> float:
    """Share of responses that meet a condition; an unknown condition counts as not met."""
    return float(responses.select(condition.fill_null(value=False).cast(pl.Float64).mean()).item())


def timings_table(records: Iterable[Record], run_id: str, devices: int = 1) -> pl.DataFrame:
    """Make the ``timings`` table with a row per step and phase; of a repeated step the last attempt counts."""
    seconds = {(record.step, phase): value for record in records for phase, value in record.seconds().items()}
    rows = [(run_id, step, phase, value, value * devices) for (step, phase), value in seconds.items()]
    columns = [column.name for column in tables.schema("timings").columns]
    return tables.check(pl.DataFrame(rows, schema=columns, orient="row"), "timings", where=f"run {run_id}")
