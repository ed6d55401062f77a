"""What a search found as the document ``pilot.json``, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .rule import Found, Rates
from .search import Search
from .trials import Evaluation, Tried, below


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The learning rates of a problem set, and how they were found.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        metric: The metric that chose.
        base: The base model's score, of responses that selected nothing.
        rollouts: Rollouts that the cells of the search were trained on, evaluations apart.
        searches: What was found at every (n, B_p) searched.
    """

    rule: str
    metric: str
    base: Evaluation
    rollouts: int
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
            "rollouts": self.rollouts,
            "searches": [_search_document(each, self.base) for each in self.searches],
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Pilot:
        """From what ``document`` returned."""
        return cls(
            rule=document["rule"],
            metric=document["metric"],
            base=Evaluation(**document["base"]),
            rollouts=document["rollouts"],
            searches=tuple(_search(each) for each in document["searches"]),
        )


def beats(search: Search, base: Evaluation) -> bool:
    """Whether the rate chosen is above the base model by more than noise.

    Args:
        search: What was found.
        base: The base model's score.
    """
    return below(base, _end(search.chosen))


def _end(chosen: Tried) -> Evaluation:
    return Evaluation(score=chosen.score or 0.0, standard_error=chosen.standard_error or 0.0)


def _search_document(found: Search, base: Evaluation) -> dict[str, Any]:
    return {
        "rollouts_per_problem": found.rollouts_per_problem,
        "problems_per_batch": found.problems_per_batch,
        "learning_rate": found.chosen.learning_rate,
        "score": found.chosen.score,
        "standard_error": found.chosen.standard_error,
        "stable": found.chosen.stable,
        "above_base": beats(found, base),
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
