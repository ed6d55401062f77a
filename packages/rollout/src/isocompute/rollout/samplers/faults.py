"""Problems that cannot be scored, though their responses were paid for: counted until it is clear that all are such."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from ..errors import ProblemError, RolloutError
from .groups import Group

logger = logging.getLogger(__name__)


class Faults:
    """Problems whose responses could not be scored, which was found when these were paid for."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._scored = False

    def scored(self) -> None:
        """Note that responses to some problem could be scored."""
        self._scored = True

    def lost(self, group: Group, error: ProblemError) -> Group:
        """Note a problem; return its group with responses that count as aborted, tokens included."""
        if group.problem_id not in self._reasons:
            logger.warning("problem %s cannot be scored: %s", group.problem_id, error)
        self._reasons[group.problem_id] = str(error)
        reason = f"its problem cannot be scored: {error}"
        responses = [
            r if r.finish_reason == "aborted" else replace(r, finish_reason="aborted", failure=reason)
            for r in group.responses
        ]
        return replace(group, responses=responses)

    def hand_over(self) -> tuple[dict[str, str], bool]:
        """Forget what was noted, and return it for another process: reasons by problem, and whether any was scored."""
        found = self._reasons, self._scored
        self._reasons, self._scored = {}, False
        return found

    def add(self, reasons: Mapping[str, str], *, scored: bool) -> None:
        """Take what another process noted.

        Args:
            reasons: Why problems cannot be scored, by problem.
            scored: Whether responses to some problem could be.
        """
        self._reasons |= reasons
        self._scored |= scored

    def check(self) -> None:
        """Refuse to go on where nothing could be scored so far.

        Not in the call that finds it: its responses were paid for, and must reach whoever counts them.

        Raises:
            RolloutError: All problems answered so far cannot be scored.
        """
        if self._reasons and not self._scored:
            problem_id, reason = next(iter(self._reasons.items()))
            raise RolloutError(
                f"none of the {len(self._reasons)} problems answered so far can be scored; {problem_id} cannot, since "
                f"{reason}"
            )
