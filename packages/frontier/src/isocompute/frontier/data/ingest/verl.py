"""veRL: the step is ``training/global_step``, a batch of ``data.train_batch_size`` prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .counting import Tally, lengths
from .run import Layout, Run
from .settings import Settings

# MLflow refuses @, and veRL writes _at_ there. worst@k is only ever under val-aux.
METRIC = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/(?P<kind>acc|reward|score)/(?P<what>mean|best|worst)"
                    r"(?:@|_at_)(?P<k>\d+)(?P<mean>/mean)?$")  # fmt: skip
BIASED = (
    "veRL resamples with replacement for best@k and worst@k, which is biased (one success in four logs best@4 = "
    "0.687, exactly 1): they are kept as best_at_k_biased and worst_at_k_biased"
)
BATCHES = "train/num_gen_batches"
EVICTED = (
    "training/filter_groups/evicted_samples", "training/filter_groups/discarded_surplus_samples",
    "training/off_policy/evicted_samples", "training/rollout_failure/evicted_samples",
)  # fmt: skip
"""What its V1 trainer generated beyond the batch: counts of prompts, in spite of their name; zeros are not logged."""
TRAINED = ("training/", "actor/", "critic/", "response_length/", "timing_s/")
"""What only the log of a training step holds, not that of an evaluation alone."""
LENGTH = "response_length/mean"
LAYOUT = Layout(
    # veRL hands its own step to W&B, also in the rows of evaluations, which have no training/global_step.
    steps=("step", "_step", "Step", "training/global_step", "global_step"),
    needed=re.compile(rf"val-|{LENGTH}$|{BATCHES}$|{'|'.join(EVICTED)}"),
)


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals``; ``acc`` goes before ``reward`` where both are logged.

    Args:
        run: The run's logs.
        settings: What its configuration and ``--set`` say.

    Returns:
        The rows, and notes on defaults used and on what is biased; both empty where the run has no evaluation.

    Raises:
        FrontierError: A setting that is needed is missing, or a count in the logs is impossible.
    """
    scored = {step: scores for step, scores in ((s, _scores(metrics)) for s, metrics in run.rows) if scores}
    if not scored:
        return [], []
    n = settings.whole("rollouts_per_problem", "actor_rollout_ref.rollout.n")
    problems = settings.whole("problems_per_batch", "data.train_batch_size")
    mini = settings.whole("ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size")
    epochs = settings.whole("ppo_epochs", "actor_rollout_ref.actor.ppo_epochs", default=1)
    common = settings.common(
        n=n, problems=problems, seed_keys=("data.seed", "actor_rollout_ref.actor.data_loader_seed")
    )
    updates = max(problems // mini, 1) * epochs
    prompts = _prompts(run, settings, problems)
    # ReMax takes a greedy response to each prompt as its baseline.
    responses = n + (settings.text("adv_estimator", "algorithm.adv_estimator").lower() == "remax")
    per_step = None if prompts.per_step is None else prompts.per_step * responses
    tally = Tally(
        where=run.name,
        per_step=settings.optional("rollouts_per_step") or per_step,
        reason_unknown=prompts.reason_unknown,
    )
    found, notes = [], set(settings.notes)
    for (step, metrics), length in zip(run.rows, lengths(run, LENGTH), strict=True):
        if step > max(scored):
            break
        own = prompts.count(metrics)
        tally.advance(step, None if own is None else own * responses, length)
        for source, scores in scored.get(step, {}).items():
            if any(name.endswith("_biased") for name in scores):
                notes.add(BIASED)
            samples = max((int(name.split("_")[2]) for name in scores if name.startswith("avg")), default=None)
            if samples is None:
                continue
            found.append(tally.row(common, step=step * updates, problem_set=source, samples=samples, scores=scores))
    if tally.tokens == 0 and found:
        notes.add(f"{LENGTH} is not logged: tokens are 0 and cannot be the unit of a fit")
    return found, sorted(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompts generated in a step.

    Attributes:
        per_step: In a step whose count is not logged, where that is known.
        reason_unknown: Why it is not known otherwise.
        count: The count that a step's metrics hold, or None.
    """

    per_step: int | None
    reason_unknown: str
    count: Callable[[Mapping[str, float]], int | None]


def _prompts(run: Run, settings: Settings, problems: int) -> Prompts:
    """How many prompts a run generated: dynamic sampling generates until a batch has passed its filter."""
    logged = {key for _, metrics in run.rows for key in metrics}
    generated = settings.optional("gen_batch_size", "data.gen_batch_size")
    if generated is None and not settings.is_configured:
        raise settings.unknown("gen_batch_size", "data.gen_batch_size")
    generated = generated or problems
    if BATCHES in logged:
        return Prompts(
            per_step=None, reason_unknown=f"dynamic sampling logs it as {BATCHES}",
            count=lambda metrics: int(metrics[BATCHES]) * generated if BATCHES in metrics else None,
        )  # fmt: skip
    if logged & set(EVICTED):
        return Prompts(
            per_step=None, reason_unknown=f"groups are evicted and replaced, which is logged as {EVICTED[0]}",
            count=lambda metrics: problems + int(sum(metrics.get(key, 0.0) for key in EVICTED))
            if any(key.startswith(TRAINED) for key in metrics) else None,
        )  # fmt: skip
    reason_unknown = ""
    if settings.flag("filter_groups", "algorithm.filter_groups.enable"):
        reason_unknown = (
            f"groups were filtered and replaced (algorithm.filter_groups), and neither {BATCHES} nor {EVICTED[0]}"
        )
        reason_unknown += " is logged"
    elif any(key.startswith("fully_async/") for key in logged):
        reason_unknown = "a fully asynchronous run generates at its own pace"
    elif generated != problems and not any(_is_true(v) for v in settings.matching(r"trainer\.use_v1").values()):
        # The V1 trainer fetches a training batch in pieces of gen_batch_size; the former one trains on what it fetched.
        reason_unknown = (
            f"gen_batch_size is {generated} with a train_batch_size {problems}, and {BATCHES} is not logged"
        )
    return Prompts(per_step=None if reason_unknown else problems, reason_unknown=reason_unknown, count=lambda _: None)


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _scores(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
    """Metric columns by data source."""
    by_source: dict[str, dict[str, float]] = {}
    for kind in ("score", "reward", "acc"):
        for name, value in metrics.items():
            match = METRIC.match(name)
            if match is None or match["kind"] != kind:
                continue
            column = {"mean": "avg", "best": "best", "worst": "worst"}[match["what"]] + f"_at_{match['k']}"
            if match["what"] != "mean":
                column += "_biased"
            by_source.setdefault(match["source"], {})[column] = value
    return by_source
