"""A ledger's records, read one after the other."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

from ..errors import LedgerError
from . import records
from .attempts import Origin, decode_origin
from .fold import Fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """Charges in the order in which they were made, a column each.

    Attributes:
        attempt: Number of the attempt, from 1.
        step: Update step.
        cohort: Place of the cohort in ``COHORTS``.
        rollouts: Responses generated.
        prompt_tokens: Prompt tokens.
        response_tokens: Response tokens.
    """

    attempt: array[int]
    step: array[int]
    cohort: array[int]
    rollouts: array[int]
    prompt_tokens: array[int]
    response_tokens: array[int]

    def columns(self) -> tuple[array[int], ...]:
        """The columns, in the order above."""
        return (
            self.attempt,
            self.step,
            self.cohort,
            self.rollouts,
            self.prompt_tokens,
            self.response_tokens,
        )


class Reading:
    """The state of a ledger after the records taken so far.

    Attributes:
        fold: Their sums, up to the last ``end_attempt``.
        run_id: The run; empty before the first attempt.
        charges: Every charge, up to the last ``end_attempt``.
        times: Attempt, step and device-seconds of the charges that took device time.
        origins: When and where each attempt began; None where the file does not say.
    """

    def __init__(self, where: str) -> None:
        self.fold = Fold()
        self.run_id = ""
        self.charges = Charges(**{name: array("q") for name in Charges.__slots__})
        self.times: list[tuple[int, int, float]] = []
        self.origins: list[Origin | None] = []
        self._where = where
        self._entries: list[bytes] = []

    def take(self, payload: bytes, number: int) -> None:
        """Take the next record, or several charges as one.

        Raises:
            LedgerError: It is of another run, or not a record that this version knows; an unknown ancillary one
                (``records``) is left out.
        """
        try:
            self._take(payload)
        except LedgerError:
            raise
        except (struct.error, ValueError) as error:
            raise LedgerError(f"{self._where}: record {number} is not one that this version knows ({error})") from None

    def end_attempt(self) -> None:
        """Fold the attempt's charges; the times and empty steps among them do not depend on their order.

        Raises:
            LedgerError: A charge is not one that this version knows.
        """
        attempt = len(self.fold.resumed_from)
        try:
            columns = records.entry_columns(b"".join(self._entries))
        except ValueError as error:
            raise LedgerError(
                f"{self._where}: a charge of attempt {attempt} is not one that this version knows ({error})"
            ) from None
        self._entries = []
        self.fold.charge_all(*columns)
        attempts = array("q", [attempt]) * len(columns[0])
        for whole, part in zip(self.charges.columns(), (attempts, *columns), strict=True):
            whole.extend(part)

    def _take(self, payload: bytes) -> None:
        kind = payload[0] if payload else None
        if kind == records.ATTEMPT:
            self._begin(*records.decode_attempt(payload))
        elif kind in (records.LIMIT, records.TIMED_LIMIT):
            self.fold.limits = records.decode_limits(payload)
        elif kind == records.ORIGIN and self.origins:
            self.origins[-1] = decode_origin(payload)
        elif kind in records.ANCILLARY:
            return
        elif not self.run_id:
            raise ValueError("an attempt must begin before anything is charged")
        elif kind == records.CHARGE:
            self._entries.append(records.decode_entries(payload))
        elif kind == records.TIMED_CHARGE:
            step, seconds = records.decode_time(payload)
            self.times.append((len(self.fold.resumed_from), step, seconds))
            self.fold.take_time(step, seconds)
            self._entries.append(records.decode_entries(payload))
        elif kind == records.EMPTY:
            self.fold.reach(records.decode_step(payload))
        elif kind == records.ENDED:
            self.end_attempt()
            self.fold.end(records.decode_step(payload))
        else:
            raise ValueError("there is no such kind of record")

    def _begin(self, run_id: str, resumed_from: int) -> None:
        self.end_attempt()
        if self.run_id not in ("", run_id):
            names = " and ".join(sorted({self.run_id, run_id}))
            raise LedgerError(f"{self._where}: holds charges of the runs {names}; a ledger is of one run")
        self.run_id = run_id
        self.fold.begin(resumed_from)
        self.origins.append(None)
