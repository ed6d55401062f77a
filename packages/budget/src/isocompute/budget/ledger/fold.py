"""The sums of a ledger's records: what survived, and what was paid for and lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .counts import COHORTS, TRAINING_COHORTS, Counts, unchecked_counts
from .limits import Limits

CODES = {cohort: code for code, cohort in enumerate(COHORTS)}
"""Index of each cohort in ``COHORTS``."""

TRAINING = frozenset(CODES[cohort] for cohort in TRAINING_COHORTS)

Row = tuple[int, int, int]
"""Step, index of the cohort in ``COHORTS``, number of the attempt from 1."""

Sums = tuple[int, int, int]
"""Rollouts, prompt tokens, response tokens."""


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
        """C_used: the training cohorts of the surviving attempts, which the budget is charged with."""
        return _total_of(self.canonical[cohort] for cohort in TRAINING_COHORTS)

    @property
    def lost_training(self) -> Counts:
        """The training cohorts of lost work."""
        return _total_of(self.lost[cohort] for cohort in TRAINING_COHORTS)

    @property
    def paid(self) -> Counts:
        """Everything generated: all cohorts, survived or lost."""
        return _total_of(self.canonical.values()) + _total_of(self.lost.values())


class Fold:
    """The sums of a ledger, taken record by record in the order of the file.

    The writer and every reader use this one fold, so that their sums cannot differ. Its rules:

    * An attempt takes over the steps up to the one it resumes from. What the attempts before it charged to later
      steps is lost at that moment and stays lost, whatever later attempts do.
    * A training charge (``trained``, ``filtered``, ``stale``, ``failed``) adds to its step, also to a step that was
      taken over: the update of such a step is not done again, so the charge is a late one (rollouts that failed,
      say) and not a repetition.
    * An ``eval`` or ``pilot`` charge to a step that was taken over is a repetition (of the evaluation before the
      first update, say, when a run starts again from nothing). When an attempt makes the first one, what the
      attempts before it charged to that cohort of the step is lost; its further ones add.

    * What was generated once and is used in several steps (TRL updates ``num_iterations`` times, and
      ``steps_per_generation`` may be several updates) is charged to all of them in proportion. An attempt that
      resumes in the middle takes over the part of the steps that were taken. The rest is lost, as the trainer keeps
      no rollouts in its checkpoints and generates anew, for as many steps from there on as ever. So C_used up to a
      step is the same for an undisturbed run and for one that was killed anywhere, to the rounding of a part (none
      where the parts are whole numbers), although the killed run generates at other steps from then on and pays for
      more.
    * When an attempt ends after a step, what it generated for later ones is lost, whether it was killed or not.

    So C_used never shrinks before an attempt ends, and canonical + lost is everything that was ever charged.

    Attributes:
        resumed_from: For each attempt, the last step that it took over.
        last_step: The last step that was reached and not rolled back, with or without charges; 0 at first. A charge
            reaches all the steps that share it.
        device_seconds: Device time that was paid for, by all attempts.
        limits: The limits in force at the end, or None.
    """

    def __init__(self) -> None:
        self.resumed_from: list[int] = []
        self.last_step = 0
        self.device_seconds = 0.0
        self.limits: Limits | None = None
        self._canonical: dict[Row, Sums] = {}
        self._lost: dict[Row, Sums] = {}
        self._canonical_sums: list[Sums] = [(0, 0, 0)] * len(COHORTS)
        self._lost_sums: list[Sums] = [(0, 0, 0)] * len(COHORTS)

    def begin(self, resumed_from: int) -> None:
        """Begin an attempt, which takes over the steps up to ``resumed_from``."""
        self.end(resumed_from)
        self.resumed_from.append(resumed_from)

    def end(self, step: int) -> None:
        """End an attempt after a step: what was charged to later ones is lost."""
        for row in [row for row in self._canonical if row[0] > step]:
            self._lose(row)
        self.last_step = min(self.last_step, step)

    def reach(self, step: int) -> None:
        """Note that the attempt reached a step, whether or not the step generated anything."""
        self.last_step = max(self.last_step, step)

    def take_time(self, step: int, device_seconds: float) -> None:
        """Add device time to a step of the attempt."""
        self.device_seconds += device_seconds
        self.reach(step)

    def charge(self, step: int, counts: Mapping[str, Counts]) -> None:
        """Charge counts by cohort to a step of the attempt."""
        self.reach(step)
        for cohort, c in counts.items():
            self._add(step, CODES[cohort], (c.rollouts, c.prompt_tokens, c.response_tokens))

    def charge_all(
        self,
        steps: Iterable[int],
        codes: Iterable[int],
        rollouts: Iterable[int],
        prompt_tokens: Iterable[int],
        response_tokens: Iterable[int],
    ) -> None:
        """Make many charges, given as columns: the same as one after the other, and faster.

        Args:
            codes: Indices of the cohorts in ``COHORTS``.
        """
        current = -1
        pending: dict[int, list[int]] = {}
        for step, code, r, p, t in zip(steps, codes, rollouts, prompt_tokens, response_tokens, strict=True):
            if step != current:
                self._add_pending(current, pending)
                current, pending = step, {}
            if code in pending:
                sums = pending[code]
                sums[0] += r
                sums[1] += p
                sums[2] += t
            else:
                pending[code] = [r, p, t]
        self._add_pending(current, pending)

    @property
    def used(self) -> Counts:
        """C_used: the training cohorts of what survives."""
        return unchecked_counts(*map(sum, zip(*self._canonical_sums[: len(TRAINING)], strict=True)))

    @property
    def lost_training(self) -> Counts:
        """The training cohorts of what was lost."""
        return unchecked_counts(*map(sum, zip(*self._lost_sums[: len(TRAINING)], strict=True)))

    def totals(self) -> Totals:
        """Sums by cohort."""
        return Totals(canonical=_by_cohort(self._canonical_sums), lost=_by_cohort(self._lost_sums))

    def canonical(self) -> Iterator[tuple[int, ...]]:
        """Rows of what survives: step, cohort's index, attempt, rollouts, prompt tokens, response tokens."""
        return (row + sums for row, sums in self._canonical.items())

    def lost(self) -> Iterator[tuple[int, ...]]:
        """Rows of what was paid for and lost, in the form of ``canonical``."""
        return (row + sums for row, sums in self._lost.items())

    def _add_pending(self, step: int, pending: Mapping[int, list[int]]) -> None:
        if pending:
            self.reach(step)
        for code, (r, p, t) in pending.items():
            self._add(step, code, (r, p, t))

    def _add(self, step: int, code: int, sums: Sums) -> None:
        attempt = len(self.resumed_from)
        row = (step, code, attempt)
        before = self._canonical.get(row)
        if before is None:
            if code not in TRAINING and step <= self.resumed_from[-1]:
                self._replace(step, code, attempt)
            self._canonical[row] = sums
        else:
            self._canonical[row] = _add_sums(before, sums)
        self._canonical_sums[code] = _add_sums(self._canonical_sums[code], sums)

    def _replace(self, step: int, code: int, attempt: int) -> None:
        """Count as lost what earlier attempts charged to a cohort of a step."""
        for earlier in range(1, attempt):
            if (step, code, earlier) in self._canonical:
                self._lose((step, code, earlier))

    def _lose(self, row: Row) -> None:
        sums, code = self._canonical.pop(row), row[1]
        self._lost[row] = sums
        c = self._canonical_sums[code]
        self._canonical_sums[code] = (c[0] - sums[0], c[1] - sums[1], c[2] - sums[2])
        self._lost_sums[code] = _add_sums(self._lost_sums[code], sums)


def _add_sums(a: Sums, b: Sums) -> Sums:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _by_cohort(sums: list[Sums]) -> dict[str, Counts]:
    return {cohort: unchecked_counts(*of_cohort) for cohort, of_cohort in zip(COHORTS, sums, strict=True)}


def _total_of(counts: Iterable[Counts]) -> Counts:
    return sum(counts, Counts())
