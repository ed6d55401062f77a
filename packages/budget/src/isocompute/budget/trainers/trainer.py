"""A trainer: how a run is written for it, how its settings are read, and how its logs are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .counting import LoggedEvaluation, StepCounts
from .logs.log import Log, LogLayout
from .settings import Batching, Configuration, RunPlan, Settings, Style


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReader:
    """The reader of a trainer's logs.

    Attributes:
        layout: Where they have their steps, and what is read of them.
        marks: Metrics that no other trainer logs, and settings that none but it keeps with them.
        evaluations: The evaluations of a run with scores as they are logged, none where it has none. Raises a
            BudgetError where a setting that is needed is missing, or a count or a metric in the log is impossible.
        progress: What a run generated for training, step by step. Raises a BudgetError likewise.
        rate: Metric of the learning rate that an update had; empty where none is read.
        understands: Settings that it reads by, beside the trainer's own and those of every reader (``doctor.SHARED``).
        beside: Names of the files that lie with its logs and are none themselves.
    """

    layout: LogLayout
    marks: re.Pattern[str]
    seeds: tuple[str, ...]
    learning_rates: tuple[str, ...]
    evaluations: Callable[[Log, Settings, Batching], list[LoggedEvaluation]]
    progress: Callable[[Log, Settings, Batching], StepCounts]
    rate: str = ""
    understands: tuple[str, ...] = ()
    beside: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A trainer: how it is written and read, and the kinds of ``Parallelism`` that it supports."""

    name: str
    title: str
    style: Style
    write: Callable[[RunPlan], Configuration]
    parse: Callable[[Settings], Batching]
    logs: LogReader | None = None
    parallelism: tuple[str, ...] = ()
