"""veRL: ``data.train_batch_size`` and ``ppo_mini_batch_size`` count prompts; micro-batches count responses.

Read in veRL 0.9: the trainer multiplies ``ppo_mini_batch_size`` by ``rollout.n`` (``verl/trainer/ppo/ray_trainer.py``),
so with ``ppo_mini_batch_size = data.train_batch_size`` a batch gets one optimizer step.
``trainer.total_training_steps`` does not lengthen a run that ``trainer.total_epochs`` ends first. Each engine has its
own names for the sizes of its parallelism. ``verl/utils/config.py`` requires B to be divisible by Megatron's
data-parallel ranks times their micro-batch, and by *all* devices with every other engine. The former trainer
(``trainer.use_v1=False``) with ``algorithm.adv_estimator=remax`` samples one greedy response per prompt in addition to
n; the default trainer has no such baseline. The default trainer's asynchronous modes generate ``num_warmup_batches``
ahead and refill what they evict; ``separate_async`` samples on devices of its own (``rollout.nnodes`` ×
``rollout.n_gpus_per_node``). The log has ``train/num_gen_batches`` (former trainer) or what was evicted and discarded
(``verl/trainer/ppo/v1/replay_buffer.py``): these are counts of prompts, in spite of their name, and zeros are omitted.
veRL's best@k and worst@k resample with replacement.

The fully asynchronous trainer (``verl/experimental/fully_async_policy``) needs ``data.train_batch_size=0``. A logged
step is a version of the parameters, after ``async_training.trigger_parameter_sync_step`` fetches of ``require_batches``
mini-batches; ``training/global_step`` counts the fetches. ``fully_async/count/total_generated_samples`` counts the
prompts that were answered before a sample of the last fetch; at most ``1 + staleness_threshold`` versions are ahead of
training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from ..errors import BudgetError
from .counting import (
    LARGEST_COUNT,
    Counting,
    LoggedEvaluation,
    Metrics,
    Own,
    Score,
    Spread,
    StepCounts,
    lengths,
    note_no_tokens,
)
from .logs.log import Log, LogLayout
from .settings import Batching, Configuration, RunPlan, Settings, Value, exact_quotient, product
from .trainer import LogReader, Trainer

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
V1 = "trainer.v1"
BATCHES = "train/num_gen_batches"
EVICTED = (
    "training/filter_groups/evicted_samples",
    "training/filter_groups/discarded_surplus_samples",
    "training/off_policy/evicted_samples",
    "training/rollout_failure/evicted_samples",
)
ASYNC = "async_training"
GENERATED = "fully_async/count/total_generated_samples"
TRAINED = ("training/", "actor/", "critic/", "response_length/", "timing_s/")
"""Prefixes of metrics that only a training step logs, not an evaluation alone."""
LENGTH, TOKENS = "response_length/mean", "perf/total_num_tokens"


def _progress(log: Log, settings: Settings, batching: Batching) -> StepCounts:
    counting = _counting(log, settings, batching, lengths(log, LENGTH))
    if _is_fully_async(settings):
        return counting.progress()
    n, problems = settings.required(f"{ROLLOUT}.n"), settings.required("data.train_batch_size")
    counts = counting.progress(one_in=n + 1 if batching.baseline_rollouts else 0)
    mode = settings.text(f"{V1}.trainer_mode", default="sync")
    if mode == "sync" or not is_v1(settings):
        return counts
    warm_up = settings.whole(f"{V1}.{mode}.num_warmup_batches") or 1
    return replace(counts, ahead=warm_up * problems * n)


def _counting(log: Log, settings: Settings, batching: Batching, tokens: Sequence[float]) -> Counting:
    """The run's count."""
    n = settings.required(f"{ROLLOUT}.n")
    mini = settings.required(f"{ACTOR}.ppo_mini_batch_size")
    if _is_fully_async(settings):
        per_step, reason_unknown, own, updates = _versions(settings, mini, n)
        batch = batching.batch_rollouts or 0
    else:
        if settings.find("data.train_batch_size")[1] in (None, 0) and GENERATED in log.keys:
            raise settings.missing(f"{ASYNC}.trigger_parameter_sync_step")
        problems = settings.required("data.train_batch_size")
        updates = max(problems // mini, 1) * settings.required(f"{ACTOR}.ppo_epochs", default=1)
        trained = _trained_responses(log)
        per_step, reason_unknown, own = _prompts(log, settings, problems, n + batching.baseline_rollouts)
        batch = problems * n
        said = settings.find("rollouts_per_step")[1] is not None
        # Rounded means put the batch off by some responses, another n by many.
        if trained and abs(trained - batch) > batch / 100 and not (reason_unknown or said):
            fits = {f"{ROLLOUT}.n": problems, "data.train_batch_size": n}
            right = [f"{name}={trained // other}" for name, other in fits.items() if trained % other == 0]
            settings.inconsistent.append(
                f"each step trained on {trained:,} responses ({TOKENS} and their mean lengths), and {problems:,} "
                f"problems × {n:,} are {batch:,}: set {' or '.join([*right, 'rollouts_per_step where both are right'])}"
            )
    return Counting(
        log=log,
        per_step=per_step,
        reason_unknown=reason_unknown,
        updates=updates,
        batch=batch,
        lengths=tokens,
        own=own,
        trains=_trains,
    )


def _trains(metrics: Metrics) -> bool:
    return any(key.startswith(TRAINED) for key in metrics)


def _is_fully_async(settings: Settings) -> bool:
    """Return whether the settings belong to the fully asynchronous trainer."""
    return bool(settings.matching(rf"{ASYNC}\..*"))


def _fetches(settings: Settings) -> tuple[int, int]:
    """Fetches of the fully asynchronous trainer per version of the parameters, and mini-batches per fetch."""
    fetches = settings.whole(f"{ASYNC}.trigger_parameter_sync_step", default=4) or 4
    return fetches, settings.whole(f"{ASYNC}.require_batches", default=1) or 1


def _versions(settings: Settings, mini: int, n: int) -> tuple[int | None, str, Own, int]:
    """Count a fully asynchronous run, whose steps are versions of the parameters; also their optimizer steps."""
    fetches, batches = _fetches(settings)
    each = mini * fetches * batches * n
    given = settings.whole("rollouts_per_step")
    stale = settings.find(f"{ASYNC}.staleness_threshold")[1]
    settings.notes.append(f"a step is a version of the parameters, of {each:,} responses; those ahead are the error")

    def own(counting: Counting, step: int, metrics: Metrics) -> tuple[int | None, int]:
        if given is not None or step <= counting.step:
            return None, 0
        # The backlog waiting to be trained on is bounded, but not logged.
        counting.rollouts_error = int((1 + (stale if isinstance(stale, int | float) else 0.1)) * each)
        generated = metrics.get(GENERATED)
        if generated is None or not 0 <= generated * n < LARGEST_COUNT:
            return None, 0
        # A resumed run restarts this count.
        total = max(int(generated) * n, step * each)
        return max(total - counting.rollouts - (step - counting.step - 1) * each, 0), 0

    return given or each, "", own, fetches * batches * settings.required(f"{ACTOR}.ppo_epochs", default=1)


def _trained_responses(log: Log) -> int | None:
    """The responses per step, if tokens and mean lengths give one number for several steps."""
    of_prompts = "prompt_length/mean"
    rows = [(s, m) for s, m in log.rows if {of_prompts, TOKENS, LENGTH} <= m.keys() and m[of_prompts] + m[LENGTH] > 0]
    sizes = [(step, round(m[TOKENS] / (m[of_prompts] + m[LENGTH]))) for step, m in rows]
    parts = [list(part) for _, part in groupby(sizes, key=itemgetter(1))]
    # If groups are dropped, every step has its own size, which is uninformative.
    if len(parts) > 1 and 2 * len(parts) <= len(sizes):
        (until, before), (begin, after) = parts[0][-1], parts[1][0]
        raise BudgetError(
            f"{log.name}: trained on {before:,} responses up to step {until:,} and on {after:,} from step {begin:,} on "
            f"({TOKENS}), so that it is no run of one n and one batch"
        )
    return sizes[0][1] if len(parts) == 1 and len(sizes) > 1 else None


def _prompts(log: Log, settings: Settings, problems: int, responses: int) -> tuple[int | None, str, Own]:
    """Find where a run's prompts are counted, each with all its responses, since a filter may have replaced some."""
    logged, key = log.keys, "data.gen_batch_size"
    generated = settings.whole(key)
    if generated is None and BATCHES in logged and not settings.has_defaults and key not in settings.given:
        raise settings.missing(key)
    if generated is None:
        settings.notes.append(f"{key} is not set; its default, the {problems:,} of data.train_batch_size, is assumed")
        generated = problems
    evicts = not logged.isdisjoint(EVICTED)
    reason_unknown = ""
    if BATCHES in logged:
        reason_unknown = f"dynamic sampling logs it as {BATCHES}"
    elif evicts:
        reason_unknown = f"groups are evicted and replaced, which is logged as {EVICTED[0]}"
    elif settings.required_switch("algorithm.filter_groups.enable"):
        reason_unknown = f"groups were filtered and replaced, and neither {BATCHES} nor {EVICTED[0]} is logged"
    elif any(name.startswith("fully_async/") for name in logged):
        reason_unknown = "a fully asynchronous run generates at its own pace"
    elif generated != problems and settings.find("trainer.use_v1")[1] is not True:
        # The V1 trainer fetches a training batch in pieces of gen_batch_size; the former one trains on what it fetched.
        reason_unknown = f"gen_batch_size is {generated}, train_batch_size {problems}, and {BATCHES} is not logged"

    def own(_: Counting, __: int, metrics: Metrics) -> tuple[int | None, int]:
        if BATCHES in logged:
            return int(metrics[BATCHES]) * generated * responses if BATCHES in metrics else None, 0
        if evicts and _trains(metrics):
            return (problems + int(sum(metrics.get(name, 0.0) for name in EVICTED))) * responses, 0
        return None, 0

    per_step = settings.whole("rollouts_per_step") or (None if reason_unknown else problems * responses)
    return per_step, reason_unknown, own


def is_v1(settings: Settings) -> bool:
    """Return whether this is the trainer that is the default since 0.9."""
    return settings.is_on("trainer.use_v1", default=True)


# MLflow refuses @, so veRL writes _at_ there. worst@k appears only under val-aux.
METRIC = re.compile(
    r"^val-(?:core|aux)/(?P<source>.+)/(?P<kind>[^/]+)/(?P<what>mean|best|worst|std)"
    r"(?:@|_at_)(?P<k>\d+)(?P<mean>/mean)?$"
)
BIASED = (
    "best@k and worst@k resample with replacement, which is biased: they are best_at_k_biased and worst_at_k_biased"
)


def _write(run: RunPlan) -> Configuration:
    a = run.allocation
    nodes, per_node = run.nodes
    even = "rollout.tensor_model_parallel_size is 2 unless it is set, and must divide the devices"
    return Configuration(
        settings={
            **_parallel(run),
            "data.train_batch_size": a.problems_per_batch,
            f"{ROLLOUT}.n": a.rollouts_per_problem,
            f"{ACTOR}.ppo_mini_batch_size": a.problems_per_batch,
            f"{ACTOR}.ppo_epochs": 1,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": run.pass_rollouts,
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": run.pass_rollouts,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": run.pass_rollouts,
            # The default of 2 does not fit an odd number of devices.
            f"{ROLLOUT}.tensor_model_parallel_size": 1 if run.world_size % 2 else None,
            "trainer.nnodes": nodes,
            "trainer.n_gpus_per_node": per_node,
            "trainer.total_training_steps": a.update_steps,
            "trainer.total_epochs": run.epochs,
            f"{ACTOR}.optim.lr": run.learning_rate,
        },
        notes=(
            "ppo_mini_batch_size counts prompts: the trainer multiplies it by rollout.n",
            "trainer.total_epochs is large enough for the steps, which would otherwise end early without an error",
            *((even,) if run.world_size % 2 == 0 else ()),
        ),
    )


def _parallel(run: RunPlan) -> dict[str, Value]:
    """Megatron if matrices or layers are shared, FSDP with Ulysses if only sequences are."""
    p = run.parallelism
    if p.tensor > 1 or p.pipeline > 1:
        return {"model_engine": "megatron", **p.megatron(f"{ACTOR}.megatron.")}
    if p.context == 1:
        return {}
    over = run.allocation.batch_rollouts % run.world_size
    if over:
        raise BudgetError(
            f"without Megatron, veRL splits a batch over all {run.world_size} devices, not over {run.data_parallel} "
            f"data-parallel ranks; {run.allocation.batch_rollouts:,} rollouts leave {over} over"
        )
    return {f"{ACTOR}.ulysses_sequence_parallel_size": p.context, "actor_rollout_ref.model.use_remove_padding": True}


def _parse(settings: Settings) -> Batching:
    n = settings.whole(f"{ROLLOUT}.n", default=1)
    mini = settings.whole(f"{ACTOR}.ppo_mini_batch_size", default=256)
    if _is_fully_async(settings):
        return _parse_fully_async(settings, mini, n)
    problems = settings.whole("data.train_batch_size", default=1024)
    passes = settings.whole(f"{ACTOR}.ppo_epochs") or 1
    nodes = settings.whole("trainer.nnodes", default=1)
    world = product(nodes, settings.whole("trainer.n_gpus_per_node", default=8))
    ranks, megatron = _ranks(settings, world)
    mini_batches = exact_quotient(problems, mini)
    if problems and mini and mini_batches is None:
        settings.inconsistent.append(
            f"data.train_batch_size of {problems:,} prompts is not a multiple of ppo_mini_batch_size {mini:,}; "
            "both count prompts, so do not multiply ppo_mini_batch_size by rollout.n"
        )
    dynamic = settings.is_on(f"{ACTOR}.use_dynamic_bsz")
    sharing = ranks if megatron or dynamic else world
    settings.check_divides(product(problems, n), sharing, "data.train_batch_size × rollout.n")
    if mini != problems:
        settings.check_divides(product(mini, n), ranks, "ppo_mini_batch_size × rollout.n")
    if not dynamic:
        micro = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
        parts = {"a mini-batch": mini, **({"a batch": problems} if megatron and mini != problems else {})}
        for name, prompts in parts.items():
            of = f"that a data-parallel rank has of {name} ({prompts or 0:,} prompts × {n} / {ranks})"
            settings.check_micro_batch(micro, product(prompts, n), of)
    generated, filters = settings.whole("data.gen_batch_size"), settings.is_on("algorithm.filter_groups.enable")
    # The former trainer's loader gives batches of gen_batch_size; a step takes one or more of them.
    loaded = bool(filters and generated and problems and generated != problems and not is_v1(settings))
    fetched = generated if loaded else problems
    least = -(-problems // fetched) if problems and fetched else 1
    epochs = settings.whole("trainer.total_epochs", default=30)
    steps = settings.steps(
        settings.whole("trainer.total_training_steps"), epochs, fetched and fetched * least, "trainer.total_epochs"
    )
    if loaded and fetched:
        whole = product(epochs, settings.problems and settings.problems // fetched, fetched, n)
        most = "" if whole is None else f"at most {whole:,} rollouts and "
        settings.notes.append(
            f"the former trainer loads {fetched:,} prompts at once, of which a step takes {least:,} or more batches: "
            f"{most}fewer steps than planned, where groups are filtered (train/num_gen_batches)"
        )
    elif filters or (generated and problems and generated != problems):
        settings.note_more("filter_groups", " (training/filter_groups/evicted_samples)")
    remax = settings.find("algorithm.adv_estimator")[1] == "remax" and not is_v1(settings)
    if remax:
        settings.notes.append("remax samples a greedy response per prompt as its baseline, in addition to rollout.n")
    mode = settings.text(f"{V1}.trainer_mode", default="sync")
    if mode != "sync" and is_v1(settings):
        ahead = settings.find(f"{V1}.{mode}.num_warmup_batches")[1] or 1
        settings.notes.append(f"{mode} starts {ahead} batches ahead, and replaces what it evicts, in addition")
        if mode == "separate_async":
            settings.notes.append(f"{mode} samples on {ROLLOUT}.nnodes × {ROLLOUT}.n_gpus_per_node further devices")
    updates = mini_batches * passes if mini_batches else None
    return settings.batching(
        problems_generated=fetched,
        rollouts_per_problem=n,
        generations=steps and steps * least,
        updates=updates,
        passes=passes,
        problems_per_batch=mini if loaded else None,
        update_steps=steps * updates if loaded and steps and updates else None,
        baseline_rollouts=int(remax),
    )


def _parse_fully_async(settings: Settings, mini: int | None, n: int | None) -> Batching:
    """Interpret the settings of the fully asynchronous trainer."""
    fetches, batches = _fetches(settings)
    passes = settings.whole(f"{ACTOR}.ppo_epochs") or 1
    prompts = settings.whole("rollout.total_rollout_steps")
    if prompts is None:
        settings.note_missing("update steps", "rollout.total_rollout_steps")
    nodes = settings.whole("trainer.nnodes", default=1)
    _ranks(settings, product(nodes, settings.whole("trainer.n_gpus_per_node", default=8)))
    problems = product(mini, fetches, batches)
    settings.notes.append("up to 1 + staleness_threshold versions are generated ahead, on further devices")
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=n,
        generations=prompts // problems if prompts and problems else None,
        updates=fetches * batches * passes,
        passes=passes,
    )


def _ranks(settings: Settings, world: int | None) -> tuple[int | None, bool]:
    """Data-parallel ranks, and whether they are Megatron's, which setting its degrees implies."""
    said, file = settings.find("model_engine", f"{ACTOR}.strategy")[1], settings.find("config_name")[1]
    if said is None and isinstance(file, str) and "megatron" in file:
        said = "megatron"
    if said is None and settings.matching(rf"{re.escape(ACTOR)}\.megatron\..*"):
        said = "megatron"
    if said == "megatron":
        return settings.megatron_ranks(world, f"{ACTOR}.megatron."), True
    sequences = (f"{ACTOR}.ulysses_sequence_parallel_size", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")
    larger = [name for name in sequences if settings.find(name)[1] not in (None, 1)]
    return settings.ranks(world, context=larger[:1] or sequences), False


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run for the variable that ``metric`` names, by default ``acc``, else ``reward``."""
    kinds = _kinds(log, settings)
    scored = {step: scores for step, scores in ((s, _scores(metrics, kinds)) for s, metrics in log.rows) if scores}
    if not scored:
        return []
    counting = _counting(log, settings, batching, _model_lengths(log, settings))
    if any(name.endswith("_biased") for step in scored.values() for of in step.values() for name in of):
        settings.notes.append(BIASED)
    found = {
        step: {s: score for s, of in by_source.items() if (score := _score(f"{s}/{kinds[s]}", of)) is not None}
        for step, by_source in scored.items()
    }
    evals = counting.evaluations(found)
    note_no_tokens(log, settings, evals, LENGTH)
    return evals


def _score(name: str, scores: Mapping[str, float]) -> Score | None:
    """The score of a variable; None if no mean is logged."""
    samples = max((int(column.split("_")[2]) for column in scores if column.startswith("avg")), default=0)
    if not samples:
        return None
    return Score(
        samples=samples,
        scores={column: score for column, score in scores.items() if not column.startswith("std")},
        metric=f"{name}/mean@{samples}",
        spread=Spread(deviation=scores.get(f"std_at_{samples}"), size=samples),
    )


def _kinds(log: Log, settings: Settings) -> dict[str, str]:
    """The variable to read for each data source; one for all its metrics, since each variable has its own scale."""
    by_source: dict[str, set[str]] = {}
    for name in log.keys:
        if match := METRIC.match(name):
            by_source.setdefault(match["source"], set()).add(match["kind"])
    wanted = settings.text("metric")
    lacking = next((source for source, kinds in sorted(by_source.items()) if wanted and wanted not in kinds), None)
    if lacking is not None:
        kinds = ", ".join(sorted(by_source[lacking]))
        raise BudgetError(f"{log.name}: metric is {wanted!r}, which is not logged of {lacking}; there are {kinds}")
    chosen = [(s, k) for s, kinds in by_source.items() for k in (wanted, "acc", "reward", "score") if k in kinds]
    # The first one counts.
    return dict(reversed(chosen))


def _scores(metrics: Mapping[str, float], kinds: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Metric columns by data source, and mean deviations as ``std_at_k``."""
    by_source: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        match = METRIC.match(name)
        if match and match["kind"] == kinds.get(match["source"]):
            kind, biased = {"mean": ("avg", ""), "std": ("std", "")}.get(match["what"], (match["what"], "_biased"))
            by_source.setdefault(match["source"], {})[f"{kind}_at_{match['k']}{biased}"] = value
    return by_source


def _model_lengths(log: Log, settings: Settings) -> list[float]:
    """Mean tokens that the model wrote, for each row; 0 if tools wrote a part of the responses."""
    most = max((metrics.get("num_turns/mean", 0.0) for _, metrics in log.rows), default=0.0)
    calls = max((metrics.get("tool_call_counts/mean", 0.0) for _, metrics in log.rows), default=0.0)
    if most <= 2 and calls <= 0:
        return lengths(log, LENGTH)
    settings.notes.append(f"{LENGTH} counts what tools wrote (num_turns/mean is up to {most:g}): tokens are 0")
    return [0.0] * len(log.rows)


VERL = Trainer(
    name="verl",
    title="veRL",
    style="hydra",
    write=_write,
    parse=_parse,
    logs=LogReader(
        layout=LogLayout(
            # veRL passes its own step to W&B, also in evaluation rows, which have no training/global_step.
            steps=("step", "_step", "Step", "training/global_step", "global_step"),
            needed=re.compile(rf"val-|{LENGTH}$|{BATCHES}$|{'|'.join(EVICTED)}"),
        ),
        marks=re.compile(r"val-(?:core|aux)/|response_length/mean$|training/global_step$"),
        seeds=("data.seed", f"{ACTOR}.data_loader_seed"),
        learning_rates=(f"{ACTOR}.optim.lr",),
        evaluations=evaluations,
        progress=_progress,
        rate="actor/lr",
        understands=("metric", "rollouts_per_step"),
    ),
    parallelism=("tensor", "pipeline", "context"),
)
