"""What pilots found of the learning rates of a problem set, as the document ``pilot.json``, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .rule import Found, Rates
from .search import Search
from .trials import Evaluation, Tried


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
        found = tuple(
            Found(
                rollouts_per_problem=each.rollouts_per_problem,
                problems_per_batch=each.problems_per_batch,
                learning_rate=each.chosen.learning_rate,
            )
            for each in self.searches
        )
        return Rates(rule=self.rule, found=found)

    def document(self) -> dict[str, Any]:
        """As in ``pilot.json``."""
        return {
            "rule": self.rule,
            "metric": self.metric,
            "base": asdict(self.base),
            "budget": self.budget,
            "rollouts": self.rollouts,
            "evaluated": self.evaluated,
            "searches": [_search_document(each) for each in self.searches],
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Pilot:
        """From what ``document`` returned."""
        return cls(
            rule=document["rule"],
            metric=document["metric"],
            base=Evaluation(**document["base"]),
            budget=document["budget"],
            rollouts=document["rollouts"],
            evaluated=document["evaluated"],
            searches=tuple(_search(each) for each in document["searches"]),
        )


def _search_document(found: Search) -> dict[str, Any]:
    return {
        "rollouts_per_problem": found.rollouts_per_problem,
        "problems_per_batch": found.problems_per_batch,
        "learning_rate": found.chosen.learning_rate,
        "score": found.chosen.score,
        "standard_error": found.chosen.standard_error,
        "stable": found.chosen.stable,
        "edge": found.edge,
        "ties": list(found.ties),
        "grid": [asdict(each) for each in found.grid],
    }


def _search(document: Mapping[str, Any]) -> Search:
    grid: Sequence[Tried] = [Tried(**each) for each in document["grid"]]
    return Search(
        rollouts_per_problem=document["rollouts_per_problem"],
        problems_per_batch=document["problems_per_batch"],
        grid=tuple(grid),
        chosen=next(each for each in grid if each.learning_rate == document["learning_rate"]),
        ties=tuple(document["ties"]),
        edge=document["edge"],
    )
