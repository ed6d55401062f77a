"""Trainers for which only the settings are known.

open-instruct: ``total_episodes`` counts rollouts, and M = total_episodes // (prompts × samples).

Read in ``open_instruct/grpo_fast.py``, ``grpo_utils.py`` and ``data_loader.py`` of August 2026: a batch of
``num_unique_prompts_rollout`` prompts with ``num_samples_per_prompt_rollout`` responses each is split into
``num_mini_batches``, each an optimizer step. ``per_device_train_batch_size`` counts packed sequences and is left alone.
The data-parallel ranks are the learners over ``sequence_parallel_size``; above 1, this needs ``deepspeed_stage`` 3.

NeMo-RL: ``grpo.num_prompts_per_step`` counts prompts, ``policy.train_global_batch_size`` counts samples.

Read in ``examples/configs/grpo_math_1B.yaml``, ``nemo_rl/algorithms/grpo.py`` and ``models/policy/lm_policy.py`` of
August 2026: a step's samples are trained on in global batches, each an optimizer step. ``grpo.max_num_steps`` or
``grpo.max_num_epochs`` ends a run, whichever comes first. Tensor and context parallelism are set in
``policy.dtensor_cfg``; pipeline parallelism needs ``policy.megatron_cfg`` instead. With
``policy.generation.colocated.enabled`` false, the engine takes devices or whole nodes of the cluster away from
training.
"""

from __future__ import annotations

from ..errors import shorten
from .settings import Batching, Configuration, RunPlan, Settings, Value, exact_quotient, product
from .trainer import Trainer


def _write_open_instruct(run: RunPlan) -> Configuration:
    a = run.allocation
    nodes, per_node = run.nodes
    learners: list[Value] = [per_node] * nodes
    sequences = run.parallelism.context if run.parallelism.context > 1 else None
    return Configuration(
        settings={
            "num_unique_prompts_rollout": a.problems_per_batch,
            "num_samples_per_prompt_rollout": a.rollouts_per_problem,
            "total_episodes": a.rollouts,
            "num_mini_batches": 1,
            "num_epochs": 1,
            "async_steps": 1,
            "num_learners_per_node": learners,
            # open-instruct refuses to filter groups of one, since it would drop all of them.
            "filter_zero_std_samples": False if a.rollouts_per_problem == 1 else None,
            "sequence_parallel_size": sequences,
            "deepspeed_stage": sequences and 3,
            "learning_rate": run.learning_rate,
        },
        notes=(
            "total_episodes counts rollouts",
            f"open-instruct samples async_steps batches ahead, so {a.batch_rollouts:,} rollouts are started in "
            f"addition to the {a.rollouts:,} and discarded at the end; 1 is the minimum",
            "groups whose rewards are all equal are paid for and not trained on (filter_zero_std_samples)",
        ),
    )


def _parse_open_instruct(settings: Settings) -> Batching:
    problems = settings.whole("num_unique_prompts_rollout", default=16)
    n = settings.whole("num_samples_per_prompt_rollout", default=4)
    episodes = settings.whole("total_episodes", default=100_000)
    parts = settings.whole("num_mini_batches") or 1
    passes = settings.whole("num_epochs") or 1
    ahead = settings.whole("async_steps", default=8)
    batch = problems * n if problems and n else None
    steps = None
    if batch and episodes:
        steps = episodes // batch
        if episodes % batch:
            over = f"of {batch:,}; the last {episodes % batch:,} are never generated"
            settings.inconsistent.append(f"total_episodes of {episodes:,} is not a multiple of a batch {over}")
        if not steps:
            settings.inconsistent.append(f"total_episodes of {episodes:,} is less than one batch of {batch:,}")
    if batch and ahead:
        settings.notes.append(f"sampling runs {ahead} batches ahead: {ahead * batch:,} rollouts in addition")
    if settings.is_on("active_sampling"):
        settings.notes.append("active_sampling generates until a batch is full; how much is known only afterwards")
    learners = settings.find("num_learners_per_node")[1]
    counts = learners if isinstance(learners, list) else [learners]
    if learners is None:
        settings.notes.append("num_learners_per_node is not set; the default of one learner is assumed")
        world: int | None = 1
    elif all(isinstance(c, int) and not isinstance(c, bool) and c > 0 for c in counts):
        world = sum(c for c in counts if isinstance(c, int))
    else:
        world = None
        settings.unknown.append(f"world size: num_learners_per_node is {shorten(learners)}; it is a list of numbers")
    ranks = settings.ranks(world, context=("sequence_parallel_size",))
    if batch and ranks and batch < ranks:
        settings.inconsistent.append(f"a batch of {batch:,} rollouts is less than one for each of {ranks} ranks")
    return settings.batching(
        problems_generated=problems, rollouts_per_problem=n, generations=steps, updates=parts * passes, passes=passes
    )


OPEN_INSTRUCT = Trainer(
    name="open-instruct",
    title="open-instruct",
    style="dashes",
    write=_write_open_instruct,
    parse=_parse_open_instruct,
    parallelism=("context",),
)


DTENSOR, MEGATRON = "policy.dtensor_cfg", "policy.megatron_cfg"
COLOCATED = "policy.generation.colocated"


def _write_nemo_rl(run: RunPlan) -> Configuration:
    a = run.allocation
    nodes, per_node = run.nodes
    return Configuration(
        settings={
            "grpo.num_prompts_per_step": a.problems_per_batch,
            "grpo.num_generations_per_prompt": a.rollouts_per_problem,
            "grpo.max_num_steps": a.update_steps,
            "grpo.max_num_epochs": run.epochs,
            "policy.train_global_batch_size": a.batch_rollouts,
            "policy.train_micro_batch_size": run.pass_rollouts,
            "policy.logprob_batch_size": run.pass_rollouts,
            "cluster.num_nodes": nodes,
            "cluster.gpus_per_node": per_node,
            **_degrees(run),
        },
        notes=("train_global_batch_size counts samples, num_prompts_per_step counts prompts",),
    )


def _degrees(run: RunPlan) -> dict[str, Value]:
    """Parallelism settings and the learning rate, which belongs to the backend's settings."""
    p = run.parallelism
    if p.pipeline > 1:
        return {
            f"{DTENSOR}.enabled": False,
            f"{MEGATRON}.enabled": True,
            **p.megatron(f"{MEGATRON}."),
            f"{MEGATRON}.optimizer.lr": run.learning_rate,
        }
    return {
        f"{DTENSOR}.tensor_parallel_size": p.tensor if p.devices > 1 else None,
        f"{DTENSOR}.context_parallel_size": p.context if p.devices > 1 else None,
        "policy.optimizer.kwargs.lr": run.learning_rate,
    }


def _parse_nemo_rl(settings: Settings) -> Batching:
    problems = settings.whole("grpo.num_prompts_per_step", default=32)
    n = settings.whole("grpo.num_generations_per_prompt", default=16)
    batch = settings.whole("policy.train_global_batch_size", default=512)
    world = _training_devices(settings)
    if settings.is_on(f"{MEGATRON}.enabled"):
        ranks = settings.megatron_ranks(world, f"{MEGATRON}.")
    else:
        ranks = settings.ranks(
            world, tensor=(f"{DTENSOR}.tensor_parallel_size",), context=(f"{DTENSOR}.context_parallel_size",)
        )
    generated = product(problems, n)
    parts = exact_quotient(generated, batch)
    if generated and batch and parts is None:
        settings.inconsistent.append(
            f"train_global_batch_size counts samples: the {generated:,} of a step ({problems:,} prompts × {n:,}) are "
            f"not a multiple of {batch:,}"
        )
    settings.check_divides(batch, ranks, "policy.train_global_batch_size")
    settings.check_micro_batch("policy.train_micro_batch_size", batch)
    steps = settings.steps(
        settings.whole("grpo.max_num_steps", default=1_000_000),
        settings.whole("grpo.max_num_epochs", default=1),
        problems,
        "grpo.max_num_epochs",
    )
    if settings.is_on("grpo.use_dynamic_sampling"):
        settings.note_more("dynamic sampling")
    if settings.is_on("grpo.async_grpo.enabled"):
        settings.notes.append("asynchronous training generates ahead, and ignores grpo.max_num_epochs")
    return settings.batching(problems_generated=problems, rollouts_per_problem=n, generations=steps, updates=parts)


def _training_devices(settings: Settings) -> int | None:
    """Devices of the cluster that train: all of them, unless the engine has its own."""
    nodes = settings.whole("cluster.num_nodes", default=1)
    per_node = settings.whole("cluster.gpus_per_node", default=1)
    if nodes is None or per_node is None:
        return None
    if settings.is_on(f"{COLOCATED}.enabled", default=True):
        return nodes * per_node
    key = f"{COLOCATED}.resources." + ("gpus_per_node" if nodes == 1 else "num_nodes")
    taken = settings.whole(key)
    if taken is None:
        settings.note_missing("devices: the engine is not colocated, and", key)
        return None
    left = per_node - taken if nodes == 1 else (nodes - taken) * per_node
    if left < 1:
        settings.inconsistent.append(f"{key} of {taken:,} leaves no device of the cluster for training")
        return None
    return left


NEMO_RL = Trainer(
    name="nemo-rl",
    title="NeMo-RL",
    style="hydra",
    write=_write_nemo_rl,
    parse=_parse_nemo_rl,
    parallelism=("tensor", "pipeline", "context"),
)
