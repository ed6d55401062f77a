"""Tinker's cookbook: ``groups_per_batch`` counts prompts, each with ``group_size`` trajectories.

Read in ``tinker_cookbook/rl/{train,rollouts,data_processing,metric_util,rollout_logging}.py``,
``tinker_cookbook/stores/training_store.py`` and ``tinker_cookbook/utils/ml_log.py`` of August 2026:

* ``config.json`` holds the settings, with those of the problems under ``dataset_builder``. An iteration is a batch, and
  takes ``num_substeps`` optimizer steps. A run ends with its problems, or after ``max_steps`` iterations, which are
  counted from 0; the last batch of the problems may be short. The service provides the devices.
* ``metrics.jsonl`` has a line for each iteration, which includes the evaluation of the policy *before* its update. If
  training is asynchronous, an evaluation has its own line, and evaluates the policy after as many updates as its step
  says.
* ``env/all/total_episodes`` and ``total_ac_tokens`` (what the model wrote, without observations) cover the groups that
  were trained on. With ``remove_constant_reward_groups``, they exclude groups without a spread of rewards.
* ``iteration_NNNNNN/train_rollout_summaries.jsonl`` has a line for each trajectory: its group, its reward and the
  tokens of its turns. It covers every generated group, unless training streams minibatches or is asynchronous, since
  those drop groups earlier. A run that resumes from a checkpoint writes its iterations again.
* ``eval_NAME_rollout_summaries.jsonl`` is the same for an evaluation. ``NAME/env/all/reward/total`` and, if the
  environment has a metric of that name, ``NAME/env/all/correct`` are its means. ``NAME/env/TAG`` covers a part of it.
* ``rollout_errors/total`` and ``groups_skipped`` count what has failed since the process started; failed rollouts were
  generated in part.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isclose, isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ..errors import BudgetError, reason
from .counting import TRAINING_REWARD, Counting, LoggedEvaluation, Metrics, Score, Spread
from .logs.log import Log, LogLayout
from .settings import Batching, Configuration, RunPlan, Settings
from .trainer import LogReader, Trainer

METRIC = re.compile(r"(?:(?P<name>[^/]+)/)?env/(?P<tag>[^/]+)/(?P<what>.+)$")
EPISODES, TOKENS = "env/all/total_episodes", "env/all/total_ac_tokens"
LARGEST = 2**40
"""Upper bound for the length of a trajectory."""
ERRORS, SKIPPED = "rollout_errors/total", "rollout_errors/groups_skipped"
SUCCESS = ("correct", "reward/total")
"""Metrics that may be the success rate, most likely first."""
GROUP = ("group_size", "dataset_builder.group_size", "dataset_builder.train_group_size")
GROUPS = (
    "groups_per_batch",
    "dataset_builder.groups_per_batch",
    "dataset_builder.batch_size",
    "async_config.groups_per_batch",
    "stream_minibatch_config.groups_per_batch",
)
ASYNC = r"async_config\..*|max_steps_off_policy"
REMOVES = "remove_constant_reward_groups"
TEST_GROUP = ("test_group_size", "dataset_builder.test_group_size")


def _write(run: RunPlan) -> Configuration:
    a = run.allocation
    return Configuration(
        settings={
            "group_size": a.rollouts_per_problem,
            "groups_per_batch": a.problems_per_batch,
            "num_substeps": 1,
            "max_steps": a.update_steps,
            "learning_rate": run.learning_rate,
        },
        notes=(
            "the recipes' own names; devices are the service's",
            f"needs {a.problems_per_batch * a.update_steps:,} problems, or the run ends with them",
        ),
    )


def _parse(settings: Settings) -> Batching:
    groups, n = settings.whole(*GROUPS), settings.whole(*GROUP)
    for value, what, name in ((groups, "problems per batch", GROUPS[0]), (n, "rollouts per problem", GROUP[0])):
        if value is None:
            settings.note_missing(what, name)
    limit, steps = settings.whole("max_steps"), None
    if settings.problems and groups:
        steps = -(-settings.problems // groups)
        if settings.problems % groups:
            settings.notes.append(f"the last batch of the problems holds {settings.problems % groups:,}")
        if limit and limit > steps:
            settings.inconsistent.append(f"the problems end the run after {steps:,} of {limit:,} steps")
    elif limit is None:
        settings.note_epochs("max_steps")
    if settings.matching(ASYNC) and settings.is_on(REMOVES):
        settings.notes.append("groups without a spread of rewards are replaced, in addition to B_p · n · M rollouts")
    settings.ranks(settings.world_size)
    return settings.batching(
        problems_generated=groups,
        rollouts_per_problem=n,
        generations=min((each for each in (limit, steps) if each), default=None),
        updates=settings.whole("num_substeps") or 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One trajectory in a summary.

    Attributes:
        tokens: What the model wrote in all its turns.
        values: By metric name, one value per turn that has it.
    """

    group: int
    tags: frozenset[str]
    tokens: int
    values: Mapping[str, Sequence[float]]


def trajectories(log: Log, step: int, name: str) -> list[Trajectory]:
    """The trajectories of an iteration, ``train`` or ``eval_NAME``; none if no summary of them lies beside the log."""
    path = Path(log.name).parent / f"iteration_{step:06d}" / f"{name}_rollout_summaries.jsonl"
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_trajectory(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            raise BudgetError(f"{path}: line {number} is no summary of a trajectory") from None
    return found


def _trajectory(record: Mapping[str, Any]) -> Trajectory:
    group, tokens = record["group_idx"], [step["ac_len"] for step in record["steps"]]
    if not all(type(count) is int and 0 <= count < LARGEST for count in (group, *tokens)):
        raise ValueError
    values = {"reward/total": [float(record["total_reward"])]}
    for metrics in (*(step.get("metrics") or {} for step in record["steps"]), record.get("trajectory_metrics") or {}):
        for name, value in metrics.items():
            if isinstance(value, int | float):
                values.setdefault(name, []).append(float(value))
    if not isfinite(values["reward/total"][0]):
        raise ValueError
    tags = frozenset(map(str, record.get("tags") or ()))
    return Trajectory(group=group, tags=tags, tokens=sum(tokens), values=values)


def groups(of: Iterable[Trajectory]) -> list[list[Trajectory]]:
    """Sort trajectories by group."""
    by_group: dict[int, list[Trajectory]] = {}
    for trajectory in of:
        by_group.setdefault(trajectory.group, []).append(trajectory)
    return list(by_group.values())


def _with_a_spread(of: Sequence[Trajectory]) -> list[Trajectory]:
    """Trajectories left after removing groups without a spread of rewards; the first group if none has any."""
    every = groups(of)
    kept = [group for group in every if len({t.values["reward/total"][0] for t in group}) > 1]
    return [t for group in kept or every[:1] for t in group]


def _counting(log: Log, settings: Settings) -> Counting:
    """The run's count of iterations."""
    n, logged = settings.required(*GROUP), log.keys
    batch, ahead = n * settings.required(*GROUPS), _is_ahead(log, settings)
    # Asynchronous training generates groups ahead; streaming drops groups before they are counted.
    streams = ahead or "sampling_client/step_max" in logged
    given, reason_unknown = settings.whole("rollouts_per_step"), ""
    if ahead and _removes(log, settings):
        reason_unknown = "groups without a spread of rewards were replaced"
        if given is None and SKIPPED not in logged:
            raise settings.missing("rollouts_per_step", because=f"{reason_unknown}, and how many is not logged")
    per_step = given or (None if reason_unknown else batch)
    failed = dict[str, float]()
    generated = {step: _generated(log, step, metrics) for step, metrics in log.rows if _is_iteration(metrics)}

    def new(name: str, metrics: Metrics) -> int:
        """Failures in an iteration: the counters restart with every start of the process."""
        value, before = metrics.get(name), failed.get(name, 0.0)
        if value is None:
            return 0
        failed[name] = value
        return int(value - before if value >= before else value)

    def own(counting: Counting, step: int, metrics: Metrics) -> tuple[int | None, int]:
        episodes, _, whole = generated[step]
        errors, skipped = new(ERRORS, metrics), new(SKIPPED, metrics)
        if episodes is not None and not 0 <= episodes == int(episodes):
            raise BudgetError(f"{log.name}: step {step} is logged with {episodes:g} trajectories")
        made = None if episodes is None else int(episodes)
        complete = not ahead and (made == batch or (whole and not streams))
        if made is not None and not complete and _removes(log, settings):
            # Groups without a spread are not included. Their length is assumed to be that of the rest.
            made = made + skipped * n if per_step is None else None
            skipped = 0
        elif made is None and EPISODES in logged:
            # Everything failed.
            made, skipped = 0, batch // n
        under_way = batch if ahead and not counting.rollouts_error else 0
        return made, errors + skipped * n + under_way

    length = next((Fraction(m[TOKENS]) / int(m[EPISODES]) for _, m in log.rows if m.get(EPISODES) and TOKENS in m), 0)
    lengths = [length]
    for step, _ in log.rows:
        episodes, tokens, _ = generated.get(step, (None, None, False))
        length = Fraction(tokens) / Fraction(episodes) if episodes and tokens is not None else length
        lengths.append(length)
    return Counting(
        log=log,
        per_step=per_step,
        reason_unknown=reason_unknown,
        updates=settings.whole("num_substeps") or 1,
        batch=batch,
        lengths=lengths[1:],
        gaps=lengths[:-1],
        own=own,
        trains=_is_iteration,
        number=lambda step: step + 1,
    )


def _generated(log: Log, step: int, metrics: Metrics) -> tuple[float | None, float | None, bool]:
    """Trajectories of an iteration, their tokens, and whether its summary gives them; the summary must fit the log."""
    episodes, tokens, whole = metrics.get(EPISODES), metrics.get(TOKENS), trajectories(log, step, "train")
    for part in (whole, _with_a_spread(whole)) if whole else ():
        if episodes in (None, len(part)) and tokens in (None, sum(t.tokens for t in part)):
            return len(whole), sum(t.tokens for t in whole), True
    if whole:
        raise BudgetError(
            f"{log.name}: step {step} has {episodes or 0:g} trajectories and {tokens or 0:g} tokens, its summary "
            f"in iteration_{step:06d} {len(whole):,} and {sum(t.tokens for t in whole):,}: they are not of one run"
        )
    return episodes, tokens, False


def _is_ahead(log: Log, settings: Settings) -> bool:
    """Return whether training is asynchronous: only then do lines have the metric."""
    return "training_client/step" in log.keys or bool(settings.matching(ASYNC))


def _removes(log: Log, settings: Settings) -> bool:
    """Return whether groups without a spread of rewards are removed."""
    mixed = "env/all/by_group/frac_mixed"
    # If some of what was trained on had no spread, nothing is removed.
    return not any(0 < m.get(mixed, 1.0) < 1 for _, m in log.rows) and settings.required_switch(REMOVES)


def _is_iteration(metrics: Mapping[str, float]) -> bool:
    return "progress/done_frac" in metrics or EPISODES in metrics


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run or, with ``train_reward``, its mean training rewards."""
    training = settings.is_on("train_reward")
    scores = _training_scores(log, settings) if training else _scores(log, settings)
    if not scores:
        return []
    counting = _counting(log, settings)
    evals = counting.evaluations(scores, before=lambda step: True, split="train" if training else "validation")
    if _is_ahead(log, settings):
        settings.notes.append("groups under way are the count's error; stale ones that were discarded are not counted")
    elif counting.rollouts_error:
        settings.notes.append("rollouts that failed are the count's error")
    return evals


Scores = dict[int, dict[str, Score]]
"""Scores by step and problem set."""


def _scores(log: Log, settings: Settings) -> Scores:
    """Every problem set of the evaluations, and its tagged parts."""
    logged = log.keys
    sets = sorted({(m["name"], m["tag"]) for key in logged if (m := METRIC.match(key)) and m["name"]})
    found: Scores = {}
    for name, tag in sets:
        prefix = f"{name}/env/{tag}/"
        what = _metric(log, settings, prefix, logged)
        label = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._") or "unnamed"
        settings.notes.append(f"avg_at_k is {prefix}{what}")
        summaries: dict[int, list[Trajectory]] = {}
        for step in [step for step, metrics in log.rows if prefix + what in metrics]:
            # A summary holds the last evaluation of a step, the log the first.
            again = any(f"evaluated step {step} again" in note for note in log.notes)
            whole = [] if again else trajectories(log, step, f"eval_{label}")
            summaries[step] = [t for t in whole if tag == "all" or tag in t.tags]
        sizes = Counter(len(group) for of in summaries.values() for group in groups(of))
        rows = dict(log.rows)
        for step, of in summaries.items():
            samples = None if of else sizes.most_common(1)[0][0] if sizes else 0
            if samples == 0:
                # Most recipes sample one per question.
                mixed = any(m.get(f"{prefix}by_group/frac_mixed", 0.0) > 0 for _, m in log.rows)
                samples = settings.required(*TEST_GROUP, default=None if mixed else 1)
            score = _score(log, prefix, what, step, rows[step], of, samples)
            found.setdefault(step, {})[name if tag == "all" else f"{name}/{tag}"] = score
    return found


def _training_scores(log: Log, settings: Settings) -> Scores:
    """Training rewards of the policy before the update."""
    logged = log.keys
    if EPISODES not in logged:
        return {}
    what = _metric(log, settings, "env/all/", logged)
    found: Scores = {}
    for step, metrics in log.rows:
        of = trajectories(log, step, "train")
        if f"env/all/{what}" in metrics:
            if not of and _removes(log, settings):
                left = f"{REMOVES} left, and there is no summary of all in iteration_{step:06d}"
                raise BudgetError(f"{log.name}: the rewards of training are of the groups that {left}")
            # The log may cover only the groups that were kept.
            samples = None if of else settings.required(*GROUP)
            found[step] = {"train": _score(log, "env/all/", what, step, {} if of else metrics, of, samples)}
    settings.notes.append(TRAINING_REWARD)
    return found


def _metric(log: Log, settings: Settings, prefix: str, logged: set[str]) -> str:
    wanted = settings.text("metric").removeprefix(prefix)
    what = next((name for name in ([wanted] if wanted else SUCCESS) if prefix + name in logged), None)
    if what is None:
        raise BudgetError(f"{log.name}: there is no metric {prefix}{wanted or SUCCESS[1]}")
    return what


def _score(
    log: Log,
    prefix: str,
    what: str,
    step: int,
    metrics: Mapping[str, float],
    of: Sequence[Trajectory],
    samples: int | None,
) -> Score:
    """The score from its trajectories, checked against the log; if ``samples`` is given, from the log alone."""
    logged, episodes = metrics.get(prefix + what), metrics.get(f"{prefix}total_episodes")
    if samples is not None:
        questions = None if episodes is None else int(episodes) // samples
        columns = {f"avg_at_{samples}": metrics[prefix + what]}
        return Score(
            samples=samples, questions=questions, scores=columns, metric=prefix + what, spread=Spread(size=samples)
        )
    values = [value for t in of for value in t.values.get(what, ())]
    found = mean(values) if values else float("nan")
    differs = logged is not None and not isclose(found, logged, rel_tol=1e-5, abs_tol=1e-6)
    if episodes not in (None, len(of)) or differs:
        raise BudgetError(
            f"{log.name}: {prefix}{what} is {logged or 0:g} of {episodes or 0:g} trajectories at step {step}, and the "
            f"summary in iteration_{step:06d} has {found:g} of {len(of):,}: they are not of one run"
        )
    every = groups(of)
    sizes = Counter(map(len, every))
    samples = sizes.most_common(1)[0][0]
    columns, spread = {f"avg_at_{samples}": found}, None
    if len(sizes) == 1 and all(len(t.values.get(what, ())) == 1 for t in of):
        spread = Spread(deviation=stdev(values) if values[1:] else None, size=len(values), corrected=True)
        if samples > 1:
            columns[f"best_at_{samples}"] = mean(max(t.values[what][0] for t in group) for group in every)
    return Score(samples=samples, questions=len(every), scores=columns, metric=prefix + what, spread=spread)


TINKER = Trainer(
    name="tinker",
    title="Tinker cookbook",
    style="hydra",
    write=_write,
    parse=_parse,
    logs=LogReader(
        layout=LogLayout(
            # The cookbook passes its own step to W&B.
            steps=("step", "_step", "Step"),
            needed=re.compile(r"(?:[^/]+/)?env/[^/]+/(?:total_episodes|total_ac_tokens|reward/total|correct)$"),
        ),
        marks=re.compile(r"(?:[^/]+/)?env/all/total_(?:episodes|ac_tokens)$"),
        seeds=("seed", "dataset_builder.seed"),
        learning_rates=("learning_rate",),
        evaluations=evaluations,
        progress=lambda log, settings, _: _counting(log, settings).progress(),
        understands=("metric", "rollouts_per_step", "train_reward", REMOVES),
        beside=re.compile(r".*_rollout_summaries\.jsonl|(?:checkpoints|timing_spans|trace_events)\.jsonl"),
    ),
)
