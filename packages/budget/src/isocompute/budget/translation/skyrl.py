"""SkyRL: ``trainer.train_batch_size`` and ``policy_mini_batch_size`` count prompts; micro-batches count samples.

Read in ``skyrl/train/config/config.py`` and ``skyrl/train/utils/utils.py`` of August 2026: each mini-batch is an
optimizer step, ``trainer.max_training_steps`` ends a run that ``trainer.epochs`` has not ended before.
"""

from __future__ import annotations

from .settings import Configuration, Framework, Reading, Run, Settings, split


def write(run: Run) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    nodes, per_node = run.nodes
    return Configuration(
        framework="skyrl",
        settings={
            "trainer.train_batch_size": a.problems_per_batch,
            "generator.n_samples_per_prompt": a.rollouts_per_problem,
            "trainer.policy_mini_batch_size": a.problems_per_batch,
            "trainer.update_epochs_per_batch": 1,
            "trainer.micro_train_batch_size_per_gpu": run.micro,
            "trainer.micro_forward_batch_size_per_gpu": run.micro,
            "trainer.placement.policy_num_nodes": nodes,
            "trainer.placement.policy_num_gpus_per_node": per_node,
            "trainer.max_training_steps": a.update_steps,
            "trainer.epochs": run.epochs,
        },
        notes=("policy_mini_batch_size counts prompts, the micro-batches count samples",),
    )


def parse(settings: Settings) -> Reading:
    """What SkyRL's settings say."""
    problems = settings.whole("trainer.train_batch_size", default=1024)
    n = settings.whole("generator.n_samples_per_prompt", default=5)
    mini = settings.whole("trainer.policy_mini_batch_size", default=256)
    passes = settings.whole("trainer.update_epochs_per_batch") or 1
    nodes = settings.whole("trainer.placement.policy_num_nodes", default=1)
    per_node = settings.whole("trainer.placement.policy_num_gpus_per_node", default=1)
    world = nodes * per_node if nodes and per_node else None
    mini_batches = split(problems, mini)
    if problems and mini and mini_batches is None:
        settings.inconsistent.append(
            f"trainer.train_batch_size of {problems:,} prompts is not a multiple of policy_mini_batch_size {mini:,}, "
            "which SkyRL refuses; both count prompts"
        )
    settings.share(mini * n if mini and n else None, world, "policy_mini_batch_size × n_samples_per_prompt")
    micro = settings.whole("trainer.micro_train_batch_size_per_gpu")
    share = split(mini * n if mini and n else None, world)
    if micro and share and share % micro:
        settings.inconsistent.append(
            f"micro_train_batch_size_per_gpu counts samples: {micro} does not divide the {share:,} of a device"
        )
    steps = settings.steps(
        settings.whole("trainer.max_training_steps"),
        settings.whole("trainer.epochs", default=1),
        problems,
        "trainer.epochs",
    )
    if settings.values.get("trainer.algorithm.dynamic_sampling.type") is not None:
        settings.notes.append("dynamic sampling generates more than B_p · n · M rollouts; how many is known afterwards")
    return settings.reading(
        problems_per_batch=problems,
        rollouts_per_problem=n,
        update_steps=steps,
        per_batch=mini_batches * passes if mini_batches else None,
        world_size=world,
    )


SKYRL = Framework(name="skyrl", title="SkyRL", style="hydra", write=write, parse=parse)
