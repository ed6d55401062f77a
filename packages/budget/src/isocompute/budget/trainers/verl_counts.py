"""What veRL generated, step by step, from its logs; ``verl`` says where it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from .batching import Batching
from .counting import Progressed, Tally, lengths
from .logs.log import Log
from .settings import Settings

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
V1 = "trainer.v1"
BATCHES = "train/num_gen_batches"
EVICTED = (
    "training/filter_groups/evicted_samples", "training/filter_groups/discarded_surplus_samples",
    "training/off_policy/evicted_samples", "training/rollout_failure/evicted_samples",
)  # fmt: skip
TRAINED = ("training/", "actor/", "critic/", "response_length/", "timing_s/")
"""What only the log of a training step holds, not that of an evaluation alone."""
LENGTH = "response_length/mean"


def progress(log: Log, settings: Settings, batching: Batching) -> Progressed:
    """What each step of a run generated for training."""
    tally, rollouts, updates = counting(log, settings, batching)
    points = []
    for (step, metrics), length in zip(log.rows, lengths(log, LENGTH), strict=True):
        if any(key.startswith(TRAINED) for key in metrics):
            tally.advance(step, rollouts(metrics), length)
            points.append(tally.progress(logged=step, step=step * updates))
    last, n = points[-1] if points else None, settings.required(f"{ROLLOUT}.n")
    problems = settings.required("data.train_batch_size")
    prompts = (last.rollouts if last else 0) // (n + batching.baseline_rollouts)
    found = Progressed.of(
        points,
        tally.per_step,
        plain=(last.logged if last else 0) * problems * n,
        baselines=prompts * batching.baseline_rollouts,
    )
    mode = settings.text(f"{V1}.trainer_mode", default="sync")
    if mode == "sync" or not is_v1(settings):
        return found
    warm_up = settings.whole(f"{V1}.{mode}.num_warmup_batches") or 1
    return replace(found, ahead=warm_up * problems * n)


def counting(
    log: Log, settings: Settings, batching: Batching
) -> tuple[Tally, Callable[[Mapping[str, float]], int | None], int]:
    """The run's count, the rollouts that a step's metrics say it generated, and the optimizer steps of each step."""
    n = settings.required(f"{ROLLOUT}.n")
    problems = settings.required("data.train_batch_size")
    mini = settings.required(f"{ACTOR}.ppo_mini_batch_size")
    updates = max(problems // mini, 1) * settings.required(f"{ACTOR}.ppo_epochs", default=1)
    prompts = _prompts(log, settings, problems)
    responses = n + batching.baseline_rollouts

    def rollouts(metrics: Mapping[str, float]) -> int | None:
        own = prompts.count(metrics)
        return None if own is None else own * responses

    per_step = None if prompts.per_step is None else prompts.per_step * responses
    tally = Tally(
        where=log.name,
        per_step=settings.whole("rollouts_per_step") or per_step,
        reason_unknown=prompts.reason_unknown,
    )
    return tally, rollouts, updates


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


def _prompts(log: Log, settings: Settings, problems: int) -> Prompts:
    """How many prompts a run generated: dynamic sampling generates until a batch has passed its filter."""
    logged = {key for _, metrics in log.rows for key in metrics}
    generated = settings.whole("data.gen_batch_size")
    if generated is None and not settings.has_defaults:
        raise settings.missing("data.gen_batch_size")
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
    if settings.required_switch("algorithm.filter_groups.enable"):
        reason_unknown = (
            f"groups were filtered and replaced (algorithm.filter_groups), and neither {BATCHES} nor {EVICTED[0]} is "
            "logged"
        )
    elif any(key.startswith("fully_async/") for key in logged):
        reason_unknown = "a fully asynchronous run generates at its own pace"
    elif generated != problems and settings.find("trainer.use_v1")[1] is not True:
        # The V1 trainer fetches a training batch in pieces of gen_batch_size; the former one trains on what it fetched.
        reason_unknown = (
            f"gen_batch_size is {generated} with a train_batch_size {problems}, and {BATCHES} is not logged"
        )
    return Prompts(per_step=None if reason_unknown else problems, reason_unknown=reason_unknown, count=lambda _: None)


def is_v1(settings: Settings) -> bool:
    """Whether the trainer is the one that is the default since 0.9."""
    return settings.is_on("trainer.use_v1", default=True)


def has_baseline(settings: Settings) -> bool:
    """Whether a greedy response to each prompt is sampled as well; releases before V1 have no ``use_v1``."""
    return settings.find("algorithm.adv_estimator")[1] == "remax" and not is_v1(settings)
