"""Where the learning rates of a problem set are from, as the document ``pilot.json``, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot
from typing import Any

from .noise import seed_noise
from .rule import Declared, Found, Rates
from .search import Search
from .trials import Evaluation, Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The learning rates of a problem set, and how they were found, or that they were declared.

    Attributes:
        rule: ``constant``, ``linear``, ``sqrt`` or ``tuned``.
        metric: The metric that chose.
        base: The base model's score, of responses that selected nothing.
        budget: Rollouts that one cell of the search was to be trained on; 0 where nothing was searched.
        rollouts: Rollouts that the cells of the search were trained on together, evaluations apart.
        evaluated: Responses of the evaluations of these cells, their first one included; no budget counts them.
        searches: What was found at every (n, B_p) searched; none where the rate is declared.
        declared: The rate that is declared; None where one was searched.
    """

    rule: str
    metric: str
    base: Evaluation
    budget: int
    rollouts: int
    evaluated: int
    searches: tuple[Search, ...]
    declared: Declared | None = None

    @classmethod
    def of(cls, declared: Rates, *, metric: str, base: Evaluation) -> Pilot:
        """Of declared rates: no pilot was trained.

        Args:
            base: The base model's score, of responses that selected nothing.
        """
        return cls(
            rule=declared.rule, metric=metric, base=base, budget=0, rollouts=0, evaluated=0, searches=(),
            declared=declared.declared,
        )  # fmt: skip

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
        return Rates(rule=self.rule, found=found, declared=self.declared)

    def document(self) -> dict[str, Any]:
        """As in ``pilot.json``; ``declared`` is there only where the rate is."""
        declared = {"declared": asdict(self.declared)} if self.declared else {}
        return declared | {
            "rule": self.rule,
            "metric": self.metric,
            "base": asdict(self.base),
            "budget": self.budget,
            "rollouts": self.rollouts,
            "evaluated": self.evaluated,
            "searches": [_search_document(each, self) for each in self.searches],
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
            declared=Declared(**document["declared"]) if "declared" in document else None,
        )


def beats(found: Search, pilot: Pilot) -> bool:
    """Whether the rate chosen at one (n, B_p) is above the base model by more than noise.

    The highest of many scores is above the base model by luck, so that it must exceed it by as many standard errors as
    keep the chance that any of all (n, B_p, rate) tried does so by luck at 2.5 % (``SeedNoise.errors_needed``). With
    one seed the noise of sampling is all that is known, and that between seeds comes on top of it.

    Args:
        found: The search at this (n, B_p).
    """
    grid = [each for own in pilot.searches for each in own.grid]
    noise = seed_noise(grid)
    error = hypot(noise.error(found.chosen), pilot.base.standard_error)
    return (found.chosen.score or 0.0) - pilot.base.score > noise.errors_needed(len(grid)) * error


def _search_document(found: Search, pilot: Pilot) -> dict[str, Any]:
    return {
        "rollouts_per_problem": found.rollouts_per_problem,
        "problems_per_batch": found.problems_per_batch,
        "learning_rate": found.chosen.learning_rate,
        "score": found.chosen.score,
        "standard_error": found.chosen.standard_error,
        "stable": found.chosen.stable,
        "above_base": beats(found, pilot),
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
