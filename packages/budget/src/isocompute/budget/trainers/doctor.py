"""Runs in folders, from any trainer and logger: what is understood of each, and what is missing.

Each run is read from its log as rows of an ``evals`` table. A run that continues another is joined to it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from ..contract import tables
from ..contract.errors import TableError, TrackingError
from ..contract.tracking import is_of_mlflow
from ..errors import BudgetError, reason
from ..planning.diagnosis import Course
from .counting import LARGEST_COUNT, LoggedEvaluation, StepCounts, success_rates
from .course import course_of
from .logs.log import EVALUATED, Log, join
from .registry import READERS, TRAINERS
from .registry import trainer as registered
from .search import Unread, log_sources, once, read_source, with_settings_beside
from .settings import Batching, MissingSettingError, Settings, Value, configuration, meant_by, parse_value, plain
from .trainer import LogReader, Trainer

SHARED = ("problem_set", "problems", "questions", "same_before", "scale", "seed", "step_column")
"""Settings that ``--set`` accepts for every trainer; ``questions.SET`` applies to one problem set."""
INCIDENTAL = re.compile(
    r".*(dir|run_name|experiment_name|resume|checkpoint|trainer_state|max_steps|num_train_epochs|num_episodes"
    r"|total_epochs|total_training_steps|(eval|save|logging|test)_(steps|freq|strategy)).*"
)
"""Settings that may differ between two starts of one run: where it is stored, how long it runs, when it logs."""


def table(
    parts: Sequence[tuple[str, list[dict[str, Any]]]], notes: list[str], *, where: str, numbered: bool
) -> tuple[pl.DataFrame, list[str]]:
    """The rows of several runs as one checked table; with ``numbered``, runs of one n and B_p get seeds 0, 1, 2, …."""
    counts = Counter[tuple[int, int]]()
    seen: dict[tuple[Any, ...], str] = {}
    for name, rows in parts:
        cell = rows[0]["rollouts_per_problem"], rows[0]["problems_per_batch"]
        for row in rows:
            row["seed"] = counts[cell] if numbered else row["seed"]
            # A fit would take the two runs for one.
            other = seen.setdefault((*cell, row["seed"], row["problem_set"]), name)
            if other != name:
                raise BudgetError(
                    f"{other} and {name} have one seed, {row['seed']}, at n = {cell[0]} and B_p = {cell[1]}: leave one "
                    "out if they are the same run, else give each a seed (--set seed=NUMBER, or seed=auto for all)"
                )
        counts[cell] += 1
    frame = pl.DataFrame([row for _, rows in parts for row in rows], infer_schema_length=None)
    # Every avg_at_k measures the same quantity; another metric must be present in all evaluations.
    metrics = [c for c in frame.columns if re.match(tables.METRIC_PATTERN, c) and not c.startswith("avg_at_")]
    partial = [c for c in metrics if frame[c].null_count()]
    dropped = [f"left out, because not every evaluation has it: {', '.join(partial)}"] if partial else []
    return tables.check(frame.drop(partial), "evals", where=where), notes + dropped


def reader_of(known: Trainer) -> LogReader:
    """Return the reader of a trainer's logs."""
    if known.logs is None:
        raise BudgetError(
            f"the logs of {known.title} are not read, only its settings; those of {', '.join(READERS)} are"
        )
    return known.logs


def rows_of(
    known: Trainer, log: Log, shared: Mapping[str, Any], given: Mapping[str, str], *, used: set[str] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals`` for one run, none if it has no evaluation, and notes.

    Args:
        shared: The configuration of all runs, with dotted keys.
        used: Collects the settings that were looked up, since another run may use what this one does not.
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
        _refuse_unused(known, settings.read, given)
    else:
        used |= settings.read
    if not evaluations:
        return [], []
    settings.notes += _without_value(log, reader, evaluations)
    n, problems = batching.rollouts_per_problem, batching.problems_per_batch
    if n is None or problems is None:
        # Readers request what they need, so these are settings that nothing else can tell; no steps follow from them
        # here.
        remarks = [r for r in batching.unknown + batching.inconsistent if not r.startswith("update steps")]
        raise BudgetError(f"{log.name}: {'; '.join(remarks).replace('--world-size', '--set world_size=NUMBER')}")
    seed, rate = settings.find("seed", *reader.seeds)[1], settings.find(*reader.learning_rates)[1]
    seed = 0 if seed in (None, "auto") else seed
    if rate is None and (rate := _logged_rate(log, reader.rate)) is not None:
        settings.notes.append(f"the learning rate is {reader.rate}, the highest that was logged more than once")
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
    _refuse_contradicted(log, settings, batching)
    return rows, sorted(set(settings.notes))


def _logged_rate(log: Log, metric: str) -> float | None:
    """The highest learning rate in a log, if logged repeatedly: a warmup that was cut off ends below its target."""
    rates = [rate for _, metrics in log.rows if (rate := metrics.get(metric, 0.0)) > 0]
    return max(rates) if rates.count(max(rates, default=0.0)) > 1 else None


def _refuse_contradicted(log: Log, settings: Settings, batching: Batching) -> None:
    """Refuse a log whose reader found contradictions with the settings, once no setting is missing."""
    if found := settings.inconsistent[len(batching.inconsistent) :]:
        raise BudgetError(f"{log.name}: {'; '.join(found)}")


def progress_of(
    known: Trainer, log: Log, shared: Mapping[str, Any], given: Mapping[str, str]
) -> tuple[StepCounts, Settings, Batching]:
    """Count what a run generated for training, step by step; return the settings that determine the count, too."""
    read: set[str] = set()
    try:
        progressed, settings, batching = _progress(known, log, shared, given, read)
    except MissingSettingError as error:
        missing = _missing(lambda said: _progress(known, log, shared, said, read), given)
        wrong = _misspelt(known, read, given)
        if len(missing) == 1 and not wrong:
            raise
        raise MissingSettingError("; ".join([lacking(log.name, missing), *wrong]), name=error.name) from None
    _refuse_unused(known, read, given)
    return progressed, settings, batching


def foreseen(known: Trainer, source: str, shared: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """The settings that are needed to count a log, and what each may be, before anything is logged."""
    read: set[str] = set()
    missing = _missing(lambda said: _progress(known, Log(name=source, rows=[]), shared, said, read), given)
    if wrong := _misspelt(known, read, given):
        raise BudgetError("; ".join(wrong))
    return missing


def lacking(where: str, missing: Mapping[str, str]) -> str:
    """Everything missing from a run, and how to give it."""
    how = " ".join(f"--set {name}={choices or 'VALUE'}" for name, choices in missing.items())
    verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
    return f"{where}: {', '.join(missing)} {verb} not known from its logs or configuration; give {them} with {how}"


def _progress(
    known: Trainer, log: Log, shared: Mapping[str, Any], given: Mapping[str, str], read: set[str]
) -> tuple[StepCounts, Settings, Batching]:
    """``progress_of`` without its checks; ``read`` collects the settings that are looked up."""
    reader = reader_of(known)
    read.update(SHARED, reader.understands, reader.seeds, reader.learning_rates)
    read.update(key for key in given if key.startswith("questions."))
    settings = settings_of(log, shared, given)
    try:
        batching = known.parse(settings)
        progressed = reader.progress(log, settings, batching)
        _refuse_contradicted(log, settings, batching)
        return progressed, settings, batching
    finally:
        read |= settings.read


def _without_value(log: Log, reader: LogReader, evaluations: Sequence[LoggedEvaluation]) -> list[str]:
    """Say how many evaluations have no value of the metric that is read: it was NaN, or not logged."""
    needed = reader.layout.needed
    evaluated = [any(EVALUATED.match(name) and needed.match(name) for name in m) for _, m in log.rows].count(True)
    lacking = evaluated - len({e.count.step for e in evaluations})
    if lacking <= 0 or any(e.split == "train" for e in evaluations):
        return []
    metrics = ", ".join(sorted({e.metric for e in evaluations if e.metric}))
    return [f"{lacking} of {evaluated} evaluations {'has' if lacking == 1 else 'have'} no value of {metrics}: left out"]


def _refuse_unused(known: Trainer, read: Set[str], given: Mapping[str, str]) -> None:
    unused = sorted(given.keys() - read)
    if unused:
        raise BudgetError(
            f"there is no setting {unused[0]} that {known.title} logs are read by; {_near(unused[0], read)}"
        )


def _misspelt(known: Trainer, read: Set[str], given: Mapping[str, str]) -> list[str]:
    """Remarks on given names that nothing looked up and that resemble one that was."""
    wrong = [name for name in sorted(given.keys() - read) if meant_by(name, read)]
    return [f"there is no setting {name} that {known.title} logs are read by; {_near(name, read)}" for name in wrong]


def settings_of(log: Log, shared: Mapping[str, Any], given: Mapping[str, str]) -> Settings:
    """Join the settings from a log, a configuration file and the user."""
    logged = plain(log.config, log.name)
    said = {key: parse_value(value) for key, value in given.items()}
    for key in logged.keys() & shared.keys() - said.keys():
        if None not in (logged[key], shared[key]) and str(logged[key]) != str(shared[key]):
            both = f"{logged[key]} in its logs and {shared[key]} in the configuration file"
            raise BudgetError(f"{log.name}: {key} is {both}; say which with --set {key}=VALUE")
    merged = {**shared, **{k: v for k, v in logged.items() if v is not None}, **said}
    settings = Settings(values=merged, where=log.name, given=frozenset(said))
    # A trainer's state is not a configuration, even if it repeats parts of one.
    settings.has_defaults = any(not key.startswith("trainer_state.") for key in (*logged, *shared))
    settings.problems = settings.whole("problems")
    return settings


def join_restarts(logs: Sequence[Log], reader: LogReader) -> list[Log]:
    """Join runs that continue another run from a checkpoint to that run.

    Loggers open a new folder or run for every start. Two runs of one configuration are one run if the second begins
    where the first ended, and two runs if both begin alike.
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
    """Join a log and its continuation."""
    whole = join(first.name, [first.rows, second.rows], replace(reader.layout, entry=None), first.config)
    notes = first.notes
    if first.name != second.name:
        notes = (*notes, f"{second.name} goes on with {first.name} and is read as the same run")
    restarts = tuple(sorted({*first.restarts, *whole.restarts, *second.restarts}))
    changed = {**first.changed, **second.changed}
    left_out = (*first.left_out, *second.left_out)
    return replace(whole, restarts=restarts, changed=changed, notes=notes, left_out=left_out)


def _meets(first: Log, second: Log, reader: LogReader) -> bool:
    """Return whether a log begins where another ended."""
    if not first.config or not second.config or _first(second, reader) <= _first(first, reader):
        return False
    steps = _steps(first, reader)
    # The first entry comes as long after the checkpoint as each entry comes after the previous one.
    interval = max((b - a for a, b in pairwise(steps)), default=_first(first, reader))
    return _first(second, reader) <= max(step for step, _ in first.rows) + 1 + interval


def _differences(first: Log, second: Log) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, except incidental ones, with both values."""
    keys = sorted(k for k in first.config.keys() | second.config.keys() if not INCIDENTAL.fullmatch(k))
    both = {k: (first.config.get(k), second.config.get(k)) for k in keys}
    return {k: (one, other) for k, (one, other) in both.items() if str(one) != str(other)}


def steps_before(log: Log) -> int:
    """Steps taken before a log begins, judged by its first entry: it comes later than the interval between entries."""
    steps = [step for step, metrics in log.rows if metrics]
    return max(0, steps[0] - max(b - a for a, b in pairwise(steps))) if len(steps) > 1 else 0


def _check_begins(log: Log, settings: Settings) -> None:
    """Check that a run's settings apply to all its steps."""
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
    """The steps that log a metric that is read."""
    return sorted({step for step, metrics in log.rows if any(map(reader.layout.needed.match, metrics))})


def _first(log: Log, reader: LogReader) -> int:
    return next(iter(_steps(log, reader)), 0)


def _questions(settings: Settings, evaluation: LoggedEvaluation, sets: Sequence[str]) -> int | None:
    """The number of problems evaluated in a set, according to the user or the log."""
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


RUN = "run"
"""The table column that names the run."""
MOST_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Settings given by the user; for the same name, fields listed later here take precedence.

    Attributes:
        table: By run, from a table.
        runs: Run, name and value.
    """

    table: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    every: Mapping[str, str] = field(default_factory=dict)
    runs: Sequence[tuple[str, str, str]] = ()
    file: str = ""

    def step_column(self, source: str) -> str | None:
        """The step column of a file, which must be known before the file's runs are."""
        own = [v for run, name, v in self.runs if name == "step_column" and _is(run, source)]
        rows = [row.get("step_column") for run, row in self.table.items() if _is(run, source)]
        return next((v for v in (*own, self.every.get("step_column"), *rows) if v), None)

    def apart(self, one: str, other: str) -> bool:
        """Return whether the user gave two logs different values of a setting, so they cannot be logs of one run."""
        said = [(run, *cell) for run, row in self.table.items() for cell in row.items()] + [*self.runs]
        of = [{k: v for run, k, v in said if _is(run, log) or _is(run, _short(log))} for log in (one, other)]
        return any(of[0][name] != of[1][name] for name in of[0].keys() & of[1].keys())

    def of(self, runs: Sequence[Sequence[str]], others: Sequence[str] = ()) -> list[dict[str, str]]:
        """The user's settings for each run.

        Args:
            runs: The names of each run, one for each logger that recorded it.
            others: Other names that may occur and are not runs, since they were not read.
        """
        out = [dict[str, str]() for _ in runs]
        for name, row in self.table.items():
            for k in self._found(name, runs, others, f"{self.file}: "):
                out[k] |= row
        for said in out:
            said |= self.every
        for name, key, value in self.runs:
            for k in self._found(name, runs, others, f"--set {name}:{key}: "):
                out[k][key] = value
        return out

    def _found(self, name: str, runs: Sequence[Sequence[str]], others: Sequence[str], where: str) -> list[int]:
        """The run with this name, path ending or else short name; none if it was not read."""
        exact = [k for k, own in enumerate(runs) if name in own]
        ends = [k for k, own in enumerate(runs) if any(_is(name, other) for other in own)]
        found = exact or ends or [k for k, own in enumerate(runs) if any(_is(name, _short(other)) for other in own)]
        if len(found) == 1 or (not found and any(_is(name, end) for other in others for end in (other, _short(other)))):
            return found
        known = [runs[k][0] for k in found] or [own[0] for own in runs]
        more = f", … ({len(known)})" if len(known) > MOST_LISTED else ""
        listed = ", ".join(known[:MOST_LISTED]) + more
        none = f"{where}there is no run {name}; there are {listed}"
        raise BudgetError(f"{where}{name} may be each of {listed}: say more of its path" if found else none)


def _is(name: str, run: str) -> bool:
    """Return whether a name is a run's name or the end of its path."""
    name, run = name.replace("\\", "/"), run.replace("\\", "/")
    return run == name or run.endswith(f"/{name}")


def _short(run: str) -> str:
    """The logger's name for one of several runs, as in ``trackio.db (n4)``, or a file's name without its suffix."""
    given = re.search(r" \(([^()]+)\)$", run)
    return given[1] if given else run.removesuffix(Path(run).suffix)


def read_table(path: Path) -> dict[str, dict[str, str]]:
    """Settings by run, from a CSV file with a column ``run`` and one column per setting; blank cells give nothing."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        head = text.partition("\n")[0]
        # Spreadsheets write other delimiters if numbers contain commas.
        rows = list(csv.reader(io.StringIO(text), delimiter=max(",;\t", key=head.count), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise BudgetError(f"{path}: cannot be read as a table of runs ({reason(error)})") from None
    columns = [column.strip() for column in rows[0]] if rows else []
    if RUN not in columns or len(set(columns)) < len(columns) or "" in columns:
        raise BudgetError(f"{path}: the first row must name the columns, each once: {RUN} and settings")
    out: dict[str, dict[str, str]] = {}
    for number, cells in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns):
            raise BudgetError(f"{path}: row {number} has {len(cells)} cells for {len(columns)} columns")
        row = {column: cell.strip() for column, cell in zip(columns, cells, strict=True)}
        run = row.pop(RUN)
        if not run or run in out:
            raise BudgetError(f"{path}: row {number} {f'names the run {run} again' if run else 'names no run'}")
        out[run] = {name: value for name, value in row.items() if value}
    return out


MOST_QUESTIONS = 20
"""Most settings to ask for, per run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A run that was found.

    Attributes:
        rows: Rows of ``evals``; none if something is missing.
        read: Names of the settings that it is read by; none if reading could not finish.
        missing: Settings that nothing gives, and what each may be, if known.
        course: The course of the run from its log, if it is the only run.
    """

    name: str
    trainer: Trainer
    also: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    settings: Mapping[str, Value] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    training: bool = False
    notes: tuple[str, ...] = ()
    problem: str = ""
    course: Course | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The runs that were found, what looks like a log but was not read, and how many files look like logs."""

    patients: list[Patient]
    unread: list[Unread]
    files: int


def examine(
    sources: Sequence[str], given: Given, *, trainer: str | None = None, shared: Mapping[str, Any] | None = None
) -> Report:
    """Find runs and report what is understood of each; ``shared`` is a configuration for all, if logs lack it."""
    runs, unread, files = _found(sources, given, trainer, shared or {})
    if not unread and not runs:
        raise BudgetError(f"{', '.join(sources)}: no run of {', '.join(READERS)} found")
    said = given.of([(log.name, *log.also) for _, log in runs], [u.source for u in unread])
    patients = [_examine(known, log, shared or {}, own) for (known, log), own in zip(runs, said, strict=True)]
    for patient, own in zip(patients, said, strict=True):
        unused = sorted(own.keys() - given.every.keys() - patient.read) if patient.read else []
        if unused:
            raise BudgetError(f"{patient.name}: is not read by a setting {unused[0]}; {_near(unused[0], patient.read)}")
    read = frozenset[str]().union(*(patient.read for patient in patients))
    unused = sorted(given.every.keys() - read)
    if unused and patients and all(patient.read for patient in patients):
        raise BudgetError(f"no run is read by a setting {unused[0]}; {_near(unused[0], read)}")
    if len(runs) == 1:
        ((known, log),), (patient,), (own,) = runs, patients, said
        with suppress(BudgetError):
            course = course_of(log, known, rows=patient.rows, settings=settings_of(log, shared or {}, own))
            patients = [replace(patient, course=course)]
    return Report(patients=patients, unread=unread, files=files + len(unread))


def _no_log(source: str, trainer: str | None) -> str:
    """Why a file that looks like a log is not one."""
    with suppress(OSError, UnicodeError), Path(source).open(encoding="utf-8") as stream:
        if "rollouts_per_problem" in stream.readline(LONGEST_HEADER):
            return "is a table of evaluations and no log: isocompute-frontier fit reads it as it is"
    return f"holds no metric of {trainer or ', '.join(READERS)}"


LONGEST_HEADER = 10_000
"""Characters to read of a first line."""


def _found(
    sources: Sequence[str], given: Given, trainer: str | None, shared: Mapping[str, Any]
) -> tuple[list[tuple[Trainer, Log]], list[Unread], int]:
    """The runs in the sources, what was not read, and how many files look like logs."""
    by_trainer: dict[str, list[Log]] = {name: [] for name in TRAINERS}
    unread: list[Unread] = []
    files = 0
    for source in sources:
        below, closed = log_sources(source)
        unread += closed
        for one in below:
            try:
                found, failed = read_source(one, trainer, step_column=given.step_column(one))
            except TrackingError as error:
                if one == source:
                    raise
                found, failed = {}, [Unread(source=one, reason=str(error))]
            if one == source and not found and not failed and not is_of_mlflow(one):
                failed = [Unread(source=one, reason=_no_log(one, trainer))]
            files += bool(found)
            unread += failed
            for name, logs in found.items():
                by_trainer[name] += [with_settings_beside(log, one, TRAINERS[name], shared) for log in logs]
    runs = []
    for name, logs in by_trainer.items():
        if logs:
            known = TRAINERS[name]
            reader = reader_of(known)
            runs += [(known, log) for log in join_restarts(once(logs, reader, given.apart), reader)]
    return runs, unread, files


def ingest(
    name: str, sources: Sequence[str], *, config: Path | None = None, constants: Mapping[str, str] | None = None
) -> tuple[pl.DataFrame, list[str]]:
    """Turn a trainer's logs into an ``evals`` table, either all of them or none.

    Args:
        sources: Files, folders, ``runs:/ID``, ``mlflow:EXPERIMENT`` or tracking URIs.
        constants: Settings under the trainer's own names, and ``questions`` and the like. They take precedence over
            logs and config.

    Returns:
        The table, and notes on which defaults of the trainer were used and what is biased.
    """
    reader, every = reader_of(registered(name)), dict(constants or {})
    shared = configuration(config)
    runs, unread, _ = _found(sources, Given(every=every), name, shared)
    if unread:
        raise BudgetError(f"{unread[0].source}: {unread[0].reason}")
    parts: list[tuple[str, list[dict[str, Any]]]] = []
    notes: list[str] = []
    for known, log in runs:
        rows, said = rows_of(known, log, shared, every)
        if not rows:
            offer = "; --set train_reward=true reads the reward of training"
            offered = offer if "train_reward" in reader.understands else ""
            raise BudgetError(f"{log.name}: holds no evaluation that {known.title} would have logged{offered}")
        parts.append((log.name, rows))
        notes += [note for note in (*log.notes, *log.left_out, *said) if note not in notes]
    if not parts:
        raise BudgetError(f"{', '.join(sources)}: holds no run of {name}")
    return table(parts, notes, where=", ".join(sources), numbered=every.get("seed") == "auto")


def _near(name: str, known: Set[str]) -> str:
    """The setting that was probably meant, or all of them."""
    near = meant_by(name, known)
    return f"perhaps {near} is meant" if near else f"there are {', '.join(sorted(known))}"


def to_be_filled_in(patients: Sequence[Patient]) -> str:
    """A table of runs with everything missing from any of them, to be passed back with ``--runs``; blank if missing."""
    columns = list(dict.fromkeys(name for patient in patients for name in patient.missing))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([RUN, *columns])
    for patient in patients:
        known = [patient.settings.get(name) for name in columns]
        # Other values cannot be passed back.
        writer.writerow([patient.name, *(v if isinstance(v, bool | int | float | str) else "" for v in known)])
    return stream.getvalue()


def written(patients: Sequence[Patient]) -> tuple[pl.DataFrame, list[str]]:
    """One ``evals`` table of all understood runs, at least one, and notes; identical runs are numbered."""
    whole = [p for p in patients if p.rows]
    # Evaluation curves and training-reward curves measure different quantities.
    measured = [p for p in whole if not p.training] or whole
    parts, notes = [], []
    seen = Counter[tuple[Any, ...]]()
    for patient in measured:
        first = patient.rows[0]
        cell = tuple(first[c] for c in ("rollouts_per_problem", "problems_per_batch", "learning_rate", "seed"))
        number = first["seed"] + seen[cell]
        if seen[cell]:
            notes.append(f"{patient.name} has the seed of another run like it, and is numbered {number}")
        seen[cell] += 1
        parts.append((patient.name, [{**row, "seed": number} for row in patient.rows]))
    return table(parts, notes, where="the runs", numbered=False)


def _examine(known: Trainer, log: Log, shared: Mapping[str, Any], given: Mapping[str, str]) -> Patient:
    """Read a run as far as it is understood, and collect everything missing."""
    said, training = dict(given), given.get("train_reward") == "true"
    patient = Patient(name=log.name, trainer=known, also=log.also, notes=(*log.notes, *log.left_out))
    read: set[str] = set()
    try:
        patient = replace(patient, settings=settings_of(log, shared, given).values)
        rows, notes = rows_of(known, log, shared, said, used=read)
        if not rows and not training and "train_reward" in reader_of(known).understands:
            said["train_reward"], training = "true", True
            rows, notes = rows_of(known, log, shared, said, used=read)
        if rows:
            tables.check(pl.DataFrame(rows, infer_schema_length=None), "evals", where=log.name)
    except MissingSettingError:
        missing = _missing(lambda said: rows_of(known, log, shared, said, used=read), said)
        return replace(patient, missing=missing, training=training, read=frozenset(read and read | {*SHARED}))
    except (BudgetError, TableError) as error:
        return replace(patient, training=training, problem=str(error).removeprefix(f"{log.name}: "))
    return replace(
        patient,
        rows=rows,
        training=training,
        read=frozenset(read | {*SHARED}),
        notes=(*patient.notes, *notes),
        problem="" if rows else nothing_read(log),
    )


def _missing(read: Callable[[Mapping[str, str]], object], given: Mapping[str, str]) -> dict[str, str]:
    """All settings that nothing gives, and what each may be; ``read`` raises an error for one of them.

    Each missing setting raises an error until a placeholder stands for it. A placeholder may contradict the log, or
    make another setting unnecessary, so several numbers are tried.
    """
    missing: dict[str, str] = {}
    for number in ("1", "2", "8"):
        said = dict(given)
        for _ in range(MOST_QUESTIONS):
            try:
                read(said)
            except MissingSettingError as error:
                missing.setdefault(error.name, error.choices)
                said[error.name] = re.split(",| or ", error.choices)[-1].strip() or number
                continue
            except BudgetError:
                pass
            break
    return missing


EVALUATION, REWARD = re.compile(r"(?:val|eval|test)(?:[-_/]|uation)"), re.compile(r".*(?:reward|score)")
MOST_NAMED = 3


def nothing_read(log: Log) -> str:
    """List what a run logged if no evaluation in it is read, likely candidates first."""
    names = sorted(log.keys, key=lambda name: (not EVALUATION.match(name), not REWARD.match(name), name))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"no evaluation is read of what it logged: {', '.join(names[:MOST_NAMED])}{more}"
