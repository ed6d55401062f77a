"""prime-rl: ``orchestrator.batch_size`` counts samples, in groups of ``orchestrator.group_size``.

Read in ``packages/prime-rl-configs`` of August 2026 (``orchestrator.py``, ``trainer.py``, ``rl.py``): the batch must be
a multiple of the group, a source of problems may set a ``group_size`` of its own, and ``max_steps`` is shared by
trainer and orchestrator. Micro-batches are packed by tokens (``seq_len``), so there is no setting for them; the model
is spread by ``trainer.model.cp`` (context) and by nothing else. On several machines ``deployment.num_infer_nodes``
must be above 0, with an ``[inference]`` and a ``[slurm]`` section beside it. Before 2026 the group was
``rollouts_per_example``.
"""

from __future__ import annotations

from ..framework import Framework
from ..reading import Reading
from ..run import Configuration, Run, Value
from ..settings import Settings, exact_quotient

# A list of tables: in a file, or one entry a flag (--orchestrator.train.source.0.group-size 8).
SOURCES = ("orchestrator.train.source", "orchestrator.train.env", "orchestrator.env")


def write(run: Run) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    nodes, per_node = run.nodes
    # One machine holds at least one device for inference in addition to those that train.
    one_machine = run.world_size < run.gpus_per_node
    deployment: dict[str, Value] = (
        {"deployment.type": "single_node", "deployment.num_train_gpus": run.world_size}
        if one_machine
        else {
            "deployment.type": "multi_node",
            "deployment.num_train_nodes": nodes,
            "deployment.num_infer_nodes": 1,
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
            **({"trainer.model.cp": run.parallelism.context} if run.parallelism.context > 1 else {}),
            **run.learning_rate_setting("trainer.optim.lr"),
        },
        notes=(
            "orchestrator.batch_size counts samples, not prompts",
            *(
                ()
                if one_machine
                else (
                    "several machines need [inference] and [slurm] sections; num_infer_nodes is 1, the minimum; "
                    "raise it as sampling needs",
                )
            ),
            "a group_size of a source of problems would override orchestrator.group_size",
            "prime-rl samples ahead: rollouts in flight at the end, stale (max_off_policy_steps) or failed, and groups "
            "that replace discarded ones (constant_trainer_batch_size, since September 2026), are "
            f"generated in addition to the {a.rollouts:,} that are trained on",
        ),
    )


def parse(settings: Settings) -> Reading:
    """Interpret prime-rl's settings."""
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
    n = _group(settings)
    problems = exact_quotient(batch, n)
    if batch and n and problems is None:
        settings.inconsistent.append(
            f"orchestrator.batch_size counts samples: {batch:,} do not hold whole groups of {n:,}; prime-rl refuses"
        )
    shared = settings.whole("max_steps")
    parts = {settings.whole(f"{part}.max_steps") for part in ("trainer", "orchestrator")} - {None}
    if len(parts) > 1 or (shared and parts - {shared}):
        settings.inconsistent.append("max_steps differs between the trainer and the orchestrator; they must agree")
    steps = shared or next(iter(parts), None)
    if steps is None and not settings.unknown:
        settings.note_missing("update steps (prime-rl then runs for ever)", "max_steps")
    settings.notes.append(
        "prime-rl samples ahead; stale and failed rollouts, and groups that replace discarded ones, are generated in "
        "addition"
    )
    world = _world(settings)
    return settings.reading(
        problems_per_batch=problems,
        rollouts_per_problem=n,
        update_steps=steps,
        world_size=world,
        data_parallel=settings.ranks(world, context=("trainer.model.cp", "model.cp")),
    )


def _group(settings: Settings) -> int | None:
    """The group: that of the sources of problems where they set one, otherwise the orchestrator's."""
    names = ("orchestrator.group_size", "group_size", "orchestrator.rollouts_per_example", "rollouts_per_example")
    sources = _sources(settings)
    own = {place: value for place, value in sources.items() if value is not None}
    shared = None
    if len(own) < max(1, len(sources)):
        shared = settings.whole(*names, default=1)
        if shared is None:
            return None
    sizes = {settings.check_whole(value, f"{SOURCES[0]}.{place}.group_size") for place, value in own.items()}
    if shared is not None:
        sizes.add(shared)
    if len(sizes) > 1:
        settings.unknown.append(
            f"rollouts per problem: groups of {' and '.join(f'{size:,}' for size in sorted(sizes))} are mixed, because "
            "a source's group_size overrides orchestrator.group_size"
        )
        return None
    n = sizes.pop()
    overridden, value = settings.find(*names)
    if own and value is not None and value != n:
        settings.notes.append(f"the group_size of the sources, {n:,}, overrides {overridden}")
    return n


def _sources(settings: Settings) -> dict[str, Value]:
    """The ``group_size`` of every source of training problems, by its place; None where a source leaves it open."""
    found: dict[str, Value] = {}
    for name in SOURCES:
        listed = settings.values.get(name)
        for place, source in enumerate(listed if isinstance(listed, list) else ()):
            found[str(place)] = source.get("group_size") if isinstance(source, dict) else None
        for key, value in settings.values.items():
            number, _, field = key.removeprefix(f"{name}.").partition(".")
            if key.startswith(f"{name}.") and number.isdigit():
                found[number] = value if field == "group_size" else found.get(number)
    return found


def _world(settings: Settings) -> int | None:
    nodes = settings.whole("deployment.num_train_nodes")
    if nodes is None:
        return settings.whole("deployment.num_train_gpus", default=1)
    per_node = settings.whole("deployment.gpus_per_node", default=8)
    return nodes * per_node if per_node else None


PRIME_RL = Framework(
    name="prime-rl", title="prime-rl", style="dashes", write=write, parse=parse, parallelism=("context",)
)
