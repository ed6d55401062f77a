"""Which numbers of a cell are logged: those that change, where they do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from isocompute.learner import EvaluationRecord

from .spool import Spooled

RESULTS = ("eval/", "train/reward")
"""How the names of numbers begin that are logged even where they stay the same."""
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""By how much two values may differ and still be the same: rounding is no change."""
ROUNDING = 1e-6
"""The absolute part of it where two programs' log-probabilities are compared, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric.

    Attributes:
        time: When it was measured, in ms since 1970.
        rollouts: Cumulative rollouts.
    """

    name: str
    value: float
    time: int
    rollouts: int


class Changes:
    """The points of one run that are worth keeping, from its records in their order.

    A number that has never changed has none. Of one that stays the same for a while the first and the last point of
    that while are kept, so that straight lines between the points show what was measured.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Point] = {}
        self._logged: set[str] = set()
        self._held: dict[str, Point] = {}
        self._rollouts = -1
        self._kinds: set[str] = set()

    def of(self, spooled: Spooled) -> Iterator[Point]:
        """The points that a record adds; none where the same step was taken before."""
        record = spooled.record
        # A step and the evaluation after it share their rollouts.
        kind = "eval" if isinstance(record, EvaluationRecord) else "train"
        if record.rollouts < self._rollouts or (record.rollouts == self._rollouts and kind in self._kinds):
            return
        if record.rollouts > self._rollouts:
            self._rollouts, self._kinds = record.rollouts, set()
        self._kinds.add(kind)
        for name, value in record.metrics().items():
            if math.isfinite(value):
                yield from self._add(Point(name=name, value=value, time=spooled.time, rollouts=record.rollouts))

    def last(self) -> list[Point]:
        """The points with which the lines reach the end of the run."""
        return [point for name, point in self._held.items() if name in self._logged]

    def _add(self, point: Point) -> Iterator[Point]:
        name, before = point.name, self._kept.get(point.name)
        least = ROUNDING if name.startswith("health/") else ABSOLUTE
        if name.startswith(RESULTS):
            yield point
        elif before is None:
            self._kept[name] = self._held[name] = point
        elif math.isclose(point.value, before.value, rel_tol=RELATIVE, abs_tol=least):
            self._held[name] = point
        else:
            if name not in self._logged:
                self._logged.add(name)
                yield before
            held = self._held.pop(name, before)
            if held != before:
                yield held
            self._kept[name] = point
            yield point
