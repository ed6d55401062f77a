"""prime-rl: ``orchestrator.batch_size`` counts samples, in groups of ``orchestrator.group_size``.

Read in ``packages/prime-rl-configs`` of August 2026 (``orchestrator.py``, ``rl.py``): the batch has to be a multiple
of the group, and ``max_steps`` is shared by trainer and orchestrator. Micro-batches are packed by tokens
(``seq_len``), so there is no setting for them. Before 2026 the group was ``rollouts_per_example``.
"""

from __future__ import annotations

from .settings import Configuration, Framework, Reading, Run, Settings, Value, split


def write(run: Run) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    nodes, per_node = run.nodes
    # One machine holds at least one device for inference beside those that train.
    alone = run.world_size < run.gpus_per_node
    deployment: dict[str, Value] = (
        {"deployment.type": "single_node", "deployment.num_train_gpus": run.world_size}
        if alone
        else {
            "deployment.type": "multi_node",
            "deployment.num_train_nodes": nodes,
            "deployment.gpus_per_node": per_node,
        }
    )
    return Configuration(
        framework="prime-rl",
        settings={
            "max_steps": a.update_steps,
            "orchestrator.batch_size": a.batch_rollouts,
            "orchestrator.group_size": a.rollouts_per_problem,
            **deployment,
        },
        notes=(
            "orchestrator.batch_size counts samples, not prompts",
            "prime-rl samples ahead: rollouts in flight at the end, stale (max_off_policy_steps) or failed are "
            f"generated on top of the {a.rollouts:,} that are trained on",
        ),
    )


def parse(settings: Settings) -> Reading:
    """What prime-rl's settings say."""
    batch = settings.whole("orchestrator.batch_size", "batch_size")
    tokens = settings.whole("orchestrator.token_batch_size", "token_batch_size")
    if batch is None and tokens is None:
        batch = settings.whole("orchestrator.batch_size", default=128)
    elif tokens is not None:
        settings.unknown.append(
            f"problems per batch: token_batch_size of {tokens:,} makes batches of tokens; set orchestrator.batch_size"
        )
        if batch is not None:
            settings.inconsistent.append("batch_size and token_batch_size are both set, which prime-rl refuses")
            batch = None
    n = settings.whole(
        "orchestrator.group_size", "group_size", "orchestrator.rollouts_per_example", "rollouts_per_example", default=1
    )
    problems = split(batch, n)
    if batch and n and problems is None:
        settings.inconsistent.append(
            f"orchestrator.batch_size counts samples: {batch:,} do not hold whole groups of {n:,}; prime-rl refuses"
        )
    shared = settings.whole("max_steps")
    parts = {settings.whole(f"{part}.max_steps") for part in ("trainer", "orchestrator")} - {None}
    if len(parts) > 1 or (shared and parts - {shared}):
        settings.inconsistent.append("max_steps differs between the trainer and the orchestrator; they have to agree")
    steps = shared or next(iter(parts), None)
    if steps is None and not settings.unknown:
        settings.missing("update steps (prime-rl then runs for ever)", "max_steps")
    settings.notes.append("prime-rl samples ahead; stale and failed rollouts are generated on top")
    return settings.reading(
        problems_per_batch=problems,
        rollouts_per_problem=n,
        update_steps=steps,
        world_size=_world(settings),
    )


def _world(settings: Settings) -> int | None:
    nodes = settings.whole("deployment.num_train_nodes")
    if nodes is None:
        return settings.whole("deployment.num_train_gpus", default=1)
    per_node = settings.whole("deployment.gpus_per_node", default=8)
    return nodes * per_node if per_node else None


PRIME_RL = Framework(name="prime-rl", title="prime-rl", style="dashes", write=write, parse=parse)
