"""The tables of a ledger, and how attempts and charges change them: what survives, what was paid for, what was lost.

``charges`` holds every charge, in order; no row of it ever changes. ``sums`` (by step, cohort and attempt) and
``totals`` (by cohort) follow from it by these rules:

* An attempt takes over the steps up to the one it resumes from. What earlier attempts charged to later steps is lost at
  that moment and stays lost, whatever later attempts do.
* A training charge (``TRAINING_COHORTS``) adds to its step, even to a step that was taken over. The update of such a
  step is not done again, so the charge is late (for example, failed rollouts) and not a repetition.
* An ``eval`` or ``pilot`` charge to a step that was taken over is a repetition (for example, of the evaluation before
  the first update when a run starts over). When an attempt makes its first such charge, what earlier attempts charged
  to that cohort of the step is lost. The attempt's further charges add.
* Rollouts that are generated once and used in several steps are charged to all of these steps in proportion. (TRL
  updates ``num_iterations`` times, and ``steps_per_generation`` may be several updates.) An attempt that resumes in the
  middle takes over the share of the steps already taken. The rest is lost, because the trainer keeps no rollouts in its
  checkpoints: it generates anew, for as many steps as usual from there on. So C_used up to a step is the same for an
  undisturbed run and for one that was killed anywhere, up to the rounding of a part (none if the parts are whole
  numbers). The killed run generates at other steps from then on, and pays for more.
* When an attempt ends after a step, what it generated for later steps is lost, whether it was killed or not.
* Lost rollouts that a checkpoint restores are charged again when their step is taken again, although they were
  generated once. A negative charge therefore removes them from lost work.

So C_used never shrinks before an attempt ends, and canonical + lost is the sum of everything that was ever charged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .counts import COHORTS, TRAINING_COHORTS, Counts, unchecked_counts

COUNTED = ("rollouts", "prompt_tokens", "response_tokens")
"""Columns of counts, here and in the ``ledger`` table."""
_COUNTED = ", ".join(COUNTED)
# SQLite would silently turn a sum beyond 64 bits into a float.
_COUNTS = ", ".join(f"{name} INTEGER NOT NULL CHECK (typeof({name}) = 'integer')" for name in COUNTED)
_KEYS = {"sums": "lost, step, cohort, attempt", "totals": "lost, cohort"}

APPLICATION = int.from_bytes(b"isoC")
VERSION = 3
"""Version of the tables."""

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE run (run_id TEXT, last_step INTEGER NOT NULL, device_seconds REAL NOT NULL, limits TEXT);
INSERT INTO run VALUES (NULL, 0, 0.0, NULL);
CREATE TABLE attempts (
    attempt INTEGER PRIMARY KEY, resumed_from INTEGER NOT NULL, began TEXT NOT NULL, host TEXT NOT NULL, job TEXT,
    salt TEXT NOT NULL, charges INTEGER NOT NULL
);
-- Without a cohort: a step that was reached, or device time.
CREATE TABLE charges (attempt INTEGER, step INTEGER, cohort TEXT, {_COUNTS}, device_seconds REAL);
CREATE INDEX times ON charges (attempt, step, device_seconds) WHERE device_seconds > 0;
CREATE TABLE sums (
    lost INTEGER, step INTEGER, cohort TEXT, attempt INTEGER, {_COUNTS}, PRIMARY KEY ({_KEYS["sums"]})
) WITHOUT ROWID;
CREATE TABLE totals (lost INTEGER, cohort TEXT, {_COUNTS}, PRIMARY KEY ({_KEYS["totals"]})) WITHOUT ROWID;
CREATE VIEW ledger AS
    SELECT run_id, step, cohort, {", ".join(f"SUM({name}) AS {name}" for name in COUNTED)}
    FROM sums, run WHERE lost = 0 GROUP BY step, cohort ORDER BY step, cohort;
CREATE VIEW lost_work AS
    SELECT run_id, step, cohort, {_COUNTED}, attempt FROM sums, run WHERE lost = 1 ORDER BY step, cohort, attempt;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums by cohort.

    Attributes:
        canonical: What the surviving attempts generated.
        lost: What was generated, paid for, and lost when an attempt ended early.
    """

    canonical: dict[str, Counts]
    lost: dict[str, Counts]

    @property
    def used(self) -> Counts:
        """C_used: the surviving attempts' training cohorts, which are charged to the budget."""
        return sum((self.canonical[cohort] for cohort in TRAINING_COHORTS), Counts())

    @property
    def lost_training(self) -> Counts:
        """The training cohorts of lost work."""
        return sum((self.lost[cohort] for cohort in TRAINING_COHORTS), Counts())

    @property
    def paid_training(self) -> Counts:
        """The training cohorts, surviving or lost."""
        return self.used + self.lost_training

    @property
    def paid(self) -> Counts:
        """Everything generated: all cohorts, surviving or lost."""
        return sum((*self.canonical.values(), *self.lost.values()), Counts())


def begin(sql: sqlite3.Connection, resumed_from: int, *, began: str, host: str, job: str | None, salt: str) -> int:
    """Begin an attempt that takes over the steps up to ``resumed_from``; return its number, from 1."""
    end(sql, resumed_from)
    origin = (resumed_from, began, host, job, salt)
    return int(sql.execute("INSERT INTO attempts VALUES (NULL, ?, ?, ?, ?, ?, 0)", origin).lastrowid or 0)


def end(sql: sqlite3.Connection, step: int) -> None:
    """End an attempt after a step: what was charged to later steps is lost."""
    _lose(sql, "step > ?", step)
    sql.execute("UPDATE run SET last_step = min(last_step, ?)", (step,))


def charge(
    sql: sqlite3.Connection, attempt: int, parts: Sequence[tuple[int, Mapping[str, Counts]]], device_seconds: float
) -> None:
    """Charge steps to an attempt, each with counts by cohort; the first may have none, and gets the device time."""
    rows = [(step, cohort, *c.each) for step, counts in parts for cohort, c in counts.items()]
    (first, counts), last = parts[0], parts[-1][0]
    recorded = rows if counts else [(first, None, 0, 0, 0), *rows]
    times = [device_seconds or None, *[None] * len(rows)]
    timed = [(attempt, *row, seconds) for row, seconds in zip(recorded, times, strict=False)]
    sql.executemany("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", timed)
    (resumed_from,) = sql.execute("SELECT resumed_from FROM attempts WHERE attempt = ?", (attempt,)).fetchone()
    for step, cohort, *counted in rows:
        if cohort not in TRAINING_COHORTS and step <= resumed_from:
            _lose(sql, "step = ? AND cohort = ? AND attempt < ?", step, cohort, attempt)
        _add(sql, "sums", "VALUES (0, ?, ?, ?, ?, ?, ?)", (step, cohort, attempt, *counted))
        _add(sql, "totals", "VALUES (0, ?, ?, ?, ?)", (cohort, *counted))
    sql.execute(
        "UPDATE run SET last_step = max(last_step, ?), device_seconds = device_seconds + ?", (last, device_seconds)
    )
    sql.execute("UPDATE attempts SET charges = charges + 1 WHERE attempt = ?", (attempt,))


def take_back(sql: sqlite3.Connection, attempt: int, step: int, rollouts: int) -> None:
    """Remove training rollouts from what was lost after a step, starting with the last attempts.

    If a sum is taken in part, its tokens are reduced in proportion. Charges of unknown tokens are taken last.
    """
    lost = sql.execute(
        f"SELECT step, cohort, attempt, {_COUNTED} FROM sums WHERE lost = 1 AND step > ? AND rollouts > 0 "
        f"AND cohort IN ({', '.join('?' * len(TRAINING_COHORTS))}) ORDER BY attempt DESC, cohort = 'failed', step",
        (step, *TRAINING_COHORTS),
    ).fetchall()
    for at, cohort, of, *counted in lost:
        taken = min(rollouts, counted[0])
        if not taken:
            break
        part = [-(count * taken // counted[0]) for count in counted]
        sql.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, NULL)", (attempt, at, cohort, *part))
        _add(sql, "sums", "VALUES (1, ?, ?, ?, ?, ?, ?)", (at, cohort, of, *part))
        _add(sql, "totals", "VALUES (1, ?, ?, ?, ?)", (cohort, *part))
        rollouts -= taken
    sql.execute("DELETE FROM sums WHERE lost = 1 AND rollouts = 0 AND prompt_tokens = 0 AND response_tokens = 0")
    sql.execute("UPDATE attempts SET charges = charges + 1 WHERE attempt = ?", (attempt,))


def totals(sql: sqlite3.Connection) -> Totals:
    """Sums by cohort."""
    return totals_of(sql.execute(f"SELECT lost, cohort, {_COUNTED} FROM totals"))


def totals_of(rows: Iterable[tuple[Any, ...]]) -> Totals:
    """Sum up rows of: whether they are lost, their cohort, and their counts."""
    sums = [dict.fromkeys(COHORTS, Counts()) for _ in range(2)]
    for lost, cohort, *counted in rows:
        sums[lost][cohort] += unchecked_counts(*counted)
    return Totals(canonical=sums[0], lost=sums[1])


def _lose(sql: sqlite3.Connection, which: str, *values: Any) -> None:
    rows = f"FROM sums WHERE lost = 0 AND {which}"
    for lost, sign in ((1, ""), (0, "-")):
        summed = ", ".join(f"{sign}SUM({name})" for name in COUNTED)
        _add(sql, "totals", f"SELECT {lost}, cohort, {summed} {rows} GROUP BY cohort", values)
    _add(sql, "sums", f"SELECT 1, step, cohort, attempt, {_COUNTED} {rows}", values)
    sql.execute(f"DELETE {rows}", values)


def _add(sql: sqlite3.Connection, table: str, rows: str, values: Sequence[Any]) -> None:
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTED)
    sql.execute(f"INSERT INTO {table} {rows} ON CONFLICT ({_KEYS[table]}) DO UPDATE SET {added}", values)
