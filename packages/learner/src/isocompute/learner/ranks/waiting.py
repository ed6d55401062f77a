"""Calls to several ranks that wait for each other: every wait has a timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ..contract.deaths import death
from ..errors import LearnerError, RankError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The end of a wait.

    Attributes:
        values: Result of each call, None where there is none.
        failures: Error of each call that failed, by its rank.
        late: Ranks whose call had not ended.
    """

    values: list[Any]
    failures: dict[int, Exception]
    late: list[int]

    @property
    def all_refused(self) -> bool:
        """Whether every call failed with an error of the learner, which leaves a rank as it was."""
        refusals = [error for error in self.failures.values() if isinstance(_cause(error), LearnerError)]
        return len(refusals) == len(self.values)

    def error(self, task: str, patience: float) -> Exception | None:
        """The error to raise, or None: that of a rank that died, and otherwise of the rank that failed first.

        Args:
            task: What the ranks were asked to do, as a verb for the message.
            patience: The timeout of the wait, s.
        """
        if not self.failures and not self.late:
            return None
        world = len(self.values)
        for rank, failure in self.failures.items():
            if why := death(failure):
                return RankError(f"rank {rank} of {world} died before it could {task} ({why})")
        if self.failures:
            return _cause(next(iter(self.failures.values())))
        return RankError(
            f"{len(self.late)} of {world} ranks did not {task} in {patience:g} s: "
            "see raylet.err in the logs of the Ray session"
        )


def outcomes(calls: Sequence[Any], *, patience: float, grace: float) -> Outcomes:
    """Wait for calls to Ray actors.

    Args:
        calls: One call per rank.
        patience: Timeout for all of them, s.
        grace: Timeout for the others once one has failed, s, since they may be waiting for it in a collective.

    Returns:
        The results and failures, by rank.
    """
    import ray

    values: list[Any] = [None] * len(calls)
    failures: dict[int, Exception] = {}
    ranks = {call: rank for rank, call in enumerate(calls)}
    pending, end = list(calls), monotonic() + patience
    while pending:
        done, pending = ray.wait(pending, timeout=max(0.0, end - monotonic()))
        if not done:
            break
        rank = ranks[done[0]]
        try:
            values[rank] = ray.get(done[0])
        except ray.exceptions.RayError as error:
            if not failures:
                end = min(end, monotonic() + grace)
            failures[rank] = error
    return Outcomes(values=values, failures=failures, late=[ranks[call] for call in pending])


def _cause(error: Exception) -> Exception:
    """An error of the learner as itself, without the traceback of the rank; any other as Ray raises it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, LearnerError) else error
