"""SkyRL: ``trainer.train_batch_size`` and ``policy_mini_batch_size`` count prompts; micro-batches count samples.

Read in ``skyrl/train/config/config.py`` and ``skyrl/train/utils/utils.py`` of 0.4: each mini-batch is an optimizer
step. ``trainer.max_training_steps`` ends a run, unless ``trainer.epochs`` ends it first. Training and inference share
their devices by default (``placement.colocate_all``), which needs as many engine devices as policy devices. The
reference model, which the default KL loss needs, has its own placement settings. Megatron provides tensor and pipeline
parallelism; FSDP provides only sequence parallelism.

Logs (``skyrl/train/{trainer,fully_async_trainer,evaluate}.py`` and ``skyrl/train/generators/utils.py`` of August 2026):

* A logged step is a batch, and is passed to the logger as its step. The evaluation before training has a step too (0,
  or the step from which a run resumed), but no ``trainer/global_step``. An evaluation comes after the step it is logged
  with.
* ``eval/SET/avg_score`` is the mean reward. ``eval/SET/pass_at_n`` is the share of questions with a reward above 0
  among ``n = eval_n_samples_per_prompt``. ``eval/all`` covers all sets together.
* ``reward/avg_pass_at_n`` has the n of training in its name.
* ``dynamic_sampling`` generates batch after batch until one is full, and does not log how many.
  ``zero_variance_filter`` drops nothing that was generated, except with ``fully_async.sample_full_batch``, whose
  dropped groups are ``async/num_groups_dropped``. A fully asynchronous run generates up to ``max_staleness_steps``
  ahead.
* ``generate/avg_num_tokens`` counts the output of tools, ``generate/avg_assistant_tokens`` (since 0.4) does not. With
  ``step_wise_trajectories``, they cover one turn, and ``generate/batch_num_seq`` counts turns.
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
from .settings import Batching, Configuration, RunPlan, Settings, Value, exact_quotient, product
from .trainer import LogReader, Trainer

POLICY, REFERENCE = "trainer.policy", "trainer.ref"
PLACEMENT = "trainer.placement"
ENGINE = "generator.inference_engine"
LENGTHS = ("generate/avg_assistant_tokens", "generate/avg_num_tokens")
SEQUENCES = ("generate/num_seq_before_merge", "generate/batch_num_seq")
DROPPED = "async/num_groups_dropped"
METRIC = re.compile(r"eval/(?P<set>[^/]+)/(?:avg_score|mean_positive_reward|pass_at_(?P<k>\d+))$")
TRAINED = re.compile(r"reward/avg_pass_at_(?P<n>\d+)$")
"""A metric that every training step logs and no evaluation does."""


def _write(run: RunPlan) -> Configuration:
    a = run.allocation
    nodes, per_node = run.nodes
    # An engine is spread like the policy if its devices are on one machine.
    tensor = run.parallelism.tensor if per_node % run.parallelism.tensor == 0 else 1
    return Configuration(
        settings={
            "trainer.train_batch_size": a.problems_per_batch,
            "generator.n_samples_per_prompt": a.rollouts_per_problem,
            "trainer.policy_mini_batch_size": a.problems_per_batch,
            "trainer.update_epochs_per_batch": 1,
            "trainer.micro_train_batch_size_per_gpu": run.pass_rollouts,
            "trainer.micro_forward_batch_size_per_gpu": run.pass_rollouts,
            f"{PLACEMENT}.policy_num_nodes": nodes,
            f"{PLACEMENT}.policy_num_gpus_per_node": per_node,
            f"{PLACEMENT}.ref_num_nodes": nodes,
            f"{PLACEMENT}.ref_num_gpus_per_node": per_node,
            f"{ENGINE}.num_engines": run.world_size // tensor,
            f"{ENGINE}.tensor_parallel_size": tensor,
            **_parallel(run),
            "trainer.max_training_steps": a.update_steps,
            "trainer.epochs": run.epochs,
            f"{POLICY}.optimizer_config.lr": run.learning_rate,
        },
        notes=(
            "policy_mini_batch_size counts prompts, the micro-batches count samples",
            f"engines and policy share {run.world_size} devices ({PLACEMENT}.colocate_all, the default): num_engines × "
            "tensor_parallel_size must equal their number",
        ),
    )


def _parallel(run: RunPlan) -> dict[str, Value]:
    """Megatron if matrices or layers are shared, FSDP if only sequences are; the same for the reference model."""
    p = run.parallelism
    if p.tensor > 1 or p.pipeline > 1:
        both = {**p.megatron(f"{POLICY}.megatron_config."), **p.megatron(f"{REFERENCE}.megatron_config.")}
        return {"trainer.strategy": "megatron", **both}
    if p.context > 1:
        return {f"{model}.sequence_parallel_size": p.context for model in (POLICY, REFERENCE)}
    return {}


def _parse(settings: Settings) -> Batching:
    problems = settings.whole("trainer.train_batch_size", default=1024)
    n = settings.whole("generator.n_samples_per_prompt", default=5)
    mini = settings.whole("trainer.policy_mini_batch_size", default=256)
    passes = settings.whole("trainer.update_epochs_per_batch") or 1
    nodes = settings.whole(f"{PLACEMENT}.policy_num_nodes", default=1)
    per_node = settings.whole(f"{PLACEMENT}.policy_num_gpus_per_node", default=1)
    world = product(nodes, per_node)
    if settings.find("trainer.strategy")[1] == "megatron":
        ranks = settings.megatron_ranks(world, f"{POLICY}.megatron_config.")
    else:
        ranks = settings.ranks(world, context=(f"{POLICY}.sequence_parallel_size",))
    mini_batches = exact_quotient(problems, mini)
    if problems and mini and mini_batches is None:
        multiple = f"is not a multiple of policy_mini_batch_size {mini:,}; both count prompts"
        settings.inconsistent.append(f"trainer.train_batch_size of {problems:,} prompts {multiple}")
    samples = product(mini, n)
    settings.check_divides(samples, ranks, "policy_mini_batch_size × n_samples_per_prompt")
    settings.check_micro_batch("trainer.micro_train_batch_size_per_gpu", samples)
    _placement(settings, world, (nodes, per_node))
    steps = settings.steps(
        settings.whole("trainer.max_training_steps"),
        settings.whole("trainer.epochs", default=1),
        problems,
        "trainer.epochs",
    )
    if settings.find("trainer.algorithm.dynamic_sampling.type")[1] is not None:
        settings.note_more("dynamic sampling")
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=n,
        generations=steps,
        updates=mini_batches * passes if mini_batches else None,
        passes=passes,
    )


def _placement(settings: Settings, world: int | None, policy: tuple[int | None, int | None]) -> None:
    """Note device counts for engines and reference model that SkyRL refuses, given those of the policy."""
    if world is None:
        return
    if settings.is_on(f"{PLACEMENT}.colocate_all", default=True):
        each = 1
        for size in ("tensor", "pipeline", "data"):
            # Releases before 0.4 use the second name.
            names = (f"{ENGINE}.{size}_parallel_size", f"generator.inference_engine_{size}_parallel_size")
            each *= settings.whole(*names) or 1
        engines = settings.whole(f"{ENGINE}.num_engines", "generator.num_inference_engines") or 1
        if engines * each != world:
            has = f"{engines} engines of {each} devices are {engines * each}, and the policy has {world}"
            settings.inconsistent.append(f"colocate_all: {has}; SkyRL requires the two to be equal")
        return
    reference = tuple(settings.whole(f"{PLACEMENT}.ref_num_{part}") or 1 for part in ("nodes", "gpus_per_node"))
    used = settings.is_on("trainer.algorithm.use_kl_loss", default=True) or settings.is_on(
        "trainer.algorithm.use_kl_in_reward"
    )
    if used and settings.is_on(f"{PLACEMENT}.colocate_policy_ref", default=True) and reference != policy:
        settings.inconsistent.append(
            f"colocate_policy_ref: the policy has {policy[0]} × {policy[1]} devices and the reference model "
            f"{reference[0]} × {reference[1]}; SkyRL requires them to be the same"
        )


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run."""
    scores = _scores(log, settings)
    if not scores:
        return []
    counting = _counting(log, settings)
    evals = counting.evaluations(scores)
    note_no_tokens(log, settings, evals, *LENGTHS)
    if counting.rollouts_error:
        settings.notes.append("rollouts that were generated ahead of their step are the count's error")
    return evals


def _counting(log: Log, settings: Settings) -> Counting:
    """The run's count."""
    logged = log.keys
    ns = sorted({int(match["n"]) for key in logged if (match := TRAINED.match(key))})
    name = "generator.n_samples_per_prompt"
    n = settings.whole(name)
    if n is None and len(ns) == 1 and not settings.has_defaults:
        raise settings.missing(name, choices=str(ns[0]))
    n = n or settings.required(name, default=5)
    if ns and ns != [n]:
        logs = " and ".join(map(str, ns))
        raise BudgetError(f"{log.name}: {name} is {n}, and its log, of other settings, has reward/avg_pass_at_{logs}")
    problems = settings.required("trainer.train_batch_size", default=1024)
    mini = settings.required("trainer.policy_mini_batch_size", default=256)
    updates = max(problems // mini, 1) * settings.required("trainer.update_epochs_per_batch", default=1)
    given, name = settings.whole("rollouts_per_step"), "trainer.algorithm.dynamic_sampling.type"
    sampling = settings.find(name)[1]
    if sampling is None and not settings.has_defaults and name not in settings.given:
        raise settings.missing(name, choices="filter, replace or none")
    if sampling and given is None:
        because = f"dynamic_sampling.type is {sampling}, and how many batches of {problems * n:,} it took is not logged"
        raise settings.missing("rollouts_per_step", because=because)
    ahead = 0
    if any(key.startswith("async/") for key in logged):
        ahead = settings.required("trainer.fully_async.max_staleness_steps", default=4) * problems * n

    def own(counting: Counting, _: int, metrics: Metrics) -> tuple[int | None, int]:
        dropped = (problems + int(metrics[DROPPED])) * n if DROPPED in metrics else None
        return dropped, ahead if counting.step == 0 else 0

    return Counting(
        log=log,
        per_step=given or (None if DROPPED in logged else problems * n),
        reason_unknown=f"groups were dropped, which is logged as {DROPPED}",
        updates=updates,
        batch=problems * n,
        lengths=_lengths(log, settings),
        own=own,
        trains=lambda metrics: any(map(TRAINED.match, metrics)),
    )


def _lengths(log: Log, settings: Settings) -> list[float]:
    """Mean tokens per response, for each row."""
    means = lengths(log, *LENGTHS)
    logged = log.keys
    if LENGTHS[1] in logged and LENGTHS[0] not in logged:
        settings.notes.append(f"tokens are {LENGTHS[1]}, which counts what tools return, too")
    if not settings.is_on("generator.step_wise_trajectories"):
        return means
    batch = product(settings.whole("trainer.train_batch_size"), settings.whole("generator.n_samples_per_prompt"))
    turns = lengths(log, *SEQUENCES)
    return [mean * turn / (batch or turn or 1) for mean, turn in zip(means, turns, strict=True)]


def _scores(log: Log, settings: Settings) -> dict[int, dict[str, Score]]:
    """Scores by step and set."""
    wanted = settings.text("metric", default="avg_score").rpartition("/")[2]
    logged = log.keys
    matches = [match for key in logged if (match := METRIC.match(key))]
    # With several sets, ``all`` is one more; with a single set, it repeats that set.
    sets = sorted({m["set"] for m in matches} - {"all"}) or ["all"]
    found: dict[int, dict[str, Score]] = {}
    if not matches:
        return found
    ks = {int(match["k"]) for match in matches if match["k"]}
    samples = ks.pop() if len(ks) == 1 else settings.required("generator.eval_n_samples_per_prompt", default=1)
    for name in sets:
        metric, best = f"eval/{name}/{wanted}", f"eval/{name}/pass_at_{samples}"
        if metric not in logged:
            raise BudgetError(f"{log.name}: there is no metric {metric}")
        metric = metric_of_successes(log, settings, metric, f"eval/{name}/mean_positive_reward")
        # pass_at_n is a share, whatever the scale of rewards.
        shares = settings.text("scale") in ("", "rate") and all(m.get(metric, 0.0) <= 1 for _, m in log.rows)
        settings.notes.append(f"avg_at_{samples} is {metric}")
        for step, score in mean_scores(log, metric, best if shares else "", samples):
            found.setdefault(step, {})[name] = score
    return found


SKYRL = Trainer(
    name="skyrl",
    title="SkyRL",
    style="hydra",
    write=_write,
    parse=_parse,
    logs=LogReader(
        layout=LogLayout(
            # SkyRL passes its own step to W&B, also for the evaluation before training.
            steps=("trainer/global_step", "step", "_step", "Step"),
            needed=re.compile(
                rf"{METRIC.pattern}|{TRAINED.pattern}|{DROPPED}$|{'|'.join(LENGTHS)}|{'|'.join(SEQUENCES)}"
            ),
        ),
        marks=re.compile(rf"{METRIC.pattern}|{TRAINED.pattern}|reward/avg_raw_reward$|{DROPPED}$|{LENGTHS[0]}$"),
        seeds=("trainer.seed",),
        learning_rates=(f"{POLICY}.optimizer_config.lr",),
        evaluations=evaluations,
        progress=lambda log, settings, _: _counting(log, settings).progress(),
        understands=("metric", "rollouts_per_step"),
    ),
    parallelism=("tensor", "pipeline", "context"),
)
