"""veRL: ``data.train_batch_size`` and ``ppo_mini_batch_size`` count prompts; micro-batches count responses.

Read in veRL 0.9: the trainer multiplies ``ppo_mini_batch_size`` by ``rollout.n`` (``verl/trainer/ppo/ray_trainer.py``),
so that with ``ppo_mini_batch_size = data.train_batch_size`` a batch gets one optimizer step;
``trainer.total_training_steps`` does not lengthen a run that ``trainer.total_epochs`` ends first. Each engine has its
own names for the sizes of its parallelism; ``verl/utils/config.py`` requires B to be divisible by the data-parallel
ranks of Megatron times their micro-batch, and by *all* devices with every other engine.
The former trainer (``trainer.use_v1=False``) samples one greedy response for each prompt in addition to n with
``algorithm.adv_estimator=remax``; the default one has no such baseline. Its asynchronous modes generate
``num_warmup_batches`` ahead and refill what they evict; ``separate_async`` samples on devices of its own
(``rollout.nnodes`` × ``rollout.n_gpus_per_node``). Logged are ``train/num_gen_batches`` (former) or what was evicted
and discarded (``verl/trainer/ppo/v1/replay_buffer.py``): counts of prompts, in spite of their name, of which zeros are
left out. Its best@k and worst@k resample with replacement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import BudgetError
from .batching import Batching
from .counting import Evaluation, best_samples, lengths
from .logs.log import Layout, Log
from .settings import Settings, exact_quotient
from .target import Configuration, Run, Value
from .trainer import LogReader, Trainer
from .verl_counts import ACTOR, BATCHES, EVICTED, LENGTH, ROLLOUT, V1, counting, has_baseline, is_v1, progress

# MLflow refuses @, and veRL writes _at_ there. worst@k is only ever under val-aux.
METRIC = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/(?P<kind>acc|reward|score)/(?P<what>mean|best|worst)"
                    r"(?:@|_at_)(?P<k>\d+)(?P<mean>/mean)?$")  # fmt: skip
BIASED = (
    "veRL resamples with replacement for best@k and worst@k, which is biased (one success in four logs best@4 = "
    "0.687, exactly 1): they are kept as best_at_k_biased and worst_at_k_biased"
)

# Names of tensor, pipeline and context parallelism by engine; fsdp and fsdp2 have one engine's names.
DEGREES = {
    "megatron": ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    "torchtitan": ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"),
    "automodel": ("tp_size", "pp_size", "cp_size"),
    "veomni": ("", "", "ulysses_parallel_size"),
}


def write(run: Run) -> Configuration:
    """Settings for a run.

    Raises:
        BudgetError: Sequence parallelism without Megatron, and a batch that cannot be split evenly over all devices.
    """
    a = run.allocation
    nodes, per_node = run.nodes
    notes = [
        "ppo_mini_batch_size counts prompts: the trainer multiplies it by rollout.n",
        "trainer.total_epochs is large enough for the steps, which would otherwise end early without an error",
    ]
    if run.world_size % 2 == 0:
        notes.append("rollout.tensor_model_parallel_size is 2 unless it is set, and must divide the devices")
    return Configuration(
        framework="verl",
        settings={
            **_parallel(run),
            "data.train_batch_size": a.problems_per_batch,
            f"{ROLLOUT}.n": a.rollouts_per_problem,
            f"{ACTOR}.ppo_mini_batch_size": a.problems_per_batch,
            f"{ACTOR}.ppo_epochs": 1,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": run.pass_rollouts,
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": run.pass_rollouts,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": run.pass_rollouts,
            # Its default of 2 does not fit an odd number of devices.
            **({f"{ROLLOUT}.tensor_model_parallel_size": 1} if run.world_size % 2 else {}),
            "trainer.nnodes": nodes,
            "trainer.n_gpus_per_node": per_node,
            "trainer.total_training_steps": a.update_steps,
            "trainer.total_epochs": run.epochs,
            **run.learning_rate_setting(f"{ACTOR}.optim.lr"),
        },
        notes=tuple(notes),
    )


def _parallel(run: Run) -> dict[str, Value]:
    """Megatron where matrices or layers are shared, FSDP with Ulysses where only sequences are."""
    p = run.parallelism
    if p.tensor > 1 or p.pipeline > 1:
        degrees = zip(DEGREES["megatron"], (p.tensor, p.pipeline, p.context), strict=True)
        return {"model_engine": "megatron", **{f"{ACTOR}.megatron.{name}": degree for name, degree in degrees}}
    if p.context == 1:
        return {}
    over = run.allocation.batch_rollouts % run.world_size
    if over:
        raise BudgetError(
            f"veRL requires a batch that can be split evenly over all {run.world_size} devices, and not only over the "
            f"{run.data_parallel} data-parallel ranks, unless it trains with Megatron (tensor or pipeline "
            f"parallelism); {run.allocation.batch_rollouts:,} rollouts leave {over} over"
        )
    return {f"{ACTOR}.ulysses_sequence_parallel_size": p.context, "actor_rollout_ref.model.use_remove_padding": True}


def parse(settings: Settings) -> Batching:
    """Interpret veRL's settings."""
    problems = settings.whole("data.train_batch_size", default=1024)
    n = settings.whole(f"{ROLLOUT}.n", default=1)
    mini = settings.whole(f"{ACTOR}.ppo_mini_batch_size", default=256)
    passes = settings.whole(f"{ACTOR}.ppo_epochs") or 1
    nodes = settings.whole("trainer.nnodes", default=1)
    per_node = settings.whole("trainer.n_gpus_per_node", default=8)
    world = nodes * per_node if nodes and per_node else None
    engine, ranks = _engine(settings, world)
    mini_batches = exact_quotient(problems, mini)
    if problems and mini and mini_batches is None:
        settings.inconsistent.append(
            f"data.train_batch_size of {problems:,} prompts is not a multiple of ppo_mini_batch_size {mini:,}; "
            "both count prompts, so do not multiply ppo_mini_batch_size by rollout.n"
        )
    dynamic = settings.is_on(f"{ACTOR}.use_dynamic_bsz")
    sharing = ranks if engine == "megatron" or dynamic else world
    settings.check_divides(settings.product(problems, n), sharing, world, "data.train_batch_size × rollout.n")
    if mini != problems:
        settings.check_divides(settings.product(mini, n), ranks, world, "ppo_mini_batch_size × rollout.n")
    if not dynamic:
        parts = {"a mini-batch": mini, **({"a batch": problems} if engine == "megatron" and mini != problems else {})}
        _check_micro_batch(settings, parts, n, ranks)
    steps = settings.steps(
        settings.whole("trainer.total_training_steps"),
        settings.whole("trainer.total_epochs", default=30),
        problems,
        "trainer.total_epochs",
    )
    generated = settings.whole("data.gen_batch_size")
    if settings.is_on("algorithm.filter_groups.enable") or (generated and problems and generated != problems):
        settings.notes.append(
            "filter_groups generates until a batch is full, so more than B_p · n · M rollouts; how many is known "
            "only afterwards (training/filter_groups/evicted_samples)"
        )
    remax = has_baseline(settings)
    if remax:
        settings.notes.append(
            "remax samples one greedy response per prompt in addition to rollout.n, as its baseline, which is paid for "
            "and not trained on"
        )
    mode = settings.text(f"{V1}.trainer_mode", default="sync")
    if mode != "sync" and is_v1(settings):
        ahead = settings.values.get(f"{V1}.{mode}.num_warmup_batches", 1)
        settings.notes.append(
            f"{mode} starts {ahead} batches ahead, and replaces what it evicts, in addition to B_p · n · M rollouts"
        )
        if mode == "separate_async":
            settings.notes.append(f"{mode} samples on {ROLLOUT}.nnodes × {ROLLOUT}.n_gpus_per_node further devices")
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=n,
        generations=steps,
        updates=mini_batches * passes if mini_batches else None,
        passes=passes,
        world_size=world,
        data_parallel=ranks,
        baseline_rollouts=int(remax),
    )


def _check_micro_batch(settings: Settings, of: Mapping[str, int | None], n: int | None, ranks: int | None) -> None:
    """Note a micro-batch that does not divide a rank's share of the parts that veRL checks.

    Args:
        of: Prompts of each part, by its name.
    """
    micro = settings.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    for name, prompts in of.items():
        share = exact_quotient(settings.product(prompts, n), ranks)
        if micro and share and share % micro:
            settings.inconsistent.append(
                f"ppo_micro_batch_size_per_gpu counts responses: {micro} does not divide the {share:,} that a "
                f"data-parallel rank has of {name} ({prompts:,} prompts × {n} / {ranks})"
            )


def _engine(settings: Settings, world: int | None) -> tuple[str, int | None]:
    """The training engine, and its data-parallel ranks."""
    said = settings.find("model_engine", f"{ACTOR}.strategy")[1]
    file = settings.values.get("config_name")
    if said is None and (isinstance(file, str) and "megatron" in file):
        said = "megatron"
    if said is None:
        # Settings for Megatron's degrees imply Megatron, which may be chosen in another file.
        said = next(
            (name for name in DEGREES if any(k.startswith(f"{ACTOR}.{name}.") for k in settings.values)), "fsdp"
        )
    engine = said if isinstance(said, str) and said in DEGREES else "fsdp"
    if engine == "fsdp":
        sequences = (f"{ACTOR}.ulysses_sequence_parallel_size", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")
        larger = [name for name in sequences if settings.values.get(name) not in (None, 1)]
        return engine, settings.ranks(world, context=larger[:1] or sequences)
    tensor, pipeline, context = ((f"{ACTOR}.{engine}.{name}",) if name else () for name in DEGREES[engine])
    return engine, settings.ranks(world, tensor=tensor, pipeline=pipeline, context=context)


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[Evaluation]:
    """The evaluations of a run; ``acc`` goes before ``reward`` where both are logged.

    Raises:
        BudgetError: A setting that is needed is missing, or a count in the log is impossible.
    """
    scored = {step: scores for step, scores in ((s, _scores(metrics)) for s, metrics in log.rows) if scores}
    if not scored:
        return []
    tally, rollouts, updates = counting(log, settings, batching)
    found: list[Evaluation] = []
    for (step, metrics), length in zip(log.rows, lengths(log, LENGTH), strict=True):
        if step > max(scored):
            break
        tally.advance(step, rollouts(metrics), length)
        for source, scores in scored.get(step, {}).items():
            if any(name.endswith("_biased") for name in scores):
                settings.notes.append(BIASED)
            samples = best_samples(scores)
            if samples is not None:
                found.append(tally.evaluation(step=step * updates, problem_set=source, samples=samples, scores=scores))
    if tally.tokens == 0 and found:
        settings.notes.append(f"{LENGTH} is not logged: tokens are 0 and cannot be the unit of a fit")
    return found


def _scores(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Metric columns by data source."""
    by_source: dict[str, dict[str, float]] = {}
    for kind in ("score", "reward", "acc"):
        for name, value in metrics.items():
            match = METRIC.match(name)
            if match is None or match["kind"] != kind:
                continue
            kind_of, biased = ("avg", "") if match["what"] == "mean" else (match["what"], "_biased")
            column = f"{kind_of}_at_{match['k']}{biased}"
            by_source.setdefault(match["source"], {})[column] = value
    return by_source


VERL = Trainer(
    name="verl",
    title="veRL",
    style="hydra",
    write=write,
    parse=parse,
    logs=LogReader(
        layout=Layout(
            # veRL hands its own step to W&B, also in the rows of evaluations, which have no training/global_step.
            steps=("step", "_step", "Step", "training/global_step", "global_step"),
            needed=re.compile(rf"val-|{LENGTH}$|{BATCHES}$|{'|'.join(EVICTED)}"),
        ),
        marks=re.compile(r"val-(?:core|aux)/|response_length/mean$|training/global_step$"),
        seeds=("data.seed", f"{ACTOR}.data_loader_seed"),
        learning_rates=(f"{ACTOR}.optim.lr",),
        evaluations=evaluations,
        progress=progress,
    ),
    parallelism=("tensor", "pipeline", "context"),
)
