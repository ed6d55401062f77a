"""Chains of sums, and the unreliable teacher of them.

Worked solutions of ± chains are written left to right as partial results, ``3+2-4=5=1``. Every fact
(partial result, operator, digit) is wrong in them at a rate of its own, drawn from Beta(0.5, 1), so the
model's pass rates spread over problems as those of a real base model do.
"""

from __future__ import annotations

import numpy as np

from .config import ChainsModelConfig, MixtureSource
from .lessons import Lesson


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
        """How often a fact (partial result, change) is taught wrong: Beta(0.5, 1), fixed by the fact and the seed."""
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
        """How far off a wrong fact is: too rarely the same for two of them to cancel out."""
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
