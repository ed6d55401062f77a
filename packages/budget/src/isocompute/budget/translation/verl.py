"""veRL: ``data.train_batch_size`` and ``ppo_mini_batch_size`` count prompts; micro-batches count responses.

Read in veRL 0.9: the trainer multiplies ``ppo_mini_batch_size`` by ``rollout.n`` (``verl/trainer/ppo/ray_trainer.py``),
so that with ``ppo_mini_batch_size = data.train_batch_size`` a batch gets one optimizer step;
``trainer.total_training_steps`` does not lengthen a run that ``trainer.total_epochs`` ends first;
``verl/utils/config.py`` wants B divisible by the devices.
"""

from __future__ import annotations

from .settings import Configuration, Framework, Reading, Run, Settings, split

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def write(run: Run) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    nodes, per_node = run.nodes
    return Configuration(
        framework="verl",
        settings={
            "data.train_batch_size": a.problems_per_batch,
            f"{ROLLOUT}.n": a.rollouts_per_problem,
            f"{ACTOR}.ppo_mini_batch_size": a.problems_per_batch,
            f"{ACTOR}.ppo_epochs": 1,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": run.micro,
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": run.micro,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": run.micro,
            "trainer.nnodes": nodes,
            "trainer.n_gpus_per_node": per_node,
            "trainer.total_training_steps": a.update_steps,
            "trainer.total_epochs": run.epochs,
        },
        notes=(
            "ppo_mini_batch_size counts prompts: the trainer multiplies it by rollout.n",
            "trainer.total_epochs is large enough for the steps, which would otherwise end without a word",
        ),
    )


def parse(settings: Settings) -> Reading:
    """What veRL's settings say."""
    problems = settings.whole("data.train_batch_size", default=1024)
    n = settings.whole(f"{ROLLOUT}.n", default=1)
    mini = settings.whole(f"{ACTOR}.ppo_mini_batch_size", default=256)
    passes = settings.whole(f"{ACTOR}.ppo_epochs") or 1
    nodes = settings.whole("trainer.nnodes", default=1)
    per_node = settings.whole("trainer.n_gpus_per_node", default=8)
    world = nodes * per_node if nodes and per_node else None
    mini_batches = split(problems, mini)
    if problems and mini and mini_batches is None:
        settings.inconsistent.append(
            f"data.train_batch_size of {problems:,} prompts is not a multiple of ppo_mini_batch_size {mini:,}; "
            "both count prompts, so do not multiply ppo_mini_batch_size by rollout.n"
        )
    batch = problems * n if problems and n else None
    settings.share(batch, world, "data.train_batch_size × rollout.n")
    micro = settings.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    if micro and mini and n and world and not settings.on(f"{ACTOR}.use_dynamic_bsz"):
        share = split(mini * n, world)
        if share and share % micro:
            settings.inconsistent.append(
                f"ppo_micro_batch_size_per_gpu counts responses: {micro} does not divide the {share:,} of a device "
                f"({mini:,} prompts × {n} / {world})"
            )
    steps = settings.steps(
        settings.whole("trainer.total_training_steps"),
        settings.whole("trainer.total_epochs", default=30),
        problems,
        "trainer.total_epochs",
    )
    generated = settings.whole("data.gen_batch_size")
    if settings.on("algorithm.filter_groups.enable") or (generated and problems and generated != problems):
        settings.notes.append(
            "filter_groups generates until a batch is full, so more than B_p · n · M rollouts; how many is known "
            "only afterwards (training/filter_groups/evicted_samples)"
        )
    return settings.reading(
        problems_per_batch=problems,
        rollouts_per_problem=n,
        update_steps=steps,
        per_batch=mini_batches * passes if mini_batches else None,
        world_size=world,
    )


VERL = Framework(name="verl", title="veRL", style="hydra", write=write, parse=parse)
