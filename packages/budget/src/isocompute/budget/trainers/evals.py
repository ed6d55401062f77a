"""``evals`` tables from the logs of trainers: runs of any source are read, checked, numbered and joined."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from typing import Any

import polars as pl

from ..contract import tables
from ..errors import BudgetError
from .counting import LARGEST_COUNT, LoggedEvaluation, StepCounts
from .logs.log import EVALUATED, Log, flat, join
from .registry import TRAINERS
from .rewards import success_rates
from .settings import Batching, MissingSettingError, Settings, parse_value
from .trainer import LogReader, Trainer

SHARED = ("problem_set", "problems", "questions", "same_before", "scale", "seed", "step_column")
"""Settings that ``--set`` accepts for every trainer; ``questions.SET`` is that of one problem set."""
INCIDENTAL = re.compile(
    r".*(dir|run_name|experiment_name|resume|checkpoint|trainer_state|max_steps|num_train_epochs|num_episodes"
    r"|total_epochs|total_training_steps|(eval|save|logging|test)_(steps|freq|strategy)).*"
)
"""Settings that may differ between two starts of one run: where it is kept, how long it goes on, when it logs."""


def table(
    parts: Sequence[tuple[str, list[dict[str, Any]]]], notes: list[str], *, where: str, numbered: bool
) -> tuple[pl.DataFrame, list[str]]:
    """The rows of several runs as one checked table; ``numbered``, those of one n and B_p get the seeds 0, 1, 2, …."""
    counts = Counter[tuple[int, int]]()
    seen: dict[tuple[Any, ...], str] = {}
    for name, rows in parts:
        cell = rows[0]["rollouts_per_problem"], rows[0]["problems_per_batch"]
        for row in rows:
            row["seed"] = counts[cell] if numbered else row["seed"]
            # A fit would take two runs for one.
            other = seen.setdefault((*cell, row["seed"], row["problem_set"]), name)
            if other != name:
                raise BudgetError(
                    f"{other} and {name} have one seed, {row['seed']}, at n = {cell[0]} and B_p = {cell[1]}: leave one "
                    "out if they are the same run, else give each a seed (--set seed=NUMBER, or seed=auto for all)"
                )
        counts[cell] += 1
    frame = pl.DataFrame([row for _, rows in parts for row in rows], infer_schema_length=None)
    # Every avg_at_k is one quantity; another metric must be of all evaluations.
    metrics = [c for c in frame.columns if re.match(tables.METRIC_PATTERN, c) and not c.startswith("avg_at_")]
    partial = [c for c in metrics if frame[c].null_count()]
    dropped = [f"left out, because not every evaluation has it: {', '.join(partial)}"] if partial else []
    return tables.check(frame.drop(partial), "evals", where=where), notes + dropped


def reader_of(known: Trainer) -> LogReader:
    """Return the reader of a trainer's logs."""
    if known.logs is None:
        able = ", ".join(name for name, other in TRAINERS.items() if other.logs)
        raise BudgetError(f"the logs of {known.title} are not read, only its settings; those of {able} are")
    return known.logs


def rows_of(
    known: Trainer, log: Log, shared: Mapping[str, Any], given: Mapping[str, str], *, used: set[str] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals`` for one run, none where it has no evaluation, and notes.

    Args:
        shared: The configuration of all runs, with dotted keys.
        used: Gathers the settings that were looked for, where another run may use what this one does not.
    """
    reader = reader_of(known)
    settings = settings_of(log, shared, given)
    batching = known.parse(settings)
    settings.notes[:] = [n for n in settings.notes if "default" in n or "B_p is rounded" in n]
    _check_begins(log, settings)
    evaluations = reader.evaluations(log, settings, batching)
    sets = sorted({e.problem_set for e in evaluations})
    asked = [_questions(settings, e, sets) for e in evaluations]
    settings.read.update(SHARED, reader.understands, reader.seeds, reader.learning_rates)
    if used is None:
        _refuse_unused(known, settings, given)
    else:
        used |= settings.read
    if not evaluations:
        return [], []
    settings.notes += _without_value(log, reader, evaluations)
    n, problems = batching.rollouts_per_problem, batching.problems_per_batch
    if n is None or problems is None:
        # Readers ask for what they need, so this is what only the settings could say; no steps follow from them here.
        remarks = [r for r in batching.unknown + batching.inconsistent if not r.startswith("update steps")]
        raise BudgetError(f"{log.name}: {'; '.join(remarks).replace('--world-size', '--set world_size=NUMBER')}")
    seed, rate = settings.find("seed", *reader.seeds)[1], settings.find(*reader.learning_rates)[1]
    seed = 0 if seed in (None, "auto") else seed
    if isinstance(seed, bool) or not isinstance(seed, int | float) or seed != int(seed) or abs(seed) >= 2**53:
        raise BudgetError(f"{log.name}: seed is {seed}; it must be a whole number, or auto")
    common = {
        "run_id": sha256(repr((log.name, sorted(settings.values.items(), key=str))).encode()).hexdigest()[:16],
        "rollouts_per_problem": n,
        "problems_per_batch": problems,
        "seed": int(seed),
        "learning_rate": float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) else None,
    }
    if None not in asked:
        evaluations = [replace(e, questions=questions) for e, questions in zip(evaluations, asked, strict=True)]
    rated, said = success_rates(evaluations, settings.text("scale"), where=log.name)
    settings.notes += said
    rows = [{**common, **_row(settings, e, questions, sets)} for e, questions in zip(rated, asked, strict=True)]
    for row in rows:
        for count in ("step", "rollouts", "tokens"):
            if not 0 <= row[count] < LARGEST_COUNT:
                raise BudgetError(f"{log.name}: adds up to {row[count]:.3g} {count}, which is impossible")
    return rows, sorted(set(settings.notes))


def progress_of(
    known: Trainer, log: Log, shared: Mapping[str, Any], given: Mapping[str, str]
) -> tuple[StepCounts, Settings, Batching]:
    """Count what a run generated for training, step by step, and return the settings that this follows from."""
    reader = reader_of(known)
    settings = settings_of(log, shared, given)
    batching = known.parse(settings)
    progressed = reader.progress(log, settings, batching)
    settings.read.update(SHARED, reader.understands, reader.seeds, reader.learning_rates)
    settings.read.update(key for key in given if key.startswith("questions."))
    _refuse_unused(known, settings, given)
    return progressed, settings, batching


def _without_value(log: Log, reader: LogReader, evaluations: Sequence[LoggedEvaluation]) -> list[str]:
    """Say how many evaluations have no value of the metric that is read: it was NaN there, or not logged."""
    needed = reader.layout.needed
    evaluated = [any(EVALUATED.match(name) and needed.match(name) for name in m) for _, m in log.rows].count(True)
    lacking = evaluated - len({e.count.step for e in evaluations})
    if lacking <= 0 or any(e.split == "train" for e in evaluations):
        return []
    metrics = ", ".join(sorted({e.metric for e in evaluations if e.metric}))
    return [f"{lacking} of {evaluated} evaluations {'has' if lacking == 1 else 'have'} no value of {metrics}: left out"]


def _refuse_unused(known: Trainer, settings: Settings, given: Mapping[str, str]) -> None:
    unused = sorted(set(given) - settings.read)
    if unused:
        there = ", ".join(sorted(settings.read))
        raise BudgetError(f"there is no setting {unused[0]} that {known.title} logs are read by; there are {there}")


def settings_of(log: Log, shared: Mapping[str, Any], given: Mapping[str, str]) -> Settings:
    """Join what a log, a configuration file and the user say."""
    logged = plain(log.config, log.name)
    said = {key: parse_value(value) for key, value in given.items()}
    for key in logged.keys() & shared.keys() - said.keys():
        if None not in (logged[key], shared[key]) and str(logged[key]) != str(shared[key]):
            both = f"{logged[key]} in its logs and {shared[key]} in the configuration file"
            raise BudgetError(f"{log.name}: {key} is {both}; say which with --set {key}=VALUE")
    merged = {**shared, **{k: v for k, v in logged.items() if v is not None}, **said}
    settings = Settings(values=merged, where=log.name, given=frozenset(said))
    # A trainer's state is not a configuration, whatever it repeats of one.
    settings.has_defaults = any(not key.startswith("trainer_state.") for key in (*logged, *shared))
    settings.problems = settings.whole("problems")
    return settings


def join_restarts(logs: Sequence[Log], reader: LogReader) -> list[Log]:
    """Runs in which those that only go on with another one, from a checkpoint, are joined to it.

    Loggers open a further folder or run for every start. Two runs of one configuration of which the second begins where
    the first had come to are one run; two that begin alike are two.
    """
    out: list[Log] = []
    for log in sorted(logs, key=lambda log: _first(log, reader)):
        met = [(k, _differences(other, log)) for k, other in enumerate(out) if _meets(other, log, reader)]
        before, nearest = min(met, key=lambda each: len(each[1]), default=(None, {}))
        if before is not None and not nearest:
            out[before] = joined(out[before], log, reader)
        else:
            out.append(replace(log, changed={**log.changed, **(nearest if steps_before(log) else {})}))
    order = {log.name: k for k, log in enumerate(logs)}
    return sorted(out, key=lambda log: order[log.name])


def joined(first: Log, second: Log, reader: LogReader) -> Log:
    """A log and the one that goes on with it as one."""
    whole = join(first.name, [first.rows, second.rows], replace(reader.layout, entry=None), first.config)
    notes = first.notes
    if first.name != second.name:
        notes = (*notes, f"{second.name} goes on with {first.name} and is read as the same run")
    restarts = tuple(sorted({*first.restarts, *whole.restarts, *second.restarts}))
    changed = {**first.changed, **second.changed}
    left_out = (*first.left_out, *second.left_out)
    return replace(whole, restarts=restarts, changed=changed, notes=notes, left_out=left_out)


def _meets(first: Log, second: Log, reader: LogReader) -> bool:
    """Return whether a log begins where another had come to."""
    if not first.config or not second.config or _first(second, reader) <= _first(first, reader):
        return False
    steps = _steps(first, reader)
    # Its first entry comes as long after the checkpoint as an entry after another.
    interval = max((b - a for a, b in pairwise(steps)), default=_first(first, reader))
    return _first(second, reader) <= max(step for step, _ in first.rows) + 1 + interval


def _differences(first: Log, second: Log) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, other than incidental ones, with both values."""
    keys = sorted(k for k in first.config.keys() | second.config.keys() if not INCIDENTAL.fullmatch(k))
    both = {k: (first.config.get(k), second.config.get(k)) for k in keys}
    return {k: (one, other) for k, (one, other) in both.items() if str(one) != str(other)}


def steps_before(log: Log) -> int:
    """How many steps were taken before a log begins: its first entry comes later than an entry after another."""
    steps = [step for step, metrics in log.rows if metrics]
    return max(0, steps[0] - max(b - a for a, b in pairwise(steps))) if len(steps) > 1 else 0


def _check_begins(log: Log, settings: Settings) -> None:
    """Check that one run's settings are those of all its steps."""
    read = [k for k in log.changed if k.replace("/", ".") in settings.read and not INCIDENTAL.fullmatch(k)]
    before = steps_before(log)
    if read:
        said = ", ".join(f"{key} {new} after {old}" for key, (old, new) in ((k, log.changed[k]) for k in read))
        raise BudgetError(f"{log.name}: goes on with a run under other settings, {said}: leave it out")
    if before and not settings.is_on("same_before"):
        raise MissingSettingError(
            f"{log.name}: begins after step {before:,}: give the log of these steps too, or say --set same_before=true "
            "if their settings were the same",
            name="same_before",
            choices="true",
        )
    if before:
        settings.notes.append(f"the {before:,} steps before its log are counted by its own settings, as is said")


def _steps(log: Log, reader: LogReader) -> list[int]:
    """The steps with a metric that is read."""
    return sorted({step for step, metrics in log.rows if any(map(reader.layout.needed.match, metrics))})


def _first(log: Log, reader: LogReader) -> int:
    return next(iter(_steps(log, reader)), 0)


def _questions(settings: Settings, evaluation: LoggedEvaluation, sets: Sequence[str]) -> int | None:
    """How many problems of a set were evaluated, as the user or the log says."""
    name = evaluation.problem_set
    own = settings.whole(f"questions.{name}", f"questions.{name.replace('/', '.')}")
    if own is None and len(sets) > 1 and settings.find("questions")[1] is not None:
        one = f"questions is one number for the problem sets {', '.join(sets)}"
        raise BudgetError(f"{settings.where}: {one}: give each its own, as --set questions.{sets[0]}=NUMBER")
    return own or settings.whole("questions") or evaluation.questions


def _row(
    settings: Settings, evaluation: LoggedEvaluation, questions: int | None, sets: Sequence[str]
) -> dict[str, Any]:
    if questions is None:
        raise settings.missing("questions" if len(sets) == 1 else f"questions.{evaluation.problem_set}")
    name, count = settings.text("problem_set"), evaluation.count
    if name and len(sets) > 1:
        raise BudgetError(f"{settings.where}: problem_set is one name for the problem sets {', '.join(sets)}")
    return {
        "step": count.step,
        "rollouts": count.rollouts,
        "tokens": count.tokens,
        "problem_set": name or evaluation.problem_set,
        "split": evaluation.split,
        "questions": questions,
        "samples": evaluation.samples,
        "count_source": count.count_source,
        "rollouts_error": count.rollouts_error,
        **evaluation.scores,
    }


def plain(config: Mapping[str, Any], where: str = "the settings") -> dict[str, Any]:
    """Dotted keys, and the values of what MLflow keeps as text."""
    nested = flat(config, where)
    return {k.replace("/", "."): parse_value(v) if isinstance(v, str) else v for k, v in nested.items()}
