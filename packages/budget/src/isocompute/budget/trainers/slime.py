"""slime and its descendants (miles): ``rollout_batch_size`` counts prompts, ``global_batch_size`` counts samples.

Read in ``train.py``, ``train_async.py``, ``slime/utils/{arguments,misc}.py``, ``slime/rollout/sglang_rollout.py``,
``slime/rollout/filter_hub`` and ``slime/observability`` of August 2026, and in ``miles`` of the same month:

* A rollout is ``rollout_batch_size`` groups of ``n_samples_per_prompt``, split into optimizer steps by
  ``global_batch_size``; ``num_steps_per_rollout`` says the same. ``num_rollout`` counts rollouts and takes precedence
  over ``num_epoch``.
* There are three clocks: ``rollout/step`` and ``eval/step`` count rollouts from 0, ``train/step`` counts optimizer
  steps. ``wandb_always_use_train_step`` makes the first two count optimizer steps as well.
* ``eval/step`` s evaluates the policy after rollout s was trained on, if s + 1 is a multiple of ``eval_interval`` or
  ends an epoch. The evaluation before training has the step of the first rollout, 0, although it precedes it. With an
  interval of 1, the evaluation after the first rollout has the same step.
* ``dynamic_sampling_filter_path`` drops groups and generates others. ``rollout/dynamic_filter/drop_REASON`` counts the
  dropped groups of a rollout if the filter gives a reason, as slime's own filters do; a rollout that dropped none lacks
  the metric. Groups are sampled ``over_sampling_batch_size`` at a time; those in flight when the batch is full are
  aborted.
* ``rollout/response_len/mean`` covers the tokens that are trained on, without tool output, and the groups kept.
* ``eval/NAME`` is the mean reward of a set, with ``n_samples_per_eval_prompt`` samples per prompt unless
  ``eval_config`` sets another number for it. ``eval/NAME-pass@k`` (``log_passrate``) is unbiased, and counts rewards of
  1.
* ``train_async.py`` has the next rollout in flight while it trains; a fully asynchronous one has several.
"""

from __future__ import annotations

import re

from ..errors import BudgetError
from .counting import (
    Counting,
    LoggedEvaluation,
    Metrics,
    Score,
    lengths,
    mean_scores,
    metric_of_successes,
    note_no_tokens,
)
from .logs.log import Log, LogLayout
from .settings import Batching, Configuration, RunPlan, Settings, exact_quotient, product
from .trainer import LogReader, Trainer

METRIC = re.compile(r"eval/(?!step$|skipped_)(?P<set>[^/]+?)(?:-pass@(?P<k>\d+))?$")
OTHER = re.compile(r"eval/.*-(?:truncated_ratio|none_reward_ratio)$")
DROPPED = re.compile(r"rollout/dynamic_filter/drop_")
LENGTH = "rollout/response_len/mean"
TRAINED = ("rollout/response_len/", "rollout/truncated_ratio", "rollout/repetition_frac", "rollout/dynamic_filter/")
"""Metrics of a training rollout."""
FILTER = "dynamic_sampling_filter_path"
OWN_FILTERS = "check_reward_nonzero_std"
"""Part of the names of the filters that always give a reason."""


def _write(run: RunPlan) -> Configuration:
    a = run.allocation
    nodes, per_node = run.nodes
    return Configuration(
        settings={
            "rollout_batch_size": a.problems_per_batch,
            "n_samples_per_prompt": a.rollouts_per_problem,
            "global_batch_size": a.batch_rollouts,
            "num_rollout": a.update_steps,
            "micro_batch_size": run.pass_rollouts,
            "actor_num_nodes": nodes,
            "actor_num_gpus_per_node": per_node,
            **{key: degree for key, degree in run.parallelism.megatron("").items() if degree != 1},
            "lr": run.learning_rate,
        },
        notes=(
            "rollout-batch-size counts prompts, global-batch-size counts samples",
            "engines share the devices with --colocate, and have --rollout-num-gpus of their own without it",
        ),
    )


def _parse(settings: Settings) -> Batching:
    problems = settings.whole("rollout_batch_size")
    if problems is None:
        settings.note_missing("problems per batch", "rollout_batch_size")
    n = settings.whole("n_samples_per_prompt", default=1)
    updates = _updates(settings, product(problems, n))
    rollouts = settings.whole("num_rollout")
    epochs = None if rollouts else settings.whole("num_epoch")
    generations = settings.steps(rollouts, epochs, problems, "num_epoch")
    nodes = settings.whole("actor_num_nodes", default=1)
    per_node = settings.whole("actor_num_gpus_per_node", default=8)
    ranks = settings.megatron_ranks(product(nodes, per_node), "")
    settings.check_divides(settings.whole("global_batch_size"), ranks, "global_batch_size")
    if settings.find(FILTER)[1] is not None:
        settings.note_more(FILTER, " (rollout/dynamic_filter/drop_…)")
    return settings.batching(
        problems_generated=problems, rollouts_per_problem=n, generations=generations, updates=updates
    )


def _updates(settings: Settings, batch: int | None) -> int | None:
    """Optimizer steps per rollout, or None if they are unknown or not whole, which is noted."""
    said, size = settings.whole("num_steps_per_rollout"), settings.whole("global_batch_size")
    if said is None and size is None:
        settings.note_missing("optimizer steps of a rollout", "global_batch_size")
    if batch is None or size is None:
        return said
    steps = exact_quotient(batch, size)
    if steps is None or said not in (None, steps):
        settings.inconsistent.append(
            f"global_batch_size counts samples: {size:,} of the {batch:,} of a rollout do not make "
            f"{'whole optimizer steps' if said is None else f'the {said:,} of num_steps_per_rollout'}"
        )
    return steps


def _counting(log: Log, settings: Settings) -> Counting:
    """The run's count of rollouts."""
    n = settings.required("n_samples_per_prompt", default=1)
    problems, updates = settings.required("rollout_batch_size"), settings.whole("num_steps_per_rollout")
    if updates is None:
        updates = max(problems * n // settings.required("global_batch_size"), 1)
    logged, path = any(map(DROPPED.match, log.keys)), settings.find(FILTER)[1]
    if path is None and not (logged or settings.has_defaults or FILTER in settings.given):
        raise settings.missing(FILTER, choices="a path, or none")
    given = settings.whole("rollouts_per_step")
    if path is not None and not logged and OWN_FILTERS not in str(path) and given is None:
        because = f"{FILTER} is {path}, which gave no reasons, so that what it dropped is not logged"
        raise settings.missing("rollouts_per_step", because=because)
    filters = (logged or path is not None) and given is None
    clock = _clock(settings, updates)
    at_once = max(settings.whole("over_sampling_batch_size") or problems, problems)

    def own(_: Counting, __: int, metrics: Metrics) -> tuple[int | None, int]:
        if not _is_rollout(metrics):
            return None, 0
        groups = problems + sum(int(v) for k, v in metrics.items() if DROPPED.match(k))
        under_way = -(-groups // at_once) * at_once - groups
        return groups * n if filters else None, under_way * n

    return Counting(
        log=log,
        per_step=given or (None if filters else problems * n),
        reason_unknown="groups that were dropped are logged with a rollout, and that one is not",
        updates=updates,
        batch=problems * n,
        lengths=lengths(log, LENGTH),
        own=own,
        trains=_is_rollout,
        number=lambda step: step // clock + 1,
    )


def _clock(settings: Settings, updates: int) -> int:
    """What the trainer's step advances by in a rollout: 1, or its optimizer steps."""
    return updates if settings.is_on("wandb_always_use_train_step") else 1


def _is_rollout(metrics: Metrics) -> bool:
    return any(key.startswith(TRAINED) for key in metrics)


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run."""
    scores = _scores(log, settings)
    if not scores:
        return []
    counting = _counting(log, settings)
    interval, clock, rows = settings.required("eval_interval"), _clock(settings, counting.updates), dict(log.rows)

    def before(step: int) -> bool:
        if step not in scores and not _is_rollout(rows[step]):
            return True
        # The end of an epoch is evaluated too, but there are epochs only without num_rollout.
        ends_epoch = step >= clock and settings.whole("num_rollout") is None
        return (step // clock + 1) % interval != 0 and not ends_epoch

    evals = counting.evaluations(scores, before=before)
    note_no_tokens(log, settings, evals, LENGTH)
    if counting.rollouts_error:
        settings.notes.append("groups that were aborted because a batch was full are the count's error")
    return evals


def _scores(log: Log, settings: Settings) -> dict[int, dict[str, Score]]:
    """Scores by step and set."""
    logged = {key for key in log.keys if not OTHER.match(key)}
    sets = sorted(m["set"] for key in logged if (m := METRIC.match(key)) and m["k"] is None)
    found: dict[int, dict[str, Score]] = {}
    if not sets:
        return found
    wanted = settings.text("metric").removeprefix("eval/")
    if wanted and wanted not in sets:
        raise BudgetError(f"{log.name}: there is no metric eval/{wanted}; there are {', '.join(sets)}")
    samples = settings.required("n_samples_per_eval_prompt", default=1)
    if settings.find("eval_config")[1] is not None:
        settings.notes.append(f"each set of eval_config is taken to have {samples} samples to a question")
    for name in [wanted] if wanted else sets:
        mean, low = f"eval/{name}", 0.0
        by_dapo = "dapo" in settings.text("rm_type") and settings.text("eval_reward_key", "reward_key") == "score"
        if by_dapo and not settings.text("scale") and f"{mean}-pass@1" not in logged:
            settings.notes.append(f"{mean} is of rewards -1 and 1 (rm_type dapo): it is read as a success rate")
            low = -1.0
        metric = metric_of_successes(log, settings, mean, f"{mean}-pass@1")
        best = f"{mean}-pass@{samples}" if settings.text("scale") in ("", "rate") else ""
        binary = True if f"{mean}-pass@1" in logged and not settings.text("scale") else None
        settings.notes.append(f"avg_at_{samples} is {metric}")
        for step, score in mean_scores(log, metric, best, samples, low=low, binary=binary):
            found.setdefault(step, {})[name] = score
    return found


SLIME = Trainer(
    name="slime",
    title="slime",
    style="hyphens",
    write=_write,
    parse=_parse,
    logs=LogReader(
        layout=LogLayout(
            steps=("rollout/step", "eval/step", "step"),
            needed=re.compile(rf"{METRIC.pattern}|{DROPPED.pattern}|{LENGTH}$"),
        ),
        marks=re.compile(rf"{LENGTH}$|rollout/(?:raw_reward|truncated_ratio|dynamic_filter/.*)$|{OTHER.pattern}"),
        seeds=("rollout_seed", "seed"),
        learning_rates=("lr",),
        evaluations=evaluations,
        progress=lambda log, settings, _: _counting(log, settings).progress(),
        understands=("metric", "rollouts_per_step"),
    ),
    parallelism=("tensor", "pipeline", "context"),
)
