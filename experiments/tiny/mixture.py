"""Mixture: two families of chains under a prefix, with contradictory rules, so that what helps one harms the other.

After ``x`` a sum means what it says; after ``y`` plus subtracts and minus adds: ``x3+2-4=5=1`` and ``y3+2-4=1=5``. The
share of the contradictory family, in the problems and in the teacher's solutions alike, is the dial of interference.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import ExperimentError
from .chains import ChainTeacher, drawn
from .config import MIXTURE_PREFIXES, MixtureModelConfig, MixtureSource
from .lessons import Lesson

VERIFIER = "exact|after:="
"""The last partial result, exactly."""


class MixtureTeacher(ChainTeacher):
    """Writes worked solutions of both families; each fact of each family has an error rate of its own."""

    def __init__(self, config: MixtureModelConfig) -> None:
        super().__init__(config)
        self._mixture = config

    def lesson(self, rng: np.random.Generator) -> Lesson:
        """A prompt of either family and a worked solution."""
        family = int(rng.random() < self._mixture.share)
        prompt, changes = in_family(family, *drawn(rng, self._mixture))
        return Lesson(prompt=prompt, response=self.worked(rng, changes, family))


def in_family(family: int, expression: str, changes: list[int]) -> tuple[str, list[int]]:
    """An expression with its prefix, and what its terms add under the rule of the family.

    Args:
        family: 0 for the ordinary rule, 1 for the contradictory one.
        changes: What they add under the ordinary rule.
    """
    turned = [changes[0], *(-change for change in changes[1:])] if family else changes
    return MIXTURE_PREFIXES[family] + expression, turned


def problems(source: MixtureSource) -> Iterator[tuple[str, str, str, str]]:
    """Yield (split, prompt, answer, verifier): each prompt once, each side with the share of either family."""
    wanted = sum(max(_counts(source.share, size)) for size in (source.train, source.validation))
    if wanted > distinct(source):
        raise ExperimentError(
            f"mixture has {distinct(source)} problems of a family, and {wanted} are asked for: ask for fewer, or for "
            "longer expressions"
        )
    rng, seen = np.random.default_rng([source.seed, 1]), set[str]()
    for side, size in (("validation", source.validation), ("train", source.train)):
        for family, count in enumerate(_counts(source.share, size)):
            taken = 0
            while taken < count:
                prompt, changes = in_family(family, *drawn(rng, source))
                if prompt not in seen:
                    seen.add(prompt)
                    taken += 1
                    yield side, prompt, str(sum(changes)), VERIFIER


def _counts(share: float, size: int) -> tuple[int, int]:
    """Problems of the ordinary and of the contradictory family."""
    contradictory = round(share * size)
    return size - contradictory, contradictory


def distinct(source: MixtureSource) -> int:
    """How many problems a family has."""
    digits = len(set(source.digits))
    return sum(digits * (2 * digits) ** (terms - 1) for terms in range(source.min_terms, source.max_terms + 1))
