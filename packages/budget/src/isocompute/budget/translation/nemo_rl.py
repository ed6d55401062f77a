"""NeMo-RL: ``grpo.num_prompts_per_step`` counts prompts, ``policy.train_global_batch_size`` counts samples.

Read in ``examples/configs/grpo_math_1B.yaml`` and ``nemo_rl/algorithms/grpo.py`` of August 2026: a step's samples are
trained on in global batches, each an optimizer step; ``grpo.max_num_steps`` and ``grpo.max_num_epochs`` end a run,
whichever comes first.
"""

from __future__ import annotations

from .settings import Configuration, Framework, Reading, Run, Settings, split


def write(run: Run) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    nodes, per_node = run.nodes
    return Configuration(
        framework="nemo-rl",
        settings={
            "grpo.num_prompts_per_step": a.problems_per_batch,
            "grpo.num_generations_per_prompt": a.rollouts_per_problem,
            "grpo.max_num_steps": a.update_steps,
            "grpo.max_num_epochs": run.epochs,
            "policy.train_global_batch_size": a.batch_rollouts,
            "policy.train_micro_batch_size": run.micro,
            "policy.logprob_batch_size": run.micro,
            "cluster.num_nodes": nodes,
            "cluster.gpus_per_node": per_node,
        },
        notes=("train_global_batch_size counts samples, num_prompts_per_step counts prompts",),
    )


def parse(settings: Settings) -> Reading:
    """What NeMo-RL's settings say."""
    problems = settings.whole("grpo.num_prompts_per_step", default=32)
    n = settings.whole("grpo.num_generations_per_prompt", default=16)
    batch = settings.whole("policy.train_global_batch_size", default=512)
    micro = settings.whole("policy.train_micro_batch_size")
    nodes = settings.whole("cluster.num_nodes", default=1)
    per_node = settings.whole("cluster.gpus_per_node", default=1)
    world = nodes * per_node if nodes and per_node else None
    generated = problems * n if problems and n else None
    parts = split(generated, batch)
    if generated and batch and parts is None:
        settings.inconsistent.append(
            f"train_global_batch_size counts samples: the {generated:,} of a step ({problems:,} prompts × {n:,}) are "
            f"not a multiple of {batch:,}"
        )
    settings.share(batch, world, "policy.train_global_batch_size")
    share = split(batch, world)
    if micro and share and share % micro:
        settings.inconsistent.append(
            f"train_micro_batch_size counts samples: {micro} does not divide the {share:,} of a device"
        )
    steps = settings.steps(
        settings.whole("grpo.max_num_steps", default=1_000_000),
        settings.whole("grpo.max_num_epochs", default=1),
        problems,
        "grpo.max_num_epochs",
    )
    if settings.on("grpo.use_dynamic_sampling"):
        settings.notes.append("dynamic sampling generates more than B_p · n · M rollouts; how many is known afterwards")
    if settings.on("grpo.async_grpo.enabled"):
        settings.notes.append("asynchronous training generates ahead, and ignores grpo.max_num_epochs")
    return settings.reading(
        problems_per_batch=problems,
        rollouts_per_problem=n,
        update_steps=steps,
        per_batch=parts,
        world_size=world,
    )


NEMO_RL = Framework(name="nemo-rl", title="NeMo-RL", style="hydra", write=write, parse=parse)
