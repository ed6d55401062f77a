"""One run's logs, joined by the trainer's step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import FrontierError

Row = tuple[int, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a framework lays out its logs.

    Attributes:
        steps: Columns that count the trainer's steps; of those that a row has, the first counts. W&B's own ``_step``
            (``Step`` in its exports) is among them only where the framework hands its step to W&B, which otherwise
            counts the calls of its logger.
        needed: Metrics that the adapter reads.
    """

    steps: tuple[str, ...]
    needed: re.Pattern[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run's logs.

    Attributes:
        name: Where they come from; no two runs share a name.
        rows: Metrics by the trainer's step, in order; several logs of one step are joined.
        config: The configuration that the logs hold, flat, with dotted keys.
        notes: What to know of how the rows were joined.
    """

    name: str
    rows: list[Row]
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def run_of(name: str, rows: Iterable[Row], layout: Layout, config: Mapping[str, Any] | None = None) -> Run:
    """Join the rows of a run, in the order in which they were logged.

    A run that was killed and resumed from a checkpoint logs some steps twice. The later attempt is the one that went
    on, so what the earlier one logged from that step on is dropped.

    Args:
        name: Where the rows come from.
        rows: Metrics by step, in the order in which they were logged.
        config: The configuration that the logs hold, with dotted keys.

    Raises:
        FrontierError: The rows are of two runs: the steps of a metric begin again.
    """
    whole: dict[int, dict[str, float]] = {}
    first: dict[str, int] = {}
    latest: dict[str, int] = {}
    notes = []
    for step, metrics in rows:
        needed = [key for key in metrics if layout.needed.match(key)]
        # Each metric has a clock of its own: an evaluation that takes long is logged after later steps.
        back = [key for key in needed if key in latest and _logged_before(key, step, metrics, latest, whole)]
        if back and step <= first[back[0]]:
            raise FrontierError(
                f"{name}: {back[0]} begins again at step {step} after step {latest[back[0]]}: these are two runs; put "
                "each into a file or folder of its own, or give a table of both a column run_id"
            )
        if back:
            notes.append(f"{name} went back to step {step} from step {max(whole)}: the later attempt counts")
            whole = {s: m for s, m in whole.items() if s <= step}
            latest = {key: s for key, s in latest.items() if s < step}
        at = whole.setdefault(step, {})
        for key in needed:
            first.setdefault(key, step)
            latest[key] = step
        at.update(metrics)
    return Run(name=name, rows=sorted(whole.items()), config=dict(config or {}), notes=tuple(notes))


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
