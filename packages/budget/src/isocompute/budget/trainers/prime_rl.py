"""prime-rl: ``orchestrator.batch_size`` counts samples, in groups of ``orchestrator.group_size``.

Read in ``packages/prime-rl-configs`` of August 2026 (``orchestrator.py``, ``trainer.py``, ``rl.py``): the batch must be
a multiple of the group. A source of problems may set its own ``group_size``. Trainer and orchestrator share
``max_steps``. Micro-batches are packed by tokens (``seq_len``), so no setting gives their size. The model is spread
only by ``trainer.model.cp`` (context). On several machines, ``deployment.num_infer_nodes`` must be above 0, and an
``[inference]`` and a ``[slurm]`` section are needed. Before 2026, the group was ``rollouts_per_example``.

Logs (``src/prime_rl/orchestrator`` of November 2026): the step of an evaluation has not been taken yet.
``progress/rollouts`` and ``progress/tokens`` cover one step and everything that came back, prompts included.
``progress/output_tokens`` covers only what was shipped, and ``train/agg/all/num_output_tokens/mean`` everything.
Rollouts cancelled in flight are counted apart. ``avg@k`` is the mean of any reward, over the responses without an
error. ``pass@k`` and ``pass^k`` are logged if all rewards are 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import BudgetError
from .counting import Counting, LoggedEvaluation, Metrics, Score, Spread
from .logs.log import Log, LogLayout
from .settings import Batching, Configuration, RunPlan, Settings, Value, exact_quotient, product
from .trainer import LogReader, Trainer

# A list of tables: in a file, or one entry per flag (--orchestrator.train.source.0.group-size 8).
METRIC = re.compile(
    r"^eval/(?P<env>.+?)(?:/(?P<subset>all|effective)(?P<agent>/[^/]+)?)?/"
    r"(?P<what>avg@|pass@|pass\^)(?P<k>\d+)$"
)
COLUMNS = {"avg@": "avg", "pass@": "best", "pass^": "worst"}
ROLLOUTS, SHIPPED = "progress/rollouts", "progress/samples"
GROUP = ("orchestrator.group_size", "group_size", "orchestrator.rollouts_per_example", "rollouts_per_example")
CANCELLED = re.compile(
    r"dispatcher/cancelled(?:_rollouts|_train_rollouts|/train)$|(?P<groups>scheduler|batch)/cancelled_rollouts$"
)

SOURCES = ("orchestrator.train.source", "orchestrator.train.env", "orchestrator.env", "train.source", "train.env")


def _write(run: RunPlan) -> Configuration:
    a = run.allocation
    nodes, per_node = run.nodes
    # One machine needs at least one device for inference besides those that train.
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
        settings={
            "max_steps": a.update_steps,
            "orchestrator.batch_size": a.batch_rollouts,
            "orchestrator.group_size": a.rollouts_per_problem,
            **deployment,
            "trainer.model.cp": run.parallelism.context if run.parallelism.context > 1 else None,
            "trainer.optim.lr": run.learning_rate,
        },
        notes=(
            "orchestrator.batch_size counts samples, not prompts",
            *(() if one_machine else ("several machines need [inference] and [slurm]; num_infer_nodes is at least 1",)),
            "a group_size of a source of problems would override orchestrator.group_size",
            "prime-rl samples ahead: rollouts in flight at the end, stale (max_off_policy_steps), failed or replaced "
            f"(constant_trainer_batch_size, since September 2026) are generated in addition to the {a.rollouts:,}",
        ),
    )


def _parse(settings: Settings) -> Batching:
    batch = settings.whole("orchestrator.batch_size", "batch_size")
    tokens = settings.whole("orchestrator.token_batch_size", "token_batch_size")
    if batch is None and tokens is None:
        batch = settings.whole("orchestrator.batch_size", default=128)
    elif tokens is not None:
        settings.unknown.append(f"problems per batch: token_batch_size of {tokens:,} makes batches of tokens")
        if batch is not None:
            settings.inconsistent.append("batch_size and token_batch_size are both set, which prime-rl refuses")
            batch = None
    n = _group(settings)
    problems = exact_quotient(batch, n)
    if batch and n and problems is None:
        settings.inconsistent.append(f"orchestrator.batch_size counts samples: {batch:,} hold no whole groups of {n:,}")
    shared = settings.whole("max_steps")
    parts = {settings.whole(f"{part}.max_steps") for part in ("trainer", "orchestrator")} - {None}
    if len(parts) > 1 or (shared and parts - {shared}):
        settings.inconsistent.append("max_steps differs between the trainer and the orchestrator; they must agree")
    steps = shared or next(iter(parts), None)
    if steps is None and not settings.unknown:
        settings.note_missing("update steps (prime-rl then runs for ever)", "max_steps")
    settings.notes.append("prime-rl samples ahead; stale, failed and discarded rollouts are generated in addition")
    nodes = settings.whole("deployment.num_train_nodes")
    if nodes is None:
        world = settings.whole("deployment.num_train_gpus", default=1)
    else:
        world = product(nodes, settings.whole("deployment.gpus_per_node", default=8))
    settings.ranks(world, context=("trainer.model.cp", "model.cp"))
    return settings.batching(problems_generated=problems, rollouts_per_problem=n, generations=steps)


def _group(settings: Settings) -> int | None:
    """The group size: from the sources of problems if they set one, otherwise from the orchestrator."""
    sources = _sources(settings)
    own = {number: value for number, value in sources.items() if value is not None}
    shared = None
    if len(own) < max(1, len(sources)):
        shared = settings.whole(*GROUP, default=1)
        if shared is None:
            return None
    sizes = {settings.check_whole(value, f"{SOURCES[0]}.{number}.group_size") for number, value in own.items()}
    if shared is not None:
        sizes.add(shared)
    if len(sizes) > 1:
        mixed = " and ".join(f"{size:,}" for size in sorted(sizes))
        settings.unknown.append(f"rollouts per problem: groups of {mixed} are mixed, by a group_size of the sources")
        return None
    n = sizes.pop()
    overridden, value = settings.find(*GROUP)
    if own and value is not None and value != n:
        settings.notes.append(f"the group_size of the sources, {n:,}, overrides {overridden}")
    return n


def _sources(settings: Settings) -> dict[str, Value]:
    """The ``group_size`` of every source of training problems, by index; None if a source does not set it."""
    sizes: dict[str, Value] = {}
    for name in SOURCES:
        for key, value in settings.values.items():
            number, _, field = key.removeprefix(f"{name}.").partition(".")
            if key.startswith(f"{name}.") and number.isdigit():
                settings.read.add(key)
                sizes[number] = value if field == "group_size" else sizes.get(number)
    return sizes


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run; pass^k (all k right) is the unbiased worst@k.

    An evaluation logged at step s began once the batches of the steps before s were shipped.
    """
    found: dict[int, dict[str, Score]] = {}
    for step, metrics in log.rows:
        for env, (subset, scores) in _scores(metrics).items():
            if subset:
                settings.notes.append(f"of each evaluation the {subset} rollouts are read")
            samples = max(int(name.split("_")[2]) for name in scores)
            found.setdefault(step, {})[env] = Score(
                samples=samples,
                scores=scores,
                metric=f"eval/{env}/avg@{samples}",
                # Since 0.8, responses with an error may be left out, so their number is unknown.
                spread=None if subset else Spread(size=1),
                # prime-rl computes these only if all rewards are 0 or 1.
                binary=any(not name.startswith("avg") for name in scores),
            )
    if not found:
        return []
    counting = _counting(log, settings, batching, min(found))
    evals = counting.evaluations(found, before=lambda step: True)
    if counting.rollouts_error:
        settings.notes.append("rollouts cancelled on their way are not counted, and are the count's error")
    if any(ROLLOUTS in metrics and not _length(metrics)[1] for step, metrics in log.rows if step <= max(found)):
        settings.notes.append("tokens are progress/tokens, which counts prompts too")
    return evals


def _required_group(log: Log, settings: Settings, batching: Batching) -> int:
    """n, without which a log cannot be read."""
    n = batching.rollouts_per_problem
    if n is None or batching.problems_generated is None:
        settings.required("orchestrator.batch_size", "batch_size")
        settings.required(*GROUP)
        raise BudgetError(f"{log.name}: {'; '.join([*settings.unknown, *settings.inconsistent])}")
    return n


def _length(metrics: Mapping[str, float]) -> tuple[float, bool]:
    """Mean response tokens of a step, and whether prompts are excluded."""
    mean = metrics.get("train/agg/all/num_output_tokens/mean")
    if mean is not None:
        return mean, True
    decoded = metrics.get("progress/decode_tokens")
    tokens, count = metrics.get("progress/tokens", 0.0) if decoded is None else decoded, metrics[ROLLOUTS]
    out, into = metrics.get("progress/output_tokens"), metrics.get("progress/input_tokens")
    if decoded is None and out is not None and into is not None and out + into > 0:
        # This covers what was shipped; discarded responses are assumed to be alike.
        return tokens * out / (out + into) / max(count, 1), True
    return tokens / max(count, 1), decoded is not None


def _cancelled(metrics: Mapping[str, float], n: int) -> int:
    """Rollouts that were started and cancelled; older releases count groups."""
    return int(sum(v * (n if m["groups"] else 1) for k, v in metrics.items() if (m := CANCELLED.match(k))))


def _counting(log: Log, settings: Settings, batching: Batching, evaluated: int = 1) -> Counting:
    """The run's count, from the first step that was trained or ``evaluated``: 0 before prime-rl 0.7, then 1.

    A batch holds what is trained on. Groups whose rewards are all equal are discarded and replaced, so more is
    generated than the batch holds.
    """
    n, logged = _required_group(log, settings, batching), log.keys
    reason_unknown = f"its log holds no {ROLLOUTS}, which counts discarded groups too, where the batch does not"
    if ROLLOUTS not in logged and SHIPPED in logged:
        reason_unknown = f"{SHIPPED} is what was trained on, and {ROLLOUTS} (since prime-rl 0.7) is not logged"

    def trains(metrics: Metrics) -> bool:
        return ROLLOUTS in metrics or SHIPPED in metrics

    def own(_: Counting, __: int, metrics: Metrics) -> tuple[int | None, int]:
        return int(metrics[ROLLOUTS]) if ROLLOUTS in metrics else None, _cancelled(metrics, n)

    return Counting(
        log=log,
        per_step=settings.whole("rollouts_per_step"),
        reason_unknown=reason_unknown,
        updates=1,
        batch=batching.batch_rollouts or 0,
        lengths=[_length(metrics)[0] if ROLLOUTS in metrics else 0.0 for _, metrics in log.rows],
        gaps=[0.0] * len(log.rows),
        own=own,
        trains=trains,
        begun=min([evaluated, 1, *(step for step, metrics in log.rows if trains(metrics))]) - 1,
    )


def _scores(metrics: Mapping[str, float]) -> dict[str, tuple[str, dict[str, float]]]:
    """Metric columns by environment, and their subset: the clean rollouts if there are two."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in metrics.items():
        match = METRIC.match(name)
        if match:
            env, subset = match["env"] + (match["agent"] or ""), match["subset"] or ""
            scores.setdefault(env, {}).setdefault(subset, {})[f"{COLUMNS[match['what']]}_at_{match['k']}"] = value
    best = {env: max(subsets, key=["", "all", "effective"].index) for env, subsets in scores.items()}
    return {env: (subset, scores[env][subset]) for env, subset in best.items()}


PRIME_RL = Trainer(
    name="prime-rl",
    title="prime-rl",
    style="dashes",
    write=_write,
    parse=_parse,
    logs=LogReader(
        layout=LogLayout(steps=("step",), needed=re.compile(rf"{METRIC.pattern}|{ROLLOUTS}$")),
        marks=re.compile(rf"{METRIC.pattern}|{ROLLOUTS}$"),
        seeds=("orchestrator.seed",),
        learning_rates=("trainer.optim.lr", "optim.lr"),
        evaluations=evaluations,
        progress=lambda log, settings, batching: _counting(log, settings, batching).progress(),
        understands=("rollouts_per_step",),
    ),
    parallelism=("context",),
)
