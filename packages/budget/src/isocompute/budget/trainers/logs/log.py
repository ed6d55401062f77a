"""One run's log, joined by the trainer's step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import BudgetError

Row = tuple[int, Mapping[str, float]]


class TwoRunsError(BudgetError):
    """One log holds the entries of two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a trainer lays out its logs.

    Attributes:
        steps: Columns that count the trainer's steps; of those that a row has, the first counts. W&B's own ``_step``
            (``Step`` in its exports) is among them only where the trainer hands its step to W&B, which otherwise
            counts the calls of its logger.
        needed: Metrics that are read.
        entry: Renames the metrics of one entry, before those of one step are joined; None leaves them.
    """

    steps: tuple[str, ...]
    needed: re.Pattern[str]
    entry: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One run's log.

    Attributes:
        name: Where it comes from; no two runs share a name.
        rows: Metrics by the trainer's step, in order; several entries of one step are joined.
        config: The configuration that the log holds, flat, with dotted keys.
        restarts: First step logged after each start from a checkpoint that the log shows.
        notes: What to know of how the rows were joined.
    """

    name: str
    rows: list[tuple[int, dict[str, float]]]
    config: dict[str, Any] = field(default_factory=dict)
    restarts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def join(name: str, starts: Sequence[Iterable[Row]], layout: Layout, config: Mapping[str, Any] | None = None) -> Log:
    """Join the entries of a run, in the order in which they were logged.

    A run that was killed and resumed from a checkpoint logs some steps twice. The later attempt is the one that went
    on, so what the earlier one logged from that step on is dropped.

    Args:
        starts: Metrics by step, for each time that the trainer is known to have been started.
        config: The configuration that the log holds, with dotted keys.

    Raises:
        TwoRunsError: The entries are of two runs: the steps of a metric begin again.
    """
    whole: dict[int, dict[str, float]] = {}
    first: dict[str, int] = {}
    latest: dict[str, int] = {}
    notes: list[str] = []
    restarts: list[int] = []
    for attempt, entries in enumerate(starts):
        fresh = attempt > 0
        for step, logged in entries:
            metrics = layout.entry(logged) if layout.entry else logged
            needed = [key for key in metrics if layout.needed.match(key)]
            # Each metric has a clock of its own: an evaluation that takes long is logged after later steps.
            back = [key for key in needed if key in latest and _logged_before(key, step, metrics, latest, whole)]
            if back and step <= first[back[0]]:
                raise TwoRunsError(
                    f"{name}: {back[0]} begins again at step {step} after step {latest[back[0]]}: these are two runs; "
                    "put each into a file or folder of its own, or give a table of both a column run_id"
                )
            if back:
                notes.append(f"{name} went back to step {step} from step {max(whole)}: the later attempt counts")
                whole = {s: m for s, m in whole.items() if s <= step}
                latest = {key: s for key, s in latest.items() if s < step}
            if needed and (fresh or back):
                # A start that was undone by going back before it no longer counts.
                restarts = [*(earlier for earlier in restarts if earlier < step), step]
                fresh = False
            at = whole.setdefault(step, {})
            for key in needed:
                first.setdefault(key, step)
                latest[key] = step
            at.update(metrics)
    return Log(
        name=name, rows=sorted(whole.items()), config=dict(config or {}), restarts=tuple(restarts), notes=tuple(notes)
    )


def _logged_before(
    key: str, step: int, metrics: Mapping[str, float], latest: Mapping[str, int], whole: Mapping[int, dict[str, float]]
) -> bool:
    """Whether a metric was logged before, for this step or a later one, with another value."""
    return step < latest[key] or (step == latest[key] and whole[step][key] != metrics[key])


def numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a log entry."""
    found = {key: number_of(value) for key, value in entry.items()}
    return {key: number for key, number in found.items() if number is not None}


def number_of(value: Any) -> float | None:
    """A finite number, or None for anything else; text, true and false are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
