"""What pilots found of the learning rates of a problem set, as the document ``pilot.json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .rule import Rates
from .search import Search
from .trials import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The learning rates of a problem set, and how they were found.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        base: The base model's score, of responses that selected nothing.
        budget: Rollouts that one cell of the search was to be trained on.
        rollouts: Rollouts that the cells of the search were trained on together, evaluations apart.
        evaluated: Responses of the evaluations of these cells, their first one included; no budget counts them.
        searches: What was found at every (n, B_p) searched.
    """

    rule: str
    metric: str
    base: Evaluation
    budget: int
    rollouts: int
    evaluated: int
    searches: tuple[Search, ...]

    def rates(self) -> Rates:
        """The learning rates that follow."""
        found = {(s.rollouts_per_problem, s.problems_per_batch): s.chosen.learning_rate for s in self.searches}
        return Rates(rule=self.rule, found=found)

    def document(self) -> dict[str, Any]:
        """As in ``pilot.json``."""
        return {**asdict(self), "searches": [_document(each) for each in self.searches]}


def _document(found: Search) -> dict[str, Any]:
    chosen = found.chosen
    return {
        **asdict(found), "learning_rate": chosen.learning_rate, "score": chosen.score,
        "standard_error": chosen.standard_error, "stable": chosen.stable, "edge": found.edge, "ties": list(found.ties),
    }  # fmt: skip
