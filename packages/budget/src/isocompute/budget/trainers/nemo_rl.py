"""NeMo-RL: ``grpo.num_prompts_per_step`` counts prompts, ``policy.train_global_batch_size`` counts samples.

Read in ``examples/configs/grpo_math_1B.yaml``, ``nemo_rl/algorithms/grpo.py`` and ``models/policy/lm_policy.py`` of
August 2026: a step's samples are trained on in global batches, each an optimizer step; ``grpo.max_num_steps`` and
``grpo.max_num_epochs`` end a run, whichever comes first. Tensor and context parallelism are ``policy.dtensor_cfg``'s,
pipeline parallelism needs ``policy.megatron_cfg`` in its place. With ``policy.generation.colocated.enabled`` false the
engine takes devices or whole nodes of the cluster away from training.
"""

from __future__ import annotations

from .settings import Batching, Configuration, RunPlan, Settings, Value, exact_quotient, product
from .trainer import Trainer

DTENSOR, MEGATRON = "policy.dtensor_cfg", "policy.megatron_cfg"
COLOCATED = "policy.generation.colocated"


def write(run: RunPlan) -> Configuration:
    """Settings for a run."""
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
            **_parallel(run),
        },
        notes=("train_global_batch_size counts samples, num_prompts_per_step counts prompts",),
    )


def _parallel(run: RunPlan) -> dict[str, Value]:
    """Settings of parallelism, and the learning rate, which is among the backend's."""
    p = run.parallelism
    if p.pipeline > 1:
        return {
            f"{DTENSOR}.enabled": False,
            f"{MEGATRON}.enabled": True,
            f"{MEGATRON}.tensor_model_parallel_size": p.tensor,
            f"{MEGATRON}.pipeline_model_parallel_size": p.pipeline,
            f"{MEGATRON}.context_parallel_size": p.context,
            **run.learning_rate_setting(f"{MEGATRON}.optimizer.lr"),
        }
    degrees: dict[str, Value] = {
        f"{DTENSOR}.tensor_parallel_size": p.tensor,
        f"{DTENSOR}.context_parallel_size": p.context,
    }
    return {**(degrees if p.devices > 1 else {}), **run.learning_rate_setting("policy.optimizer.kwargs.lr")}


def parse(settings: Settings) -> Batching:
    """Interpret NeMo-RL's settings."""
    problems = settings.whole("grpo.num_prompts_per_step", default=32)
    n = settings.whole("grpo.num_generations_per_prompt", default=16)
    batch = settings.whole("policy.train_global_batch_size", default=512)
    world = _training_devices(settings)
    if settings.is_on(f"{MEGATRON}.enabled"):
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        ranks = settings.ranks(world, *((f"{MEGATRON}.{name}",) for name in names))
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
    write=write,
    parse=parse,
    parallelism=("tensor", "pipeline", "context"),
)
