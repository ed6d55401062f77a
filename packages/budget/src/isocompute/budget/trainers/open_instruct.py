"""open-instruct: ``total_episodes`` counts rollouts, and M = total_episodes // (prompts × samples).

Read in ``open_instruct/grpo_fast.py``, ``grpo_utils.py`` and ``data_loader.py`` of August 2026: a batch of
``num_unique_prompts_rollout`` prompts with ``num_samples_per_prompt_rollout`` responses each is split into
``num_mini_batches``, each an optimizer step. ``per_device_train_batch_size`` counts packed sequences and is left alone.
Learners over ``sequence_parallel_size`` are data-parallel ranks; above 1 it needs ``deepspeed_stage`` 3.
"""

from __future__ import annotations

from ..checks import shorten
from .settings import Batching, Configuration, RunPlan, Settings, Value
from .trainer import Trainer


def write(run: RunPlan) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    nodes, per_node = run.nodes
    learners: list[Value] = [per_node] * nodes
    return Configuration(
        settings={
            "num_unique_prompts_rollout": a.problems_per_batch,
            "num_samples_per_prompt_rollout": a.rollouts_per_problem,
            "total_episodes": a.rollouts,
            "num_mini_batches": 1,
            "num_epochs": 1,
            "async_steps": 1,
            "num_learners_per_node": learners,
            # open-instruct refuses to filter groups of one, all of which it would drop.
            **({"filter_zero_std_samples": False} if a.rollouts_per_problem == 1 else {}),
            **(
                {"sequence_parallel_size": run.parallelism.context, "deepspeed_stage": 3}
                if run.parallelism.context > 1
                else {}
            ),
            **run.learning_rate_setting("learning_rate"),
        },
        notes=(
            "total_episodes counts rollouts",
            f"open-instruct samples async_steps batches ahead, so {a.batch_rollouts:,} rollouts are started in "
            f"addition to the {a.rollouts:,} and discarded at the end; 1 is the minimum",
            "groups whose rewards are all equal are paid for and not trained on (filter_zero_std_samples)",
        ),
    )


def parse(settings: Settings) -> Batching:
    """Interpret open-instruct's settings."""
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
            settings.inconsistent.append(
                f"total_episodes of {episodes:,} is not a multiple of a batch of {batch:,}; "
                f"the last {episodes % batch:,} are never generated"
            )
        if not steps:
            settings.inconsistent.append(f"total_episodes of {episodes:,} is less than one batch of {batch:,}")
    if batch and ahead:
        settings.notes.append(
            f"sampling runs {ahead} batches ahead: {ahead * batch:,} rollouts are started in addition"
        )
    if settings.is_on("active_sampling"):
        settings.notes.append("active_sampling generates until a batch is full; how much is known only afterwards")
    learners = settings.values.get("num_learners_per_node")
    counts = learners if isinstance(learners, list) else [learners]
    if learners is None:
        settings.notes.append("num_learners_per_node is not set; the default of one learner is assumed")
        world: int | None = 1
    elif all(isinstance(c, int) and not isinstance(c, bool) and c > 0 for c in counts):
        world = sum(c for c in counts if isinstance(c, int))
    else:
        world = None
        settings.unknown.append(
            f"world size: num_learners_per_node is {shorten(learners)}; it is a list of whole numbers"
        )
    ranks = settings.ranks(world, context=("sequence_parallel_size",))
    if batch and ranks and batch < ranks:
        settings.inconsistent.append(
            f"a batch of {batch:,} rollouts is less than one for each of {ranks} data-parallel ranks"
        )
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=n,
        generations=steps,
        updates=parts * passes,
        passes=passes,
    )


OPEN_INSTRUCT = Trainer(
    name="open-instruct", title="open-instruct", style="dashes", write=write, parse=parse, parallelism=("context",)
)
