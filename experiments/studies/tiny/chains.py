"""Chains of sums, alone or as a mixture of two families with contradictory rules, and the unreliable teachers of them.

Worked solutions of ± chains are written left to right as partial results, ``3+2-4=5=1``. Every fact
(partial result, operator, digit) is wrong in them at a rate of its own, drawn from Beta(0.5, 1), so the
model's pass rates spread over problems as those of a real base model do.

In a mixture a sum means what it says after ``x``; after ``y`` plus subtracts and minus adds: ``x3+2-4=5=1`` and
``y3+2-4=1=5``, so that what helps one family harms the other. The share of the contradictory family, in the problems
and in the teacher's solutions alike, is the dial of interference.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import ExperimentError
from .config import MIXTURE_PREFIXES, ChainsModelConfig, MixtureModelConfig, MixtureSource
from .lessons import Lesson

VERIFIER = "exact|after?:="
"""The last partial result, exactly."""


class ChainTeacher:
    """Writes worked solutions that are wrong fact by fact."""

    def __init__(self, config: ChainsModelConfig) -> None:
        self._config = config
        self._rates: dict[tuple[int, ...], float] = {}

    def lesson(self, rng: np.random.Generator) -> Lesson:
        """A prompt and a worked solution."""
        prompt, changes = drawn(rng, self._config)
        return Lesson(prompt=prompt, response=self.worked(rng, changes))

    def error_rate(self, *fact: int) -> float:
        """Rate of errors of a fact (partial result, change): Beta(0.5, 1), fixed by the fact and the seed."""
        if fact not in self._rates:
            key = [self._config.seed, *(part + 1000 for part in fact)]
            self._rates[fact] = float(np.random.default_rng(key).beta(0.5, 1.0))
        return self._rates[fact]

    def worked(self, rng: np.random.Generator, changes: list[int], *family: int) -> str:
        """Partial results of adding changes one after another, each fact right or wrong.

        Args:
            changes: The first term, and what each further one adds.
            family: Numbers in front of every fact, so that each family has error rates of its own.
        """
        partial, steps = changes[0], []
        for change in changes[1:]:
            wrong = rng.random() < self.error_rate(*family, partial, change)
            partial += change + (self._slip(rng) if wrong else 0)
            steps.append(str(partial))
        return "=".join(steps)

    def _slip(self, rng: np.random.Generator) -> int:
        """Error of a wrong fact: too rarely the same for two of them to cancel out."""
        return int(rng.integers(1, self._config.largest_slip + 1)) * (1 if rng.random() < 0.5 else -1)


def drawn(rng: np.random.Generator, config: ChainsModelConfig | MixtureSource) -> tuple[str, list[int]]:
    """An expression and its sign, ``3+2-4=``, and what it adds up: 3, 2, -4."""
    terms = int(rng.integers(config.min_terms, config.max_terms + 1))
    digits = [int(config.digits[i]) for i in rng.integers(0, len(config.digits), terms)]
    signs = np.where(rng.random(terms) < 0.5, -1, 1)
    prompt, changes = str(digits[0]), [digits[0]]
    for digit, sign in zip(digits[1:], signs[1:], strict=True):
        prompt += ("+" if sign > 0 else "-") + str(digit)
        changes.append(digit * int(sign))
    return prompt + "=", changes


class MixtureTeacher(ChainTeacher):
    """Writes worked solutions of both families; each fact of each family has an error rate of its own."""

    _config: MixtureModelConfig

    def lesson(self, rng: np.random.Generator) -> Lesson:
        """A prompt of either family and a worked solution."""
        family = int(rng.random() < self._config.share)
        prompt, changes = in_family(family, *drawn(rng, self._config))
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
    """Number of problems of a family."""
    digits = len(set(source.digits))
    return sum(digits * (2 * digits) ** (terms - 1) for terms in range(source.min_terms, source.max_terms + 1))
