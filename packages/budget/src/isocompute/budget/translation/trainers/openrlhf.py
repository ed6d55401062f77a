"""OpenRLHF: ``rollout.batch_size`` counts prompts and ``train.batch_size`` counts samples.

Read in ``openrlhf/cli/train_ppo_ray.py`` and ``openrlhf/trainer`` of 0.11.2: a rollout batch gets
``rollout.batch_size × rollout.n_samples_per_prompt // train.batch_size`` optimizer steps, times ``train.max_epochs``.
There is no setting for a number of steps: a run ends with its last episode, so M follows from ``data.max_samples``
(prompts) and ``train.num_episodes``. An episode's last batch may be incomplete, and is trained on. Devices over
``ds.tensor_parallel_size`` × ``ds.ring_attn_size`` are data-parallel ranks. The reference model has devices of its own,
8 unless it is said, and colocation wants as many as the actor has. Releases before 0.10 spell the flags with
underscores only.
"""

from __future__ import annotations

from ...errors import BudgetError
from ..framework import Framework
from ..reading import Reading
from ..run import Configuration, Run, Value
from ..settings import Settings, exact_quotient


def write(run: Run) -> Configuration:
    """Settings for a run.

    Raises:
        BudgetError: M is not a whole number of episodes over D problems.
    """
    a = run.allocation
    needed = a.problems_per_batch * a.update_steps
    episodes, samples = 1, needed
    if run.problems is not None and run.problems < needed:
        batches = run.problems // a.problems_per_batch
        if a.update_steps % batches:
            below = a.update_steps // batches * batches
            raise BudgetError(
                f"OpenRLHF ends a run with an episode, and {run.problems:,} problems make episodes of {batches:,} "
                f"batches, so it cannot take {a.update_steps:,} steps; {below:,} or {below + batches:,} would do"
            )
        episodes, samples = a.update_steps // batches, batches * a.problems_per_batch
    nodes, per_node = run.nodes
    notes = ["rollout.batch_size counts prompts, train.batch_size counts samples"]
    if run.problems is None:
        notes.append(f"the prompt set must hold {samples:,} prompts or the run ends early; give --problems D if fewer")
    elif episodes > 1 and samples < run.problems:
        notes.append(f"{run.problems - samples:,} of {run.problems:,} problems are left out, so that batches are whole")
    parallel: dict[str, Value] = {
        "ds.tensor_parallel_size": run.parallelism.tensor,
        "ds.ring_attn_size": run.parallelism.context,
    }
    if run.parallelism.context > 1:
        notes.append("ring attention turns on ds.packing_samples, which needs vllm.num_engines")
    return Configuration(
        framework="openrlhf",
        settings={
            "rollout.batch_size": a.problems_per_batch,
            "rollout.n_samples_per_prompt": a.rollouts_per_problem,
            "train.batch_size": a.batch_rollouts,
            "train.max_epochs": 1,
            "train.micro_batch_size": run.pass_rollouts,
            "rollout.micro_batch_size": run.pass_rollouts,
            "data.max_samples": samples,
            "train.num_episodes": episodes,
            "actor.num_nodes": nodes,
            "actor.num_gpus_per_node": per_node,
            "ref.num_nodes": nodes,
            "ref.num_gpus_per_node": per_node,
            **{key: degree for key, degree in parallel.items() if degree != 1},
            **run.learning_rate_setting("actor.adam.lr"),
        },
        notes=tuple(notes),
    )


def parse(settings: Settings) -> Reading:
    """Interpret OpenRLHF's settings."""
    problems = settings.whole("rollout.batch_size", "rollout_batch_size", default=1024)
    n = settings.whole("rollout.n_samples_per_prompt", "n_samples_per_prompt", default=1)
    batch = settings.whole("train.batch_size", "train_batch_size", default=128)
    passes = settings.whole("train.max_epochs", "max_epochs") or 1
    episodes = settings.whole("train.num_episodes", "num_episodes", default=1)
    nodes = settings.whole("actor.num_nodes", "actor_num_nodes", default=1)
    per_node = settings.whole("actor.num_gpus_per_node", "actor_num_gpus_per_node", default=8)
    world = nodes * per_node if nodes and per_node else None
    generated = problems * n if problems and n else None
    parts = exact_quotient(generated, batch)
    if generated and batch and parts is None:
        settings.inconsistent.append(
            f"train.batch_size counts samples: the {generated:,} of a rollout batch ({problems:,} prompts × {n:,}) "
            f"are not a multiple of {batch:,}, and what is left over is not trained on"
        )
    ranks = settings.ranks(
        world,
        tensor=("ds.tensor_parallel_size", "ds_tensor_parallel_size"),
        context=("ds.ring_attn_size", "ring_attn_size"),
    )
    settings.check_divides(batch, ranks, world, "train.batch_size")
    samples = settings.whole("data.max_samples", "max_samples")
    if samples and settings.problems:
        samples = min(samples, settings.problems)
    held = samples or settings.problems
    steps = None
    if held is None:
        settings.unknown.append(
            "update steps: they follow from train.num_episodes and the number of prompts; give --problems D"
        )
    elif problems and episodes:
        if settings.problems is None:
            settings.notes.append(f"the prompt set is assumed to hold data.max_samples = {held:,} prompts")
        if held % problems:
            settings.inconsistent.append(
                f"{held:,} prompts end each episode with an incomplete batch of {held % problems:,} of {problems:,}; "
                f"data.max_samples {held // problems * problems:,} would leave it out, and it is not counted here"
            )
        steps = held // problems * episodes
    if settings.is_on("algo.dynamic_filtering_enable", "dynamic_filtering"):
        settings.notes.append(
            "dynamic filtering generates more than B_p · n · M rollouts; how many is known only afterwards"
        )
    if settings.is_on("train.async_enable", "async_train"):
        settings.notes.append("asynchronous training generates ahead of the steps it takes")
    return settings.reading(
        problems_per_batch=problems,
        rollouts_per_problem=n,
        update_steps=steps,
        per_batch=parts * passes if parts else None,
        world_size=world,
        data_parallel=ranks,
    )


OPENRLHF = Framework(
    name="openrlhf",
    title="OpenRLHF",
    style="dashes",
    write=write,
    parse=parse,
    parallelism=("tensor", "context"),
)
