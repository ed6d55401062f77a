"""A trainer: how a run is written for it, and how its settings and logs are read."""

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
        layout: Where the logs have their steps, and what is read of them.
        marks: Metrics and settings that no other trainer logs.
        evaluations: The evaluations of a run with scores as logged, none if it has none. Raises a BudgetError if a
            needed setting is missing, or a count or a metric in the log is impossible.
        progress: What a run generated for training, step by step. Raises a BudgetError likewise.
        rate: Metric of an update's learning rate; empty if none is read.
        understands: Settings that it reads, besides the trainer's own and those of every reader (``doctor.SHARED``).
        beside: Names of files that lie beside its logs and are not logs.
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
    """A trainer: how to write and read its settings, and the kinds of ``Parallelism`` that it supports."""

    name: str
    title: str
    style: Style
    write: Callable[[RunPlan], Configuration]
    parse: Callable[[Settings], Batching]
    logs: LogReader | None = None
    parallelism: tuple[str, ...] = ()
